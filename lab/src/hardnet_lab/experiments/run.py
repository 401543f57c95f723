"""Run experiments: train every requested method on every requested problem, and write one result file for each."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from hardnet.errors import DTypeError, FileError, HardNetError, sentence
from hardnet.files import sole_run
from hardnet.model import HardNet
from hardnet.sets import Box, Equality
from hardnet.sets.base import ConstraintSet
from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.figures import first_seed, gradient_paths, picture
from hardnet_lab.experiments.recipes import AS_PUBLISHED, PUBLISHED, RECIPES, Method, Recipe, choose_recipes, recipe_of
from hardnet_lab.experiments.results import RUN, Result, environment, read_json, read_result, write_json, write_result
from hardnet_lab.experiments.timing import time_each
from hardnet_lab.problems import PROBLEMS, Problem
from hardnet_lab.problems.own import own_problem
from hardnet_lab.train import (
    Display,
    InterruptedRunError,
    Settings,
    Silence,
    StackedMLP,
    StackedModule,
    Training,
    World,
    joined,
    load_checkpoint,
    local_device,
    save_checkpoint,
    streams_of,
)

# One row of a table: train a method on a problem, test it, write its result file.


CHECKPOINT_SECONDS = 5.0
"""Shortest time between two checkpoints; short, so that a killed run loses little."""
CHECKPOINT_RATE = 2e6
"""Parameters per second of training between two checkpoints: large checkpoints take long to write."""


@dataclass(frozen=True)
class Row:
    """One result file to make.

    Attributes:
        name: Name of the experiment.
        problem: The problem, on the device; None for the gradient paths, which train no network for a table.
        method: The method of this row of the table.
        seeds: The seeds, trained together.
        epochs: Epochs of the run.
        folder: Folder of the result file.
        resume: Whether to continue from the files in the folder.
        device: The device to train on.
        recipe: The training recipe.
        prefix: Prefix of the file names, where the folder contains several problems.
        keep: Whether the checkpoint is kept as the trained weights after the result is written.
    """

    name: str
    problem: Problem | None
    method: Method
    seeds: list[int]
    epochs: int
    folder: Path
    resume: bool
    device: torch.device
    recipe: Recipe = AS_PUBLISHED
    prefix: str = ""
    keep: bool = True

    @property
    def described(self) -> Path:
        """The file that describes the run."""
        return self.folder / f"{self.prefix}{RUN}"

    @property
    def result(self) -> Path:
        """The result file."""
        return self.folder / f"{self.prefix}{self.method.name}.json"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint; it is kept as the trained weights unless `keep` is False."""
        return self.folder / f"{self.prefix}{self.method.name}.safetensors"

    @property
    def label(self) -> str:
        """The label as printed in tables."""
        return f"{self.method.label}{self.recipe.behind}"

    @property
    def differs(self) -> str:
        """The recipe's differences from the published training, with the epochs of this run."""
        return (replace(self.recipe, epochs=self.epochs) if self.recipe.epochs else self.recipe).differs

    @property
    def identity(self) -> dict[str, Any]:
        """The entries that identify the run, common to all files of the folder."""
        shared = {"problem": self.name, "seeds": self.seeds, "epochs": self.epochs}
        return shared if self.recipe is AS_PUBLISHED else shared | {"recipe": self.recipe.name}

    def run(self, display: Display, world: World, interrupted: Callable[[], bool]) -> Path:
        """Train, test and write the result, unless an intact result already exists."""
        if self.resume and self.result.exists():
            damage = self._damage()
            world.wait()  # all processes must read the file before one of them rewrites it
            display.note(f"{self.name} {self.method.name}: {damage or 'done already'}")
            if damage is None:
                return self.result
        made = self._paths() if self.problem is None else self._train(self.problem, display, world, interrupted)
        if world.rank == 0:
            write_result(self.result, made)
            if not self.keep:
                self.checkpoint.unlink(missing_ok=True)
        world.wait()
        return self.result

    def give_up(self, error: Exception) -> Path:
        """Write a result file that says why the run failed."""
        row = (self.name, self.method.name, self.label, self.seeds, self.epochs)
        told = self.recipe.name, self.differs, str(error)
        write_result(self.result, Result(*row, {}, {}, {}, {}, environment(self.device), *told))
        return self.result

    def _damage(self) -> str | None:
        """Why the result file must be made again; None if it can be read and its run did not fail.

        The result of another run, for instance copied here, raises an error.
        """
        try:
            found = read_result(self.result)
        except FileError as error:
            return f"made again, {error}"
        own = {"problem": self.name, "method": self.method.name, "seeds": self.seeds, "epochs": self.epochs}
        other = [f"{key} {getattr(found, key)}" for key, value in own.items() if getattr(found, key) != value]
        if other:
            raise FileError(f"{self.result}: the result of another run ({', '.join(other)}); choose another --out")
        return f"tried again, it had given up: {found.failure}" if found.failure else None

    def _train(self, problem: Problem, display: Display, world: World, interrupted: Callable[[], bool]) -> Result:
        if self.device.type == "cuda":
            torch.compiler.reset()  # otherwise compiled loops of earlier rows count against torch's recompile limit
        streams = streams_of(self.seeds)
        model = build_model(problem, self.method, streams, self.recipe).to(self.device)
        settings = self.settings(problem, model)
        trained = model if self.recipe.loose is None else partly_enforced(model, self.recipe.loose)
        training = Training(problem, trained, streams, settings, world)
        first = picture(problem, training.model)
        identity = self.identity | {"method": self.method.name}
        if self.resume and self.checkpoint.exists():
            load_checkpoint(training, self.checkpoint, identity)
        display.begin(f"{self.name} {self.label}", training)
        if not training.run(_Watcher(self.checkpoint, identity, display, world, interrupted)):
            raise InterruptedRunError(f"stopped at epoch {training.epoch} of {self.epochs}; go on with --resume")
        if world.rank == 0 and self.keep:
            save_checkpoint(training, self.checkpoint, identity)
        training.model = model  # the same network, with all rows enforced
        return self._result(problem, training, {"first": first, "last": picture(problem, model)})

    def settings(self, problem: Problem, model: HardNet) -> Settings:
        """The recipe's settings; no displacement if the network does not emit the outputs themselves (completion)."""
        settings = self.recipe.adapt(self.method.settings(problem, self.epochs, model.layer.guarantee))
        emits_outputs = model.layer.raw_dim in (None, problem.output_dim)
        return settings if emits_outputs else replace(settings, displacement=0.0)

    def _result(self, problem: Problem, training: Training, figures: dict[str, Any]) -> Result:
        seconds = {"train_s": training.seconds, "setup_s": training.setup_seconds}
        timing = seconds | {"test_ms": time_of_test(training.model, problem.inputs(problem.test))}
        row = (self.name, self.method.name, self.label, self.seeds, self.epochs)
        measured = final_metrics(problem, training), asdict(training.history), timing, figures
        return Result(*row, *measured, environment(self.device), self.recipe.name, self.differs)

    def _paths(self) -> Result:
        row = (self.name, self.method.name, self.method.label, self.seeds, self.epochs)
        return Result(*row, {}, {}, {}, gradient_paths(), environment(torch.device("cpu")))


class _Watcher:
    """After each epoch: updates the display, saves every few seconds, and stops the run if the user asked to."""

    def __init__(
        self, path: Path, identity: dict[str, Any], display: Display, world: World, interrupted: Callable[[], bool]
    ) -> None:
        self.path, self.identity, self.display = path, identity, display
        self.world, self.interrupted = world, interrupted
        self.saved = time.monotonic()

    def __call__(self, training: Training) -> bool:
        self.display.update(training)
        stop = self.world.any(self.interrupted(), training.batches.samples.device)
        count = sum(parameter.numel() for parameter in training.parameters)
        due = time.monotonic() - self.saved >= max(CHECKPOINT_SECONDS, count / CHECKPOINT_RATE)
        if (stop or due) and self.world.rank == 0:
            save_checkpoint(training, self.path, self.identity)
            self.saved = time.monotonic()
        return stop


def build_model(problem: Problem, method: Method, streams: list[Generator], recipe: Recipe = AS_PUBLISHED) -> HardNet:
    """The recipe's network, one per seed, followed by the method's layer."""
    layer = method.build(problem, **recipe.options)
    return HardNet(_network(problem, streams, recipe, layer.raw_dim or problem.output_dim), problem.constraint, layer)


def partly_enforced(model: HardNet, kept: str) -> HardNet:
    """The same network with only a part of its constraint enforced, as named by `Recipe.loose`."""
    equalities = kept == "equalities"
    parts = [part for part in model.constraint.parts if (isinstance(part, Equality) if equalities else _general(part))]
    if not parts or model.layer.raw_dim not in (None, model.constraint.dim):
        raise HardNetError(f"a loose recipe needs {kept}, and a method whose network emits the outputs themselves")
    device = next(model.parameters()).device
    return HardNet(model.net, reduce(and_, parts), "aff" if equalities else "projection").to(device)


def _general(part: ConstraintSet) -> bool:
    """Whether a set has general affine rows, that is, is polyhedral and not a box."""
    return part.polyhedral and not isinstance(part, Box)


def _network(problem: Problem, streams: list[Generator], recipe: Recipe, outputs: int) -> StackedMLP | StackedModule:
    """The problem's own network if it has one and the recipe sets none; otherwise an MLP with the hidden blocks."""
    own = problem.network
    if own is not None and recipe.hidden is None:
        return StackedModule(lambda: own(problem.encoded_dim, outputs), streams, encode=problem.encode)
    hidden = asdict(recipe.network(problem))
    return StackedMLP((problem.encoded_dim, *hidden.pop("sizes"), outputs), streams, **hidden, encode=problem.encode)


@torch.no_grad()
def final_metrics(problem: Problem, training: Training) -> dict[str, list[float]]:
    """The metrics on the test set, and the objective averaged over the last epochs if all of them were evaluated."""
    training.model.eval()
    found = problem.evaluate(training.model, training.stacked(problem.test))
    metrics = {name: value.tolist() for name, value in found.items()}
    count = min(training.settings.judge_last, training.settings.epochs)
    if count > 1:
        last = torch.tensor(training.history.objective[-count:], dtype=torch.float64)
        metrics[f"{problem.objective}_last_epochs"] = last.mean(0).tolist()
    return metrics


@torch.no_grad()
def time_of_test(model: HardNet, x: Tensor, repeats: int = 5) -> float:
    """Milliseconds of one evaluation of the whole test set by one seed's network: a median after two warm-up calls.

    If the first call takes more than a second, only that one is timed.
    """
    single = first_seed(model)
    return time_each({"test": lambda: single(x.unsqueeze(0))}, str(x.device), rounds=repeats, slow=1e3)["test"][0]


@dataclass(frozen=True)
class Request:
    """What to run, already checked.

    Attributes:
        experiments: Names of the experiments.
        methods: The rows of each table.
        seeds: The seeds, trained together.
        epochs: Epochs of each run; None for the published number.
        device: The device to train on.
        out: The folder of the results: ``out/<problem>/<method>.json``.
        resume: Whether to continue from the files in the folder.
        quick: Whether a few epochs are enough.
        named: Whether the methods were requested by name, so that one that cannot run is an error.
        default: Whether no methods were requested, so that those that take hours are left out.
        recipes: Names of the recipes. None means only the published one if methods are named or the problem is the
            user's own, and otherwise all recipes except those that take hours on this device.
        own: The user's own problem; None for experiments of the paper.
    """

    experiments: list[str]
    methods: list[Method]
    seeds: list[int]
    epochs: int | None
    device: torch.device
    out: Path
    resume: bool = False
    quick: bool = False
    named: bool = False
    default: bool = False
    recipes: list[str] | None = None
    own: Problem | None = None


def request(
    experiment: str | Problem,
    *,
    methods: str | None = None,
    seeds: str = "1-5",
    epochs: int | None = None,
    device: str = "auto",
    out: str | Path = "runs",
    resume: bool = False,
    quick: bool = False,
    recipe: str | None = None,
) -> Request:
    """Check the arguments before anything is run or written."""
    recipes = None if recipe is None else choose_recipes(recipe)
    specs.choose_epochs(epochs, "", quick)
    named = methods not in (None, "all")
    rows = specs.choose_methods(methods), specs.choose_seeds(seeds)
    where = epochs, choose_device(device), Path(out)
    own = _own(experiment)
    names = specs.choose_experiments(str(experiment)) if own is None else [own.name]
    return Request(names, *rows, *where, resume, quick, named, methods is None, recipes, own)


def _own(experiment: str | Problem) -> Problem | None:
    """The user's own problem, verified; None if an experiment of the paper is named."""
    if isinstance(experiment, str) and ".py:" not in experiment:
        return None
    problem = own_problem(experiment) if isinstance(experiment, str) else experiment
    if not isinstance(problem, Problem):
        remedy = "hn.problems.OwnProblem makes one of your data"
        raise DTypeError(sentence("problem", "a problem, or a name", type(problem).__name__, remedy))
    if problem.name in specs.EXPERIMENTS or not problem.name.replace("-", "").replace("_", "").isalnum():
        expected = f"letters and digits, and none of {', '.join(specs.EXPERIMENTS)}"
        raise HardNetError(sentence("name of the problem", expected, repr(problem.name)))
    problem.verify()
    return problem


def choose_device(name: str) -> torch.device:
    """The device; ``auto`` is the GPU if there is one. A device that is not available is refused."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = local_device(torch.device(name))
    except RuntimeError as error:
        raise HardNetError(sentence("--device", "auto, cpu or cuda", repr(name))) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise HardNetError(sentence("--device", "a device of this machine", repr(name), "it has no CUDA GPU; use cpu"))
    if device.type not in ("cpu", "cuda"):
        raise HardNetError(sentence("--device", "auto, cpu or cuda", repr(name), "training needs float64"))
    return device


def reproduce(asked: Request, display: Display | None = None) -> list[Path]:
    """Run everything in the request and return the paths of the result files.

    Under ``torchrun`` every process calls this, and only rank 0 writes.
    """

    def rows(shown: Display) -> list[Row]:
        return [row for name in asked.experiments for row in _rows(asked, name, shown)]

    return run_rows(rows, asked.out, asked.device, display)


def run_rows(
    made: Callable[[Display], list[Row]], out: Path, device: torch.device, display: Display | None = None
) -> list[Path]:
    """Run the rows that `made` returns, one after the other, in a folder locked against other runs."""
    with joined(device) as world, _stop_on_interrupt() as interrupted:
        shown = display if display is not None and world.rank == 0 else Silence()
        rows = made(shown)
        with sole_run(out) if world.rank == 0 else nullcontext():
            _claim_folders(rows, world)
            alone = len(rows) == 1
            return [_attempt(row, alone, shown, partial(row.run, shown, world, interrupted)) for row in rows]


def _attempt(row: Row, alone: bool, display: Display, run: Callable[[], Path]) -> Path:
    """Run a row; if one of several fails with a HardNetError, record that in its file and continue with the rest."""
    try:
        return run()
    except (InterruptedRunError, FileError):
        raise
    except HardNetError as error:
        if alone:
            raise
        display.note(f"{row.name} {row.method.name}: given up, {error}")
        return row.give_up(error)


def _rows(asked: Request, name: str, display: Display) -> list[Row]:
    """One row per recipe and method that can express the problem; the display notes why others are left out."""
    if asked.own is None and name not in PROBLEMS:
        epochs = specs.choose_epochs(asked.epochs, name, asked.quick)
        return [Row(name, None, specs.all_methods()["aff"], asked.seeds, epochs, asked.out / name, *_how(asked))]
    problem = (asked.own or PROBLEMS[name]()).to(asked.device)
    usual = [PUBLISHED] if asked.named or asked.own is not None else RECIPES
    found = (recipe_of(name, recipe) for recipe in asked.recipes or usual)
    return [row for recipe in found for row in _rows_of(asked, problem, recipe, display)]


def _rows_of(asked: Request, problem: Problem, recipe: Recipe, display: Display) -> list[Row]:
    """The rows of one recipe."""
    name, rows = problem.name, []
    epochs = specs.choose_epochs(asked.epochs, name, asked.quick, recipe.epochs)
    folder = asked.out / name if recipe is AS_PUBLISHED else asked.out / recipe.name / name
    known = specs.all_methods()
    own = asked.methods if asked.named or recipe.methods is None else [known[method] for method in recipe.methods]
    for method in own:
        slow = _takes_hours(asked, problem, recipe, method)
        reason = slow or specs.refusal(method, problem)
        if reason is None:
            rows.append(Row(name, problem, method, asked.seeds, epochs, folder, *_how(asked), recipe))
        elif not slow and asked.named and len(asked.experiments) == 1:
            raise HardNetError(f"{name}: {reason}")
        else:
            display.note(f"{name} {method.name}: left out, {reason}")
    return rows


def _how(asked: Request) -> tuple[bool, torch.device]:
    return asked.resume, asked.device


def _takes_hours(asked: Request, problem: Problem, recipe: Recipe, method: Method) -> str | None:
    """Why a row that was not requested by name is left out; None if it is run."""
    if asked.default and asked.own is None and recipe is AS_PUBLISHED and problem.name not in method.tables:
        return "it takes hours here; ask for it with --methods"
    if asked.recipes is None and recipe.needs_gpu and asked.device.type == "cpu":
        return f"its {recipe.name} recipe takes hours on a CPU; ask for it with --recipe"
    return None


def _claim_folders(rows: list[Row], world: World) -> None:
    """Refuse folders that contain another run before anything is written; then write this run's description."""
    for row in rows:
        _refuse_other_run(row)
    world.wait()
    for described, row in {row.described: row for row in rows}.items():
        if world.rank == 0:
            write_json(described, row.identity)
    world.wait()


def _refuse_other_run(row: Row) -> None:
    described = row.described
    if row.folder.exists() and not row.folder.is_dir():
        raise FileError(f"{row.folder}: a file stands where the results should go; choose another --out")
    if described.exists():
        held = read_json(described)
        if held != row.identity:
            raise FileError(f"{row.folder}: holds another run ({held}); choose another --out")
    elif not row.prefix and row.folder.exists() and any(row.folder.iterdir()):  # with a prefix, folders are shared
        raise FileError(f"{row.folder}: holds files of something else; choose another --out")
    if not row.resume and (row.result.exists() or row.checkpoint.exists()):
        raise FileError(f"{row.folder}: holds a run of '{row.method.name}'; use --resume or another --out")


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C stop the run after the current epoch; a second Ctrl-C stops it immediately."""
    asked: list[bool] = []

    def remember(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    try:
        before = signal.signal(signal.SIGINT, remember)
    except ValueError:  # not in the main thread: handlers cannot be set, and Ctrl-C does not arrive here
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
