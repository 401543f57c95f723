"""Run experiments: train every requested method on every requested problem, and write one result file for each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hardnet.errors import DTypeError, FileError, HardNetError, sentence
from hardnet.files import sole_run
from hardnet.kernels.cpu.ready import waiting
from hardnet_lab.experiments import specs
from hardnet_lab.experiments.recipes import AS_PUBLISHED, PUBLISHED, RECIPES, Recipe, choose_recipes, recipe_of
from hardnet_lab.experiments.results import read_json, write_json
from hardnet_lab.experiments.row import Row
from hardnet_lab.experiments.specs import Method
from hardnet_lab.problems import PROBLEMS, Problem
from hardnet_lab.problems.own import own_problem
from hardnet_lab.train import Display, InterruptedRunError, Silence, World, joined, local_device


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


@waiting()
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
