"""save / load: a folder with one self-describing safetensors file; never a pickle.

The header of ``model.safetensors`` contains method, options, leak, and the structure of the constraint, protected
together with the numbers by a digest. The file is replaced atomically, so that at every moment either the old or the
new model is complete. ``model.json`` is a copy of the header for people; a save interrupted between the two files
leaves the older copy.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hardnet.errors import FileError, FileWarning, HardNetError, OptionError, sentence
from hardnet.files import (
    DIGEST,
    UNREADABLE,
    digest,
    has_header,
    read_tensors,
    require_keys,
    write_atomically,
    write_tensors,
)
from hardnet.layers.identity import differences, plain
from hardnet.layers.table import LAYERS
from hardnet.model import HardNet
from hardnet.modes import widen
from hardnet.sets.base import ConstraintSet
from hardnet.sets.intersection import Intersection
from hardnet.sets.union import Union

# A set as plain data: its class and where each argument comes from, so that a file can be checked against it.


def describe(constraint: ConstraintSet) -> dict[str, Any]:
    """The structure of a set as JSON data; the values of its constants are not part of it."""
    if isinstance(constraint, Intersection | Union):
        members = constraint.parts if isinstance(constraint, Intersection) else constraint.pieces
        name = type(constraint).__name__
        return {"type": name, "members": [describe(part) for part in members], "name": constraint.name}
    names = _argument_names(type(constraint))
    arguments = {name: _describe_argument(constraint, stored) for name, stored in names.items()}
    return {"type": type(constraint).__name__, "arguments": arguments}


def same_structure(saved: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether two descriptions are of one set, as far as its structure tells.

    How a function or a set is called does not matter, nor that an argument was left out which did not exist yet.
    """
    return _essence(saved) == _essence(given)


def function_names(description: Any) -> list[str]:
    """The arguments that are functions, of a set and its members: code, which a file does not hold."""
    if isinstance(description, list):
        return [name for part in description for name in function_names(part)]
    if not isinstance(description, dict):
        return []
    own = [name for name, source in description.items() if isinstance(source, dict) and source.keys() == {"function"}]
    return own + [name for part in description.values() for name in function_names(part)]


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> ConstraintSet:
    """A constant set from its description and its tensors (named as in its state dict)."""
    joined = {"Intersection": Intersection, "Union": Union}.get(description["type"])
    if joined is not None:
        members = enumerate(description["members"])
        parts = [rebuild(member, _below(tensors, f"members.{i}.")) for i, member in members]
        return joined(parts, name=description.get("name"))
    kind = _kinds().get(description["type"])
    if kind is None:
        raise FileError(f"the file holds a set of type {description['type']!r}; pass it as constraint=")
    stored = _argument_names(kind)
    arguments = {
        name: _rebuild_argument(name, source, stored[name], tensors)
        for name, source in description["arguments"].items()
    }
    return kind(**arguments)


def _essence(description: Any) -> Any:
    """A description without what people call things, and without arguments that were not given."""
    if isinstance(description, list):
        return [_essence(part) for part in description]
    if not isinstance(description, dict):
        return description
    if description.keys() == {"function"}:
        return "function"
    kept = {key: _essence(value) for key, value in description.items() if key != "name"}
    return {key: value for key, value in kept.items() if value != {"value": None}}


def _describe_argument(constraint: ConstraintSet, stored: str | tuple[str, ...]) -> Any:
    """How one argument was given: a constant, a function or module (by name), a plain value, or not at all."""
    if isinstance(stored, tuple):
        return {"tuple": [_describe_argument(constraint, part) for part in stored]}
    if stored in constraint._functions:
        function = constraint._functions[stored]
        return {"function": getattr(function, "__qualname__", type(function).__name__)}
    value = getattr(constraint, stored, None)
    if isinstance(value, ConstraintSet):
        return {"set": describe(value)}
    if isinstance(value, nn.Parameter):
        return {"parameter": list(value.shape)}
    if isinstance(value, Tensor):
        return {"constant": list(value.shape)}
    if isinstance(value, nn.Module):
        return {"module": type(value).__name__}
    return {"function": type(value).__name__} if callable(value) else {"value": value}


def _rebuild_argument(
    name: str, source: dict[str, Any], stored: str | tuple[str, ...], tensors: dict[str, Tensor]
) -> Any:
    """One constructor argument from the file; functions and modules are code, which a file does not hold."""
    if isinstance(stored, tuple):
        parts = zip(source["tuple"], stored, strict=True)
        return tuple(_rebuild_argument(name, part, own, tensors) for part, own in parts)
    if "constant" in source:
        return tensors[stored]
    if "parameter" in source:
        return nn.Parameter(tensors[stored])
    if "set" in source:
        return rebuild(source["set"], _below(tensors, f"{stored}."))
    if "value" in source:
        return source["value"]
    raise FileError(
        f"the saved constraint's '{name}' depends on x; pass the set as constraint=, or the whole HardNet as net"
    )


def _argument_names(kind: type[ConstraintSet]) -> dict[str, str | tuple[str, ...]]:
    """Constructor argument -> attribute, or those of a tuple; a class may rename some in `stored_as`, or split them."""
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    return {name: kind.split.get(name, kind.stored_as.get(name, name)) for name in names}


def _kinds() -> dict[str, type[ConstraintSet]]:
    """Every set class that is loaded, by name: hardnet's own and the user's."""
    found: dict[str, type[ConstraintSet]] = {}
    pending = [ConstraintSet]
    while pending:
        for kind in pending.pop().__subclasses__():
            found.setdefault(kind.__name__, kind)
            pending.append(kind)
    return found


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, with the prefix taken off."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


# What a set with functions of x is known by in a file: the numbers of C(x) at an example, and what they allow.


FINGERPRINT_ROUNDINGS = 4096
"""How many roundings two evaluations of the same functions may differ by, relative to a number itself."""
LEAST = 16
"""The same relative to the largest number of their row, for numbers that are what is left of larger ones."""
PROBES = (0.0, 1.0, -1.0, 30.0)
"""Sizes of the points at which violations are compared: functions of y are in no number of the set."""


def fingerprint(constraint: ConstraintSet, x: Any, like: Tensor) -> dict[str, Tensor]:
    """The numbers of C(x) by place, and the violations of a few fixed points beside them.

    Args:
        constraint: The set.
        x: The example input.
        like: Gives batch, n, dtype and device, ``(*batch, n)``.
    """
    with torch.no_grad():
        numbers = constraint.numbers(x, like)
        wave = torch.cos(torch.arange(like.shape[-1], dtype=torch.float64) + 1).to(like)
        points = [(size * wave).expand_as(like) for size in PROBES]
        violations = torch.stack([constraint.residual(numbers, y) for y in points])
    named = {f"numbers.{place}": number for place, number in enumerate(_leaves(numbers))}
    return {name: value.detach().clone().contiguous() for name, value in {**named, "violations": violations}.items()}


def same(saved: Tensor, now: Tensor) -> bool:
    """Whether two evaluations agree to `FINGERPRINT_ROUNDINGS` of their dtype, infinities and NaN in their places."""
    there, here = (value.detach().cpu().double() for value in (saved, now))
    if there.shape != here.shape:
        return False
    finite = there.isfinite() & here.isfinite()
    rounding = torch.finfo(now.dtype).eps if now.is_floating_point() else 0.0
    size = torch.where(finite, torch.maximum(here.abs(), there.abs()), 0)
    largest = size.amax(-1, keepdim=True) if size.dim() and size.numel() else size
    close = (there - here).abs() <= rounding * torch.maximum(FINGERPRINT_ROUNDINGS * size, LEAST * largest)
    return bool((close | (~finite & ((there == here) | (there.isnan() & here.isnan())))).all())


def flatten(x: Any, name: str) -> tuple[Any, dict[str, Tensor]]:
    """An input of tensors in tuples, lists and dicts, as its structure in JSON data and its tensors by name."""
    if isinstance(x, Tensor):
        return "tensor", {name: x.detach()}
    if x is None or isinstance(x, (bool, int, float, str)):
        return {"value": x}, {}
    if not isinstance(x, (tuple, list, dict)):
        expected = "a tensor, or tuples, lists and dicts of tensors"
        raise OptionError(sentence("example", expected, type(x).__name__))
    kind = next(kind for kind in (dict, list, tuple) if isinstance(x, kind))
    pairs = x.items() if isinstance(x, dict) else enumerate(x)
    parts = {str(key): flatten(value, f"{name}.{key}") for key, value in pairs}
    leaves = {place: leaf for _, own in parts.values() for place, leaf in own.items()}
    return {kind.__name__: {key: shape for key, (shape, _) in parts.items()}}, leaves


def unflatten(shape: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The input again; files without a structure hold one tensor."""
    if shape is None or shape == "tensor":
        return tensors[name]
    ((kind, parts),) = shape.items()
    if kind == "value":
        return parts
    values = {key: unflatten(part, f"{name}.{key}", tensors) for key, part in parts.items()}
    return values if kind == "dict" else list(values.values()) if kind == "list" else tuple(values.values())


def _leaves(numbers: Any) -> list[Tensor]:
    """The tensors of nested tuples, in order; absent bounds are left out."""
    if isinstance(numbers, Tensor):
        return [numbers]
    return [leaf for part in numbers for leaf in _leaves(part)] if isinstance(numbers, tuple) else []


FORMAT, FORMAT_1 = 2, 1
"""The format that is written, and that of version 0.1, whose description is only in model.json, without a digest."""
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
EXAMPLE, INPUT = "example.", "example.x"
"""Prefix of the tensors with the example input and the set's numbers there, and name of the input."""
ENTRIES = {"format": int, "method": str, "options": dict, "leak": int | float, "constraint": dict}


def save(model: HardNet, path: str | Path, *, example: Any = None) -> None:
    """Save a model to the folder `path`: weights, method, options, and a description of its constraint.

    Args:
        model: The model.
        path: The folder; a model in it is replaced atomically, a folder with other files is refused.
        example: An input x, as the network takes it. A set with functions of x needs one: a file does not contain
            code, so the set is identified by its numbers at the example, and loading with functions that give other
            numbers there is refused.
    """
    if not isinstance(model, HardNet):
        raise OptionError(sentence("model", "a HardNet", type(model).__name__))
    code = [*function_names(describe(model.constraint)), *_code_options(plain(model.layer.options))]
    if code and example is None:
        expected = (
            f"an input x, since '{code[0]}' is a function, which a file can only know by its numbers at an example"
        )
        raise OptionError(sentence("example", expected, None, "pass hn.save(model, path, example=x)"))
    folder = Path(path)
    _require_model_folder(folder)
    tensors = dict(model.state_dict())
    header = _header(model)
    if example is not None:
        shape, leaves = flatten(example, INPUT)
        header["example"] = shape
        tensors |= leaves | _at_example(model, example)
    sealed = write_tensors(folder / WEIGHTS, tensors, header)
    write_atomically(folder / DESCRIPTION, (json.dumps(sealed, indent=2) + "\n").encode())


def load(path: str | Path, net: nn.Module, constraint: ConstraintSet | None = None) -> HardNet:
    """Load a model from the folder that `save` wrote.

    Args:
        path: The folder.
        net: A network of the saved architecture and dtype, or a whole `HardNet`; its weights are overwritten. A
            `HardNet` with another method, options, dtype or constraint is refused with an error that names what
            differs, and keeps its weights.
        constraint: The set. A constant set is rebuilt from the file; one with functions of x or learned numbers must
            be passed again, and is refused if it is not the one saved.
    """
    folder = Path(path)
    header, tensors = _read(folder)
    model = net if isinstance(net, HardNet) else _assemble(net, constraint, header, tensors, folder)
    if isinstance(net, HardNet) and constraint is not None and constraint is not net.constraint:
        raise OptionError(sentence("constraint", "none beside a HardNet, which has its own", type(constraint).__name__))
    _require_same_layer(model, header, folder)
    if not same_structure(header["constraint"], describe(model.constraint)):
        saved, given = header["constraint"], describe(model.constraint)
        raise FileError(f"{path}: the constraint is not the one saved; saved {saved}, given {given}")
    weights = {name: value for name, value in tensors.items() if not name.startswith(EXAMPLE)}
    _require_same_dtypes(model, weights, folder)
    with _restored_when_refused(model):
        _load_weights(model, weights, folder)
        _require_same_numbers(model, header, tensors, folder)
    return model


def _header(model: HardNet) -> dict[str, Any]:
    """The description of a model in the file, besides its numbers."""
    return {
        "format": FORMAT,
        "method": model.method,
        "options": plain(model.layer.options),
        "leak": model.leak,
        "dtype": str(next((p.dtype for p in model.parameters()), torch.float32)),
        "constraint": describe(model.constraint),
    }


def _assemble(
    net: nn.Module, constraint: ConstraintSet | None, header: dict[str, Any], tensors: dict[str, Tensor], folder: Path
) -> HardNet:
    """Combine the network with the given set, or with the one that the file describes."""
    prefix = "layer.constraint."
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    layer = LAYERS.get(header["method"])
    if layer is None:
        remedy = "register it with hn.register(LayerClass) before loading"
        raise FileError(f"{folder}: saved with method {header['method']!r}, which this program lacks; {remedy}")
    code = _code_options(header["options"])
    if code:
        remedy = "pass as net a whole HardNet that was built with it"
        raise FileError(
            f"{folder}: saved with a function as its option '{code[0]}', which a file does not hold; {remedy}"
        )
    try:
        constraint = rebuild(header["constraint"], own) if constraint is None else constraint
        options = layer.Options.renamed(header["options"])
        return HardNet(net, constraint, layer(constraint, **options), leak=header["leak"])
    except FileError as error:
        raise FileError(f"{folder}: {error}") from error
    except (HardNetError, KeyError, TypeError, AttributeError, ValueError) as error:
        kind = "" if isinstance(error, HardNetError) else f"{type(error).__name__}: "
        raise FileError(f"{folder}: the saved model cannot be built again; {kind}{error}") from error


def _code_options(options: dict[str, Any]) -> list[str]:
    """The options that were functions or modules, of which a file has only the kind: ``<function>``."""
    return [name for name, value in options.items() if isinstance(value, str) and value.startswith("<")]


def _require_same_layer(model: HardNet, header: dict[str, Any], folder: Path) -> None:
    """Refuse a model with another method, other options or another leak; files of 0.1 lack some options."""
    known = header["options"] if header["format"] == FORMAT else plain(model.layer.options)
    wrong = differences(header["method"], known, model.method, model.layer.options)
    if header["leak"] != model.leak:
        wrong.append(f"leak saved {header['leak']}, given {model.leak}")
    if wrong:
        raise FileError(f"{folder}: the model is not the one saved; {'; '.join(wrong)}")


def _require_same_dtypes(model: HardNet, weights: dict[str, Tensor], folder: Path) -> None:
    """Refuse a float32 model for a float64 file and vice versa: torch would round silently."""
    for name, own in model.state_dict().items():
        saved = weights.get(name)
        if saved is not None and saved.dtype != own.dtype and not name.endswith("_extra_state"):
            remedy = f"call .to({saved.dtype}) on the network or set before loading, and .to({own.dtype}) on what comes"
            raise FileError(f"{folder}: '{name}' is {saved.dtype} in the file and {own.dtype} here; {remedy}")


@contextmanager
def _restored_when_refused(model: HardNet) -> Iterator[None]:
    """Restore the model's numbers if the block raises: torch copies what fits before it reports what does not.

    Learned numbers of a set can only be compared once the saved weights are loaded, so it is not enough to compare
    first.
    """
    own = {name: value for name, value in model.state_dict().items() if not name.endswith("_extra_state")}
    before = {name: value.clone() for name, value in own.items() if not is_lazy(value)}
    try:
        yield
    except BaseException:  # also for Ctrl-C, which must not leave half of a file in the network
        with torch.no_grad():
            for name, value in before.items():
                own[name].copy_(value)
        model.layer.refresh()
        raise


def _load_weights(model: HardNet, weights: dict[str, Tensor], folder: Path) -> None:
    """Load the state dict; errors contain torch's own account of what does not fit."""
    try:
        model.load_state_dict(weights)
    except FileError as error:
        raise FileError(f"{folder}: the constraint is not the one saved; {error}") from error
    except RuntimeError as error:
        raise FileError(f"{folder}: the network is not the one saved; {error}") from error


def _require_same_numbers(model: HardNet, header: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    """Refuse a set or metric whose functions of x give other numbers at the saved example."""
    saved = {name: value for name, value in tensors.items() if name.startswith(EXAMPLE)}
    if not saved:
        if function_names(header["constraint"]):
            text = "the file holds no example, so its functions of x could not be compared with those given"
            warnings.warn(f"{folder}: {text}", FileWarning, stacklevel=3)
        return
    device = next((number.device for number in (*model.parameters(), *model.buffers())), None)
    try:
        example = unflatten(header.get("example"), INPUT, {name: value.to(device) for name, value in saved.items()})
        now = _at_example(model, example)
    except HardNetError as error:
        raise FileError(f"{folder}: the constraint is not the one saved; at the saved example, {error}") from error
    for name, value in now.items():
        if name in saved and not same(saved[name], value):
            what = "metric" if name == f"{EXAMPLE}metric" else "constraint"
            raise FileError(f"{folder}: the {what} is not the one saved; it gives other numbers at the saved example")


def _at_example(model: HardNet, example: Any) -> dict[str, Tensor]:
    """The fingerprint of C(example), by the names used in the file."""
    with torch.no_grad(), _evaluating(model):
        raw = model(example, enforce=False)
        n = model.constraint.dim or model.layer(raw, example).shape[-1]
        like = widen(raw)  # half precision is enforced in float32
        found = fingerprint(model.constraint, example, like.new_zeros(*like.shape[:-1], n))
        found |= model.layer.code_at(like, example)
    return {f"{EXAMPLE}{name}": value for name, value in found.items()}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block: saving must not change the statistics of batch normalization."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _require_model_folder(folder: Path) -> None:
    """Refuse a folder with other files; hidden files, such as an interrupted save leaves, do not count."""
    if not folder.is_dir() or (folder / DESCRIPTION).is_file() or has_header(folder / WEIGHTS):
        return
    if any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise FileError(f"{folder}: exists and is not a saved model; choose another path")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a saved model, checked."""
    copied = _read_copy(folder / DESCRIPTION)
    if copied is None and not (folder / WEIGHTS).is_file():
        raise FileError(f"{folder}: not a saved model; it has no {WEIGHTS}")
    header, tensors = read_tensors(folder / WEIGHTS, "not a safetensors file")
    if header is None:
        if copied is None or copied["format"] != FORMAT_1:
            raise FileError(f"{folder / WEIGHTS}: not a saved model; it does not say what it belongs to")
        return copied, tensors
    require_keys(header, ENTRIES | {DIGEST: str}, folder / WEIGHTS)
    if header["format"] != FORMAT:
        raise FileError(f"{folder}: expected format {FORMAT} of a saved model, got {header['format']!r}")
    if header[DIGEST] != digest(tensors, header):
        raise FileError(f"{folder / WEIGHTS}: corrupt, its numbers do not match their digest")
    if copied is not None and copied.get(DIGEST) == header[DIGEST] and copied != header:
        raise FileError(f"{folder / DESCRIPTION}: was changed; it does not say what {WEIGHTS} says")
    return header, tensors


def _read_copy(path: Path) -> dict[str, Any] | None:
    """The description in model.json; None if there is none."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise FileError(f"{path}: not a saved model; {error}") from error
    if isinstance(content, dict) and content.get("format") not in (FORMAT, FORMAT_1):
        raise FileError(f"{path}: expected format {FORMAT} of a saved model, got {content.get('format')!r}")
    require_keys(content, ENTRIES, path)
    return content
