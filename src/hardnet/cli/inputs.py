"""What the command line reads from files and modules: inputs, networks and sets; `certify` a saved model."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.certificate import Certificate, check
from hardnet.errors import FileError, HardNetError, MissingExtraError, sentence
from hardnet.sets.base import ConstraintSet
from hardnet.storage import WEIGHTS, load

FAILS = (Exception, SystemExit)
"""User code may raise anything; SystemExit is included so that a user's script does not determine our exit code."""


def read_inputs(path: Path) -> Tensor:
    """Inputs x, one sample per row, from ``.safetensors`` (tensor ``x``), ``.npy`` or ``.csv`` without a header."""
    readers: dict[str, Callable[[Path], Tensor]] = {".safetensors": _tensors, ".npy": _array, ".csv": _text}
    if path.suffix not in readers:
        raise HardNetError(sentence("data", f"a file of kind {', '.join(readers)}", repr(str(path))))
    try:
        x = readers[path.suffix](path)
    except HardNetError:
        raise
    except Exception as error:  # the readers of other packages raise many kinds of errors on a damaged file
        hint = " (a header line is not read: leave it out)" if "could not convert string" in str(error) else ""
        raise FileError(f"{path}: not readable as inputs; {error}{hint}") from error
    if x.is_complex() or x.dtype == torch.bool:
        raise FileError(f"{path}: expected real numbers, got {x.dtype}")
    if x.dim() == 0 or x.numel() == 0:
        raise FileError(f"{path}: holds no samples, its shape is {tuple(x.shape)}")
    return x


def build(name: str) -> nn.Module:
    """The network built by ``module:function`` or ``FILE.py:NAME``; modules in the working directory are found."""
    module, colon, function = name.partition(":")
    if not colon:
        raise HardNetError(sentence("--net", "module:function or FILE.py:NAME", repr(name)))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        maker = object_of_file(name) if module.endswith(".py") else getattr(import_module(module), function)
        network = maker if isinstance(maker, nn.Module) else maker()
    except HardNetError as error:
        raise HardNetError(f"--net: {name} cannot be called; {error}") from error
    except FAILS as error:
        raise HardNetError(f"--net: {name} cannot be called; {type(error).__name__}: {error}") from error
    if isinstance(network, ConstraintSet):
        remedy = "the file of the model has the set; hardnet explain shows a set"
        raise HardNetError(sentence("--net", "the network, or a function that returns it", f"the set {name}", remedy))
    if not isinstance(network, nn.Module):
        raise HardNetError(sentence("--net", "a function that returns a module", type(network).__name__))
    return network


def object_of_file(given: str) -> Any:
    """The object that ``path/to/file.py:NAME`` names, after running the file; any failure is a one-line error."""
    path, colon, name = given.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise HardNetError(sentence("file", "path/to/file.py:NAME", repr(given)))
    spec = spec_from_file_location(f"hardnet_file_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise FileError(f"{path}: no such file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # so that its classes can be copied
    beside = str(Path(path).resolve().parent)
    sys.path.insert(0, beside)  # as `python FILE.py` does, so that it finds its neighbors
    try:
        spec.loader.exec_module(module)
    except FAILS as error:
        raise HardNetError(f"{path}: cannot be run; {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(beside)
    if not hasattr(module, name):
        raise HardNetError(sentence(path, f"to define {name}", ", ".join(n for n in vars(module) if n[0] != "_")))
    return getattr(module, name)


def find_set(given: str) -> ConstraintSet:
    """The set that ``path/to/file.py:NAME`` names: a set, what has one (a model, a problem), or what makes one."""
    found = object_of_file(given)
    try:
        found = found() if callable(found) and not isinstance(found, nn.Module) else found
    except FAILS as error:
        raise HardNetError(f"{given}: cannot be built; {type(error).__name__}: {error}") from error
    of = getattr(found, "constraint", found)
    if not isinstance(of, ConstraintSet):
        raise HardNetError(sentence(given, "a set, a HardNet, a Problem, or what makes one", type(found).__name__))
    return of


def certify(folder: Path, data: Path, net: str, tolerance: float | None = None) -> Certificate:
    """The certificate of a saved model on the inputs of a file; any failure is raised as a HardNetError."""
    model, x = load(folder, build(net)).eval(), read_inputs(data)
    try:
        with torch.no_grad():
            x = x.to(next(model.parameters(), x.double()))
            return check(model.constraint, model(x), x, tolerance=tolerance)
    except HardNetError:
        raise
    except FAILS as error:  # the network and the functions of x are user code
        raise HardNetError(f"{data}: could not be judged; {type(error).__name__}: {error}") from error


def enforced(
    folder: Path, table: Path, out: Path, names: tuple[str, str | None, str, str], shards: str, **how: Any
) -> Any:
    """The counts of `hardnet enforce`; any failure is raised as a HardNetError.

    Args:
        folder: The saved model.
        table: The table.
        out: The folder of the results.
        names: The network, the set, the columns of x and those to keep, as given on the command line.
        shards: ``k/n``.
        how: The device, and options of `hardnet.integrations.table.enforce_table`.
    """
    from hardnet.integrations.table import Enforcer, enforce_table

    net, constraint, columns, keep = names
    numbers = shards.split("/")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise HardNetError(sentence("--shards", "k/n with k from 1 to n", repr(shards)))
    x = object_of_file(columns) if ".py:" in columns else [name for name in columns.split(",") if name]
    try:
        model = load(folder, build(net), None if constraint is None else find_set(constraint))
        enforcer = Enforcer(model, x, [name for name in keep.split(",") if name], how.pop("device"))
        belongs = blake2b((folder / WEIGHTS).read_bytes(), digest_size=16).hexdigest()
        shard = int(numbers[0]), int(numbers[1])
        return enforce_table(enforcer, table, out, shard, belongs=f"{belongs} {columns}", **how)
    except (HardNetError, OSError):
        raise
    except FAILS as error:  # the network and the functions of x are user code
        raise HardNetError(f"{table}: could not be enforced; {type(error).__name__}: {error}") from error


def _tensors(path: Path) -> Tensor:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "save") from error
    try:
        return safetensors.torch.load_file(path)["x"]
    except safetensors.SafetensorError as error:
        raise ValueError(error) from error


def _array(path: Path) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.load(path, allow_pickle=False))


def _text(path: Path) -> Tensor:
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty file is refused later because of its shape
        return torch.from_numpy(np.loadtxt(path, delimiter=",", ndmin=2))
