"""The arguments of a set: each is a constant, a function of x, or learned, and is checked by one rule for shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from hardnet.errors import (
    NEGATIVE,
    NO_LOWER_BOUND,
    NO_UPPER_BOUND,
    NOT_A_NUMBER,
    NOT_FINITE,
    NOT_POSITIVE,
    Defect,
    DTypeError,
    FileError,
    ShapeError,
    StateError,
    UnsupportedSetError,
    sentence,
)
from hardnet.modes import HALF, working
from hardnet.shapes import Core, fit, require_float, require_like, spell

Name = str | Sequence[str] | None
"""What errors and certificates call a set, or a name for each of its rows."""

# The constants of a set and state dicts: a load fills what the meta device left empty, and changes nothing else.


class Constants(nn.Module):
    """A module whose persistent buffers that ask for no gradient are constants: what is allowed is code, not weights.

    They stay in the state dict, so that a checkpoint says what it was trained on, and a load compares them with it.
    """

    empty: frozenset[str] = frozenset()
    """Constants that came from the meta device and hold nothing yet; the next load fills them."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        meta = [name for name, value in self._buffers.items() if value is not None and value.is_meta]
        super()._apply(fn, recurse)
        self.empty = self.empty | {name for name in meta if not self.get_buffer(name).is_meta}
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any) -> None:
        """Refuse other constants, all of them by name, before anything is loaded; then keep the bits of our own."""
        saved = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        texts = {path: differ(saved[path], own) for path, own in _constants_below(self) if path in saved}
        wrong = [f"its '{path}' {text}" for path, text in texts.items() if text]
        if wrong:
            remedy = "build the set that it was trained with, or load the weights of the network alone"
            raise StateError(f"the checkpoint belongs to another set: {'; '.join(wrong)}; {remedy}")
        for name, own in self.constants():
            if f"{prefix}{name}" in state_dict:
                state_dict[f"{prefix}{name}"] = own  # a copy would round it to the checkpoint's dtype
        filled = {name for name in self.empty if f"{prefix}{name}" in state_dict}
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        self.empty = self.empty - filled

    def constants(self) -> Iterator[tuple[str, Tensor]]:
        """Name and value of every constant that holds numbers."""
        for name, value in self._buffers.items():
            skipped = name in self._non_persistent_buffers_set or name in self.empty
            if value is not None and not (skipped or value.is_meta or value.requires_grad):
                yield name, value

    def require_filled(self, name: str) -> None:
        """Refuse to read a constant that holds nothing yet."""
        if name in self.empty:
            got = "memory that came from the meta device and was never filled"
            raise FileError(sentence(name, "a constant with numbers in it", got, "load a state dict first"))


COMPUTED = 16
"""Roundings of its largest number by which a constant may differ where it was computed again."""


def differ(saved: Tensor, own: Tensor) -> str | None:
    """How two constants differ, in words; None where they are the same as far as the shorter dtype tells.

    A product such as F'F has other last bits on another make of CPU, so that `COMPUTED` roundings are the same.
    """
    if saved.shape != own.shape:
        return f"has shape {tuple(saved.shape)} there and {tuple(own.shape)} here"
    if not own.is_floating_point() and saved.dtype == own.dtype:
        return None if torch.equal(saved.cpu(), own.cpu()) else "has other indices there"
    if not saved.is_floating_point():
        return f"is of {saved.dtype} there and of {own.dtype} here"
    dtype = max(saved.dtype, own.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    there, here = (value.detach().to(device="cpu", dtype=dtype) for value in (saved, own))
    known = torch.where(here.isfinite(), here, 0.0).double().abs()
    rounding = COMPUTED * torch.finfo(dtype).eps * (known.amax() if known.numel() else known.sum())
    if bool(((there == here) | ((there.double() - here.double()).abs() <= rounding)).all()):
        return None
    return f"differs by up to {(there.double() - here.double()).abs().nan_to_num(torch.inf).max():.3g}"


def _constants_below(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The constants of a module and of everything below it, by their paths."""
    for path, part in module.named_modules():
        for name, own in part.constants() if isinstance(part, Constants) else ():
            yield (f"{path}.{name}" if path else name), own


class UnknownError(Exception):
    """A number that only an input or training knows."""


class Unknown:
    """In place of an input: vectors and numbers that only x knows are NaN, a matrix is an `UnknownError`.

    What is learned, or differs between samples, is as unknown, but for a learned matrix where that is asked for.
    """

    def __init__(self, learned: bool) -> None:
        self.learned = learned

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of an input only a real one knows."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownError

    def __getitem__(self, key: Any) -> Any:
        """The same for its entries."""
        raise UnknownError

    def value(self, core: Core, kept: Tensor | None, sizes: dict[str, int], like: Tensor) -> Tensor:
        """The argument of this core; `kept` where it is learned."""
        if kept is not None and self.learned and kept.dim() == len(core) == 2:
            return kept.detach().to(like)
        shape = [sizes.get(str(size), size) for size in core]
        if len(core) > 1 or not all(isinstance(size, int) for size in shape):
            raise UnknownError
        return like.new_full(shape, torch.nan)  # pyright: ignore[reportArgumentType, reportCallIssue]


Number = Tensor | float | Sequence[Any] | Callable[[Any], Tensor] | nn.Module
"""What every argument of a set may be: a constant, a function of x, or a module (learned) of x."""

Kind = Literal["number", "finite", "lower", "upper", "size", "positive"]
"""What a constant must be: no NaN; finite; a lower or an upper bound, which may be absent; finite and >= 0; or > 0."""

SOUND: dict[Kind, tuple[Defect, Callable[[Tensor], Tensor]]] = {
    "number": (NOT_A_NUMBER, lambda value: ~value.isnan()),
    "finite": (NOT_FINITE, torch.isfinite),
    "lower": (NO_LOWER_BOUND, lambda value: value < torch.inf),
    "upper": (NO_UPPER_BOUND, lambda value: value > -torch.inf),
    "size": (NEGATIVE, lambda value: value.isfinite() & (value >= 0)),
    "positive": (NOT_POSITIVE, lambda value: value.isfinite() & (value > 0)),
}
"""For each kind of constant its defect, and which entries are sound."""


class Arguments(Constants):
    """Arguments by name, each with its core shape: ``A ("m", "n")``, ``radius ()``.

    A constant has its core shape, or raw's batch in front of it; a number stands for every entry of a vector. A
    function or module of x returns ``(*batch, *core)``, where a batch dimension of 1 spreads; where the core is a
    number, ``(*batch, 1)`` will do as well. The letter n stands for the outputs.
    """

    empty: frozenset[str]
    stored_as: ClassVar[dict[str, str]] = {}
    """Constructor arguments that are stored under another attribute."""
    split: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Constructor arguments that are tuples, each entry stored under an attribute of its own."""
    record: ClassVar[Any] = None
    """The NamedTuple of the set's numbers, whose fields are the names of its arguments: `numbers` fills it."""
    repeated: ClassVar[dict[str, str]] = {}
    """Fields of the record that are another field once more, as both bounds of an equality are."""
    nonzero: ClassVar[dict[str, str]] = {}
    """Letters that may not stand for zero, each with what is said of one that does."""

    name: str | tuple[str, ...] | None
    """What errors and certificates call the set, whose rows are then numbered; or a name for each row."""

    def __init__(self, name: Name = None) -> None:
        super().__init__()
        rows = isinstance(name, list | tuple)
        if not all(isinstance(part, str) for part in (name if rows else [name or ""])):
            expected = "a string for the set, or a list of one for each row"
            raise DTypeError(sentence("name", expected, type(name).__name__))
        self.name = name if name is None or isinstance(name, str) else tuple(name)
        self._functions: dict[str, Callable[[Any], Tensor]] = {}
        self._constants: list[str] = []
        self._cores: dict[str, Core] = {}
        self._sizes: dict[str, int] = {}
        self._written: dict[str, Tensor] = {}

    def take(self, name: str, value: Number | None, core: Core | None = None, kind: Kind = "number") -> None:
        """Keep one argument under `name`: a buffer (constant), a parameter or module (learned), or a function.

        A tensor is copied and keeps its dtype; a list, an array or a number is kept in float64 and follows the network.
        A tensor that asks for a gradient is learned like a parameter, and kept itself.

        Args:
            name: The attribute that holds it.
            value: What the user gave; None for nothing.
            core: Its shape for one sample, in letters and numbers; None leaves the shape unchecked. What a constant
                tells of the letters must agree with the arguments taken before.
            kind: What the entries of a constant must be; they are judged here, once.
        """
        if core is not None:
            self._cores[name] = core
        if isinstance(value, (nn.Module, nn.Parameter)) or value is None:
            setattr(self, name, value)
        elif callable(value):
            self._functions[name] = value
        else:
            self._constants.append(name)
            constant = _as_constant(self._spoken(name), value)
            if not isinstance(value, Tensor):
                self._written[name] = constant
            self.register_buffer(name, constant)
        self._learn_sizes(name)
        self._judge(name, kind)

    @property
    def dim(self) -> int | None:
        """The output dimension n, or None where only a function of x knows it."""
        return self._sizes.get("n")

    def has(self, name: str) -> bool:
        """Whether the argument was given at all."""
        return name in self._functions or name in self._constants or getattr(self, name, None) is not None

    def source(self, name: str) -> Any:
        """The argument as it was given, so that a set like this one can be built from it; None for nothing."""
        if name in self._functions:
            return self._functions[name]
        return self._written[name].tolist() if name in self._written else getattr(self, name, None)

    def fixed(self, name: str) -> Tensor | None:
        """The argument where it is a constant that asks for no gradient, else None."""
        value = self._buffers.get(name) if name in self._constants else None
        return None if value is None or value.requires_grad else value

    def known_shape(self, name: str) -> torch.Size | None:
        """The shape of an argument known at construction, else None."""
        value = None if name in self._functions else getattr(self, name, None)
        return value.shape if isinstance(value, Tensor) else None

    def numbers(self, x: Any, like: Tensor) -> Any:
        """The numbers of C(x) as the `record` of the set, None for what was not given.

        A letter of a core stands for the size that the first field with it has.

        Args:
            x: The input of the set's functions.
            like: ``(*batch, n)``, gives batch, n, dtype and device.
        """
        record, sizes, found = self.record, {"n": like.shape[-1]}, []
        if record is None:
            got = f"{type(self).__name__} with neither"
            raise UnsupportedSetError(sentence("constraint", "a set with a `record` or with `numbers` of its own", got))
        for name in record._fields:
            if not self.has(name):
                same = self.repeated.get(name)
                found.append(None if same is None else found[record._fields.index(same)])
                continue
            value, core = self.number(name, x, like, **sizes), self._cores.get(name, ())
            for letter in core:
                if letter not in sizes:  # else it was checked
                    self._measure(name, value, core, sizes)
                    break
            found.append(value)
        return record(*found)

    def _measure(self, name: str, value: Tensor, core: Core, sizes: dict[str, int]) -> None:
        """Note what the letters of a number stand for; refuse two sizes for one, or zero where that is none."""
        for letter, size in zip(core, value.shape[value.dim() - len(core) :], strict=True):
            if size == 0 and letter in self.nonzero:
                raise ShapeError(self.nonzero[str(letter)])
            if sizes.setdefault(str(letter), size) != size:
                expected = spell(("*batch", *(size if other == letter else other for other in core)))
                raise ShapeError(sentence(self._spoken(name), f"shape {expected}", tuple(value.shape)))

    def number(self, name: str, x: Any, like: Tensor, **sizes: int) -> Tensor:
        """The argument at x, with the shape that the rule asks for beside `like` ``(*batch, n)``.

        Args:
            name: The name under which it was taken.
            x: The input of the set's functions.
            like: Gives batch, n, dtype and device.
            sizes: What letters of the core other than n stand for, such as ``m=A.shape[-2]``.
        """
        kept = self._buffers.get(name)
        kept = self._parameters.get(name) if kept is None else kept
        core = self._cores.get(name)
        if type(x) is Unknown and core is not None and not self._shared(name):
            return x.value(core, kept, {**self._sizes, **sizes, "n": like.shape[-1]}, like)
        value = self._evaluate(name, x, like) if kept is None else self._followed(name, kept, like)
        if value.dtype != like.dtype or value.device != like.device or value.layout != torch.strided:
            require_like(self._spoken(name), value, like)
        if core is None:
            return value
        known = tuple([like.shape[-1] if size == "n" else sizes.get(size, size) for size in core])  # pyright: ignore[reportArgumentType, reportCallIssue]
        return self._fitted(name, value, like, known, moving=kept is None)

    def _fitted(self, name: str, value: Tensor, like: Tensor, core: Core, *, moving: bool) -> Tensor:
        """The value as `fit` has it; the shapes that need no change are let through here."""
        own, batch = value.shape, like.shape[:-1]
        front = own[: len(own) - len(core)]
        if front == batch if moving else not front:
            for size, want in zip(own[len(front) :], core, strict=False):
                if size != want and not isinstance(want, str):
                    break
            else:
                if len(own) == len(front) + len(core):
                    return value
        return fit(self._spoken(name), value, like, core, moving=moving)

    @property
    def moving(self) -> list[str]:
        """The arguments that are functions or modules of x."""
        return [name for name in self._cores if self.has(name) and self.known_shape(name) is None]

    def moved(self, x: Any) -> list[tuple[Core, Tensor]]:
        """Those of `moving` at x, each beside its core: what x tells of batch and sizes."""
        return [(self._cores[name], self._evaluate(name, x, torch.zeros(()))) for name in self.moving]

    def _shared(self, name: str) -> bool:
        """Whether an argument is one constant for all samples."""
        value, core = self.fixed(name), self._cores.get(name)
        return value is not None and (core is None or value.dim() <= len(core))

    def follow(self, like: Tensor) -> bool:
        """Move constants written as lists or numbers to the dtype and device of a network; whether any moved."""
        moved = False
        for name, exact in self._written.items():
            value = self._buffers[name]
            if value is not None and (value.dtype, value.device) != (working(like.dtype), like.device):
                self._buffers[name] = exact.to(device=like.device, dtype=working(like.dtype))
                moved = True
        return moved

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Constants that were written as lists come from their float64 values after every move: no digit is lost."""
        super()._apply(fn, recurse)
        for name, exact in self._written.items():
            moved = self.get_buffer(name)
            if not moved.is_meta:
                self._buffers[name] = exact.to(moved.device, working(moved.dtype))
        self.empty = self.empty - set(self._written)
        return self

    def _followed(self, name: str, value: Tensor, like: Tensor) -> Tensor:
        """A constant or parameter beside `like`: what was written, one number, and half precision follow its dtype."""
        if self.empty:
            self.require_filled(name)
        if value.dtype == like.dtype and value.device == like.device:
            return value
        if name in self._written:
            return self._written[name].to(like)
        if value.dim() == 0:
            return value.to(like)
        return value.to(like.dtype) if value.dtype in HALF else value

    def _judge(self, name: str, kind: Kind) -> None:
        """Refuse a constant with an entry that is not sound; what is on the meta device has none yet."""
        value = self.fixed(name)
        if value is None or value.is_meta:
            return
        defect, sound = SOUND[kind]
        bad = ~sound(value)
        if bool(bad.any()):
            first = value[bad][0].item()
            raise defect.of(self._spoken(name), None if defect is NOT_FINITE else f"{first:+}")

    def extra_repr(self) -> str:
        """The name, and for each argument its shape, its value where it is one number, or where it comes from."""
        shown = [] if self.name is None else [f"name={self.name!r}"]
        spoken = [name for name in (*self._cores, *self._constants) if self.has(name)]
        return ", ".join(shown + [f"{self._spoken(name)}={self._source(name)}" for name in dict.fromkeys(spoken)])

    def _source(self, name: str) -> str:
        """Where an argument comes from, for people."""
        if name in self._functions:
            return "function of x"
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            return f"{type(value).__name__} of x"
        learned = "learned " if isinstance(value, nn.Parameter) or value.requires_grad else ""
        return str(value.item()) if value.dim() == 0 and not value.is_meta else f"{learned}{tuple(value.shape)}"

    def _spoken(self, name: str) -> str:
        """The name by which the user knows an argument."""
        for spoken, stored in self.stored_as.items():
            if stored == name:
                return spoken
        return name

    def _evaluate(self, name: str, x: Any, like: Tensor) -> Tensor:
        """The value of a function or module at x; half precision in the dtype of `like`."""
        function = self._functions.get(name) or getattr(self, name)
        if x is None:
            owner = type(self).__name__
            raise ShapeError(sentence("x", f"an input, since '{self._spoken(name)}' of {owner} is a function of it", x))
        value = function(x)
        if not isinstance(value, Tensor):
            raise DTypeError(sentence(self._spoken(name), "a function that returns a tensor", type(value).__name__))
        return value.to(like.dtype) if value.dtype in HALF else value  # which holds it exactly

    def _learn_sizes(self, name: str) -> None:
        """Bind the letters of a core to the sizes of a known argument; refuse a shape that contradicts them."""
        shape, core = self.known_shape(name), self._cores.get(name)
        if shape is None or core is None or (not shape and len(core) == 1):  # a number for every entry tells nothing
            return
        own = shape[len(shape) - len(core) :]
        wanted = tuple(self._sizes.get(str(size), size) for size in core)
        fits = len(shape) >= len(core) and all(isinstance(w, str) or w == s for w, s in zip(wanted, own, strict=True))
        letters: dict[str, int] = {}
        for letter, size in zip(core, own, strict=False):
            fits = fits and letters.setdefault(str(letter), size) == size
        if not fits:
            expected = f"shape {spell(wanted)}" + (" or a number" if len(core) == 1 else "")
            row = len(core) == 2 and len(shape) == 1
            remedy = "for one row add .unsqueeze(0), or write [[...]]" if row else "a batch may stand in front"
            raise ShapeError(sentence(self._spoken(name), expected, tuple(shape), remedy))
        self._sizes.update({letter: size for letter, size in letters.items() if not letter.isdigit()})


def _as_constant(name: str, value: Any) -> Tensor:
    """A constant as a float tensor of its own: tensors keep their dtype; what is written in Python becomes float64."""
    if not isinstance(value, Tensor):
        return _as_double(name, value)
    require_float(name, value)
    return value if value.requires_grad else value.clone()


def _as_double(name: str, value: Any) -> Tensor:
    """A list, an array or a number in float64, on the CPU also where another device is the default."""
    try:
        return torch.as_tensor(value, dtype=torch.float64, device="cpu").clone()
    except (TypeError, ValueError, RuntimeError) as error:
        if hasattr(value, "tocsr"):  # scipy's, whose own error says nothing of use here
            remedy = "with A.tocsr(): torch.sparse_csr_tensor(A.indptr, A.indices, A.data, A.shape)"
            raise DTypeError(sentence(name, "a tensor in compressed rows", type(value).__name__, remedy)) from None
        raise DTypeError(sentence(name, "numbers", f"{type(value).__name__} ({error})")) from None


def number_leaves(numbers: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors of a set's (nested) numbers with the names of their fields; an input x is none."""
    if isinstance(numbers, Tensor) and numbers.is_floating_point() and name != "x":
        yield name, numbers
    elif isinstance(numbers, tuple):
        for own, number in zip(_fields(numbers), numbers, strict=True):
            yield from number_leaves(number, own)


def map_numbers(function: Callable[[str, Tensor], Tensor], numbers: Any, name: str = "") -> Any:
    """The numbers of a set with `function` applied to the name and value of every tensor of `number_leaves`."""
    if isinstance(numbers, Tensor) and numbers.is_floating_point() and name != "x":
        return function(name, numbers)
    if not isinstance(numbers, tuple):
        return numbers
    parts = [map_numbers(function, number, own) for own, number in zip(_fields(numbers), numbers, strict=True)]
    return type(numbers)(*parts) if hasattr(numbers, "_fields") else tuple(parts)


def _fields(numbers: tuple[Any, ...]) -> Any:
    """The names of a record's fields; empty names for a plain tuple."""
    return getattr(numbers, "_fields", [""] * len(numbers))


def to_double(numbers: Any) -> Any:
    """The numbers of a set in float64; an input x too, which functions evaluate beside y."""
    double = map_numbers(lambda _, number: number.double(), numbers)
    x = getattr(double, "x", None)
    return double._replace(x=x.double()) if isinstance(x, Tensor) and x.is_floating_point() else double
