"""Recipes as data: how a problem is trained, the published way and the best way that we know.

A recipe names a network, an optimizer and the terms of the loss; `hardnet reproduce --recipe` runs it. The published
recipe leaves everything as the problem and the method state it.

Called by `hardnet.experiments.sections`, `hardnet.experiments.row` and others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hardnet.errors import HardNetError, sentence
from hardnet.problems import Hidden, Problem
from hardnet.train import Settings

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
"""How a setting is said; those that only concern the record are left out."""

LOOSE_WORDS = {
    "equalities": "trained behind the equalities with the other rows penalized, all enforced at the end",
    "rows": "trained behind the rows with the box penalized, all enforced at the end",
}
"""What is said of a training that enforces a part of the rows."""


@dataclass(frozen=True)
class Recipe:
    """What differs from the published training.

    Attributes:
        name: ``"published"`` or ``"best"``.
        methods: Names of the methods that it is run with unless others are asked for; None for those of the tables.
        hidden: The network; None for the problem's own.
        settings: Fields of `hardnet.train.Settings` that it sets.
        options: Options of the method's layer.
        epochs: Of a run; None for the published number.
        chosen: How its numbers were found.
        needs_gpu: Whether a CPU would take hours, so that it is run there only when it is asked for by name.
        loose: What training enforces alone, where the method's layer takes long: ``"equalities"``, in closed form, or
            ``"rows"``, all affine ones without the box. The other rows are penalized; the method enforces all of them
            in the test.
        label: What tables put behind the name of the method; by default the name of the recipe, if it is not the
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
        """What stands behind the name of the method."""
        usual = "" if self.name == PUBLISHED else f", {self.name} recipe"
        return usual if self.label is None else self.label

    def adapt(self, settings: Settings) -> Settings:
        """The published settings with those of the recipe in their place."""
        return replace(settings, **self.settings)

    def network(self, problem: Problem) -> Hidden:
        """The hidden blocks to train."""
        return self.hidden or problem.hidden

    @property
    def differs(self) -> str:
        """What is different from the published training, in words; empty where nothing is."""
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
"""For programs of 100 variables: their solution map is piecewise affine, so a linear path stands beside a network."""
PROGRAM_SETTINGS: dict[str, Any] = {
    "displacement": 0.1,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "weight_decay": 0.1,
    "batch_size": 512,
    "warm_epochs": 0,
}
"""How a network of that kind is trained."""
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
"""The best training that we know for each problem of the tables."""
RECIPES = (PUBLISHED, BEST)
GENERAL = Recipe(
    BEST,
    ("projection",),
    settings={"displacement": 0.1, "learning_rate": 1e-3, "schedule": "cosine", "clip": 2.0},
    chosen="What the recipes of the tables share; chosen for no problem in particular.",
)
"""For a problem of the reader's own."""


def choose_recipes(names: str) -> list[str]:
    """The recipes of a comma-separated list."""
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in RECIPES]
    if unknown:
        raise HardNetError(sentence("--recipe", f"some of {', '.join(RECIPES)}", ", ".join(unknown)))
    return list(dict.fromkeys(chosen))


def recipe_of(problem: str, name: str) -> Recipe:
    """The recipe of this name for a problem."""
    return AS_PUBLISHED if name == PUBLISHED else BEST_RECIPES.get(problem, GENERAL)
