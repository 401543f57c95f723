"""Training recipes as data: the published one and the best one we know for each problem.

A recipe names a network, an optimizer and the terms of the loss; `hardnet reproduce --recipe` runs it. The published
recipe leaves everything as the problem and the method define it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hardnet.errors import HardNetError, sentence
from hardnet_lab.problems import Hidden, Problem
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
