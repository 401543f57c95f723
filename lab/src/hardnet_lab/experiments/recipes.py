"""Training recipes as data: the published one and the best one we know for each problem.

A recipe names a network, an optimizer and the terms of the loss; `hardnet reproduce --recipe` runs it. The published
recipe leaves everything as the problem and the method define it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hardnet.errors import HardNetError, sentence
from hardnet.layers.auto import build_layer
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.dc3 import DC3
from hardnet.layers.soft import NoEnforcement, Soft
from hardnet.layers.table import LAYERS
from hardnet_lab.problems import PROBLEMS, Hidden, Problem
from hardnet_lab.train import Settings

PUBLISHED, BEST = "published", "best"
WORDS = {
    "learning_rate": "learning rate {}",
    "schedule": "{} decay",
    "weight_decay": "AdamW with weight decay {}",
    "displacement": "{} ‖y - raw‖² in the loss",
    "clip": "gradients cut at {} times their running mean",
    "batch_size": "batches of {}",
    "soft_weight": "penalty weight {}",
    "warm_epochs": "{} warm epochs",
}
"""How each setting is described; settings that only affect what is recorded are left out."""

LOOSE_WORDS = {
    "equalities": "trained behind the equalities with the other rows penalized, all enforced at the end",
    "rows": "trained behind the rows with the box penalized, all enforced at the end",
}
"""How training that enforces only a part of the rows is described."""


@dataclass(frozen=True)
class Recipe:
    """The differences from the published training.

    Attributes:
        name: ``"published"`` or ``"best"``.
        methods: Names of the methods to run unless others are requested; None for those of the tables.
        hidden: The network; None for the problem's own.
        settings: Fields of `hardnet_lab.train.Settings` that the recipe sets.
        options: Options of the method's layer.
        epochs: Epochs of a run; None for the published number.
        chosen: How the numbers were found.
        needs_gpu: Whether a CPU would take hours, so that the recipe runs there only if requested by name.
        loose: The part of the constraint that training enforces, where the method's layer is slow: ``"equalities"``,
            in closed form, or ``"rows"``, all affine rows without the box. The other rows are penalized; the method
            enforces all of them in the test.
        label: What tables add to the name of the method; by default the name of the recipe, unless it is the
            published one.
    """

    name: str
    methods: tuple[str, ...] | None = None
    hidden: Hidden | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    chosen: str = ""
    needs_gpu: bool = False
    loose: str | None = None
    label: str | None = None

    @property
    def behind(self) -> str:
        """The suffix that tables add to the name of the method."""
        usual = "" if self.name == PUBLISHED else f", {self.name} recipe"
        return usual if self.label is None else self.label

    def adapt(self, settings: Settings) -> Settings:
        """The published settings, overridden by those of the recipe."""
        return replace(settings, **self.settings)

    def network(self, problem: Problem) -> Hidden:
        """The hidden blocks to train."""
        return self.hidden or problem.hidden

    @property
    def differs(self) -> str:
        """The differences from the published training, in words; empty if there are none."""
        parts = [WORDS[name].format(value) for name, value in self.settings.items() if name in WORDS]
        parts += [f"{name} {value}" for name, value in self.options.items()]
        if self.loose:
            parts.append(LOOSE_WORDS[self.loose])
        if self.hidden is not None:
            parts.insert(0, _in_words(self.hidden))
        return ", ".join(parts + ([f"{self.epochs} epochs"] if self.epochs else []))


def _in_words(hidden: Hidden) -> str:
    widths = "-".join(str(size) for size in hidden.sizes)
    dropout = f", dropout {hidden.dropout}" if hidden.dropout else ""
    return f"{hidden.activation} network {widths}{' beside a linear path' if hidden.skip else ''}{dropout}"


AS_PUBLISHED = Recipe(PUBLISHED)
_STUDY = "Settings of an earlier study that compared them on test rows; no run of this table selected anything."
_PIECEWISE = Recipe(
    BEST,
    ("projection",),
    settings={"displacement": 0.1, "learning_rate": 3e-3, "schedule": "cosine", "warm_epochs": 0},
    chosen="Chosen by the error at validation points drawn as the training points were, with seeds of their own.",
)
PROGRAM_NETWORK = Hidden((2048, 2048), dropout=(0.2, 0.0), activation="silu", skip=True, kaiming=False)
"""For programs of 100 variables: their solution map is piecewise affine, so the network has a linear skip path."""
PROGRAM_SETTINGS: dict[str, Any] = {
    "displacement": 0.1,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "weight_decay": 0.1,
    "batch_size": 512,
    "warm_epochs": 0,
}
"""The training settings for such a network."""
BEST_RECIPES: dict[str, Recipe] = {
    "pwc": _PIECEWISE,
    "pwcfull": _PIECEWISE,
    "pwcbox": _PIECEWISE,
    "opt": Recipe(
        BEST,
        ("projection",),
        PROGRAM_NETWORK,
        PROGRAM_SETTINGS | {"judge_last": 1},
        epochs=100,
        chosen="Settings of an earlier study that compared them on test rows; the initial weights were chosen on "
        "validation rows of a sister program, the nonconvex one of DC3.",
        needs_gpu=True,
    ),
    "cbf": Recipe(
        BEST,
        ("projection",),
        settings={"displacement": 0.01, "learning_rate": 1e-3, "schedule": "cosine", "clip": 2.0},
        chosen=_STUDY,
    ),
}
"""The best training recipe we know for each problem of the tables."""
RECIPES = (PUBLISHED, BEST)
GENERAL = Recipe(
    BEST,
    ("projection",),
    settings={"displacement": 0.1, "learning_rate": 1e-3, "schedule": "cosine", "clip": 2.0},
    chosen="What the recipes of the tables share; chosen for no problem in particular.",
)
"""For user-defined problems."""


def choose_recipes(names: str) -> list[str]:
    """The recipes of a comma-separated list."""
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in RECIPES]
    if unknown:
        raise HardNetError(sentence("--recipe", f"some of {', '.join(RECIPES)}", ", ".join(unknown)))
    return list(dict.fromkeys(chosen))


def recipe_of(problem: str, name: str) -> Recipe:
    """The recipe with this name for a problem."""
    return AS_PUBLISHED if name == PUBLISHED else BEST_RECIPES.get(problem, GENERAL)


# Specification of the runs: the methods of the paper's tables and how each problem is trained with them.


PUBLISHED_EPOCHS = 1000
TABLES = tuple(PROBLEMS)
"""The experiments that train networks."""
EXPERIMENTS = (*TABLES, "gradient")
"""Every experiment of the paper."""

QUICK_EPOCHS = {"opt": 5, "cbf": 2}
"""Epochs of ``--quick``: enough to see every part work; 30 for all other problems."""
JUDGE_EVERY = {"cbf": 20}
"""Epochs between two evaluations on the validation set; 10 for all other problems."""
JUDGE_LAST = {"opt": 100}
"""Last epochs that are all evaluated: opt's objective varies more between epochs than between seeds."""
LARGEST_SEED, MOST_SEEDS = 2**63 - 1, 10_000
"""Largest seed of a generator, and the largest number of seeds in one range."""


@dataclass(frozen=True)
class Method:
    """One row of a table.

    Attributes:
        name: The name on the command line.
        label: The name printed in tables.
        build: Makes the layer for a problem, with the layer options of a recipe if it has any; raises a HardNetError
            if the method cannot express the problem.
        penalized: Whether the loss has the penalty on violations.
        warm: Whether the first epochs train without the layer, for problems that have warm epochs.
        captured: Whether its steps can be captured on a GPU, that is, it never reads values.
        tables: The problems on which it is run when no method is named.
    """

    name: str
    label: str
    build: Callable[..., Layer]
    penalized: bool = True
    warm: bool = False
    captured: bool = True
    tables: tuple[str, ...] = TABLES

    def settings(self, problem: Problem, epochs: int, guarantee: Guarantee = Guarantee.NONE) -> Settings:
        """The published settings; warm epochs are scaled if the number of epochs is not the published 1000."""
        warm = problem.warm_epochs * epochs // PUBLISHED_EPOCHS if self.warm else 0
        return Settings(
            epochs=epochs,
            batch_size=problem.batch_size,
            soft_weight=problem.soft_weight if self.penalized else 0.0,
            penalize_enforced=guarantee is not Guarantee.EXACT,
            warm_epochs=warm,
            judge_every=JUDGE_EVERY.get(problem.name, 10),
            judge_last=JUDGE_LAST.get(problem.name, 1),
            capture=self.captured and problem.capturable,
        )


def by_name(layer: str) -> Callable[..., Layer]:
    """A function that builds the layer of this name with its defaults, except for the given options."""
    return lambda problem, **options: build_layer(problem.constraint, layer, **options)


def published_dc3(problem: Problem) -> Layer:
    """DC3 with the settings of the published code, including its wrong sign in pwcbox."""
    given = problem.dc3
    if given is None:
        raise HardNetError("dc3: no published settings for this problem; use dc3-tuned")
    return DC3(
        problem.constraint,
        completion=given.predicted is not None,
        predicted=given.predicted,
        steps=given.steps,
        extra_steps=given.test_steps,
        step=given.step_size,
        momentum=given.momentum,
        tolerance=given.tolerance,
        published_sign=given.flipped_lower,
    )


def tuned_dc3(problem: Problem) -> Layer:
    """DC3 with the correct sign, the largest safe step ``1 / (2 sigma_max^2)`` and the best-conditioned completion."""
    given = problem.dc3
    if given is None:
        return DC3(problem.constraint, dim=problem.output_dim, momentum=0.0)
    return DC3(
        problem.constraint,
        completion=given.predicted is not None,
        steps=given.steps,
        extra_steps=given.test_steps,
        step="auto",
        momentum=0.0,
        tolerance=given.tolerance,
    )


PAPER = (
    Method("nn", "NN", lambda problem: NoEnforcement(problem.constraint), penalized=False),
    Method("soft", "Soft-Constrained", lambda problem: Soft(problem.constraint)),
    Method("dc3", "DC3", published_dc3),
    Method("dc3-tuned", "DC3 (right sign, tuned step)", tuned_dc3),
    Method("aff", "HardNet-Aff", by_name("aff"), warm=True),
    Method("projection", "HardNet-Cvx (exact projection)", by_name("projection"), warm=True),
)
"""The rows of the paper's tables, plus the corrected DC3 and the exact projection.

The projection is captured like the closed form: the few rows of cbf with a fixed program, the hundred constant rows of
opt with shared factors.
"""


def all_methods() -> dict[str, Method]:
    """Every method by name: those of the tables, then all other layers of the library with their defaults."""
    methods = {method.name: method for method in PAPER}
    for name in LAYERS:
        if name not in methods and name != "none":
            methods[name] = Method(name, name, by_name(name), warm=True, captured=False)
    return methods


def choose_methods(names: str | None) -> list[Method]:
    """The methods of a comma-separated list; those of the tables by default, every one for ``all``."""
    known = all_methods()
    if names is None:
        return list(PAPER)
    if names == "all":
        return list(known.values())
    chosen = ["nn" if name.strip() == "none" else name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise HardNetError(sentence("--methods", f"'all' or some of {', '.join(known)}", ", ".join(unknown)))
    return [known[name] for name in dict.fromkeys(chosen)]


def choose_experiments(name: str) -> list[str]:
    """One experiment, or all of them."""
    if name == "all":
        return list(EXPERIMENTS)
    if name not in EXPERIMENTS:
        expected = f"'all', one of {', '.join(EXPERIMENTS)}, or your own FILE.py:NAME"
        raise HardNetError(sentence("experiment", expected, repr(name)))
    return [name]


def choose_seeds(text: str) -> list[int]:
    """Seeds from ``1-5``, ``3`` or ``1,2,7``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise HardNetError(sentence("--seeds", "a range like 1-5 or a list like 1,2,7", repr(text)))
        begin, end = _seed(first), _seed(last or first)
        if end - begin >= MOST_SEEDS:
            raise HardNetError(sentence("--seeds", f"a range like 1-5 of at most {MOST_SEEDS} seeds", repr(text)))
        seeds += range(begin, end + 1)
    if not seeds or len(set(seeds)) < len(seeds):
        raise HardNetError(sentence("--seeds", "a range like 1-5 without repetition", repr(text)))
    return seeds


def _seed(digits: str) -> int:
    """One seed, checked for length first: generators take 64 bits, and Python's int a few thousand digits."""
    if len(digits) > 19 or int(digits) > LARGEST_SEED:
        raise HardNetError(sentence("--seeds", "a range like 1-5 of numbers below 2^63", f"{digits[:25]!r}"))
    return int(digits)


def choose_epochs(epochs: int | None, problem: str, quick: bool, usual: int | None = None) -> int:
    """The given number of epochs, or a few if `quick`, or the usual number (by default the published one)."""
    if epochs is not None and epochs < 1:
        raise HardNetError(sentence("--epochs", "at least 1", epochs))
    return epochs or (QUICK_EPOCHS.get(problem, 30) if quick else usual or PUBLISHED_EPOCHS)


def refusal(method: Method, problem: Problem) -> str | None:
    """Why a method cannot express a problem; None if it can."""
    try:
        method.build(problem)
    except HardNetError as error:
        return str(error)
    return None
