"""Files that are always complete: replaced atomically, protected by a digest, and locked while a run writes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import Tensor

from hardnet.errors import FileError, MissingExtraError

try:
    import fcntl
except ImportError:  # Windows has no such locks: nothing waits and nothing is refused there
    fcntl = None

UNREADABLE = (OSError, ValueError, RecursionError)
"""Exceptions from reading a JSON file; RecursionError if a damaged file is nested too deeply."""
HEADER, DIGEST = "hardnet", "digest"
"""Metadata key of our JSON header in a safetensors file, and the header's key for the digest of header and numbers."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at every moment it has either the old or the new content, complete."""
    with replacing(path) as fresh:
        fresh.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file to be written in the block; it replaces `path` when the block ends without an error.

    It is in a temporary folder beside `path`, which the writer may also use for other files. If `path` is a link, the
    file that it points to is replaced. Leftovers of writers that were killed are removed.
    """
    path = Path(os.path.realpath(path))
    workshop = path.with_name(f".{path.name}.{uuid4().hex[:12]}.part")
    fresh = workshop / path.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_writer(path.parent) as alone:
            for left in path.parent.glob(f".{path.name}.*.part") if alone else ():
                shutil.rmtree(left, ignore_errors=True)
            workshop.mkdir()
            fresh.touch()
            permissions = fresh.stat().st_mode  # the user's default; safetensors would give other users no access
            yield fresh
            fresh.chmod(permissions)
            _to_disk(fresh)
            os.replace(fresh, path)
            _to_disk(path.parent)
    except OSError as error:
        raise FileError(f"{path}: could not be written; {error.strerror or error}") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], header: Mapping[str, Any]) -> dict[str, Any]:
    """Write a safetensors file with a JSON header that contains a digest of both; return the header as written.

    Tensors that share memory are written separately.
    """
    package = safetensors_package()
    apart = _apart(tensors)
    sealed = {**header, DIGEST: digest(apart, header)}
    with replacing(path) as fresh:
        try:
            package.torch.save_file(apart, fresh, metadata={HEADER: json.dumps(sealed)})
        except package.SafetensorError as error:
            raise OSError(str(error)) from error
    return sealed


def read_tensors(path: Path, wrong: str) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The JSON header (None if the file has none) and the tensors; `wrong` is the error text for an unreadable file."""
    package = safetensors_package()
    try:
        with package.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(HEADER)
            header = None if text is None else json.loads(text)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (*UNREADABLE, package.SafetensorError) as error:
        raise FileError(f"{path}: {wrong}; {error}") from error
    if header is not None and not isinstance(header, dict):
        raise FileError(f"{path}: {wrong}; its header is not a JSON object")
    return header, tensors


def has_header(path: Path) -> bool:
    """Whether this is a safetensors file with our header."""
    package = safetensors_package()
    try:
        with package.safe_open(path, framework="pt") as file:
            return HEADER in (file.metadata() or {})
    except (OSError, package.SafetensorError):
        return False


def require_keys(content: Any, kinds: Mapping[str, Any], path: Path) -> None:
    """Refuse JSON content that lacks a key or has a value of the wrong type."""
    if not isinstance(content, dict):
        raise FileError(f"{path}: damaged; expected a JSON object, got {type(content).__name__}")
    for key, kind in kinds.items():
        if key not in content:
            raise FileError(f"{path}: damaged; its entry '{key}' is missing")
        if not isinstance(content[key], kind) or (isinstance(content[key], bool) and kind is not bool):
            raise FileError(f"{path}: damaged; its entry '{key}' is {content[key]!r:.80}")


def digest(tensors: Mapping[str, Tensor], header: Mapping[str, Any] | None) -> str:
    """A fingerprint of the header and of every tensor with its name, dtype and shape.

    Without a header it is the digest of version 0.1 checkpoints, which covers only names and numbers.
    """
    total = hashlib.blake2b(digest_size=16)
    if header is not None:
        content = {key: value for key, value in header.items() if key != DIGEST}
        kinds = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
        total.update(json.dumps([content, kinds], sort_keys=True).encode())
    for name in sorted(tensors):
        numbers = tensors[name].detach().cpu().contiguous()
        memory = ctypes.c_char * (numbers.numel() * numbers.element_size())
        total.update(name.encode())
        total.update(memory.from_address(numbers.data_ptr()) if numbers.numel() else b"")  # NumPy may be missing
    return total.hexdigest()


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Lock a folder for this process while the block runs; refuse one that another process has locked.

    The operating system releases the lock when the process ends, however it ends, so locks are never stale.
    """
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _hold(path)
    except OSError as error:
        raise FileError(f"{path}: could not be written; {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


@contextmanager
def claimed(path: Path, *, wait: bool = False) -> Iterator[int | None]:
    """A descriptor of this file whose lock no other process holds, or None if one does and `wait` is False.

    The lock lasts as long as this process, or one that inherits the descriptor, has it open, however they end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor if _lock(descriptor, wait=wait) or wait else None
    finally:
        os.close(descriptor)


def safetensors_package() -> Any:
    """The safetensors package, which is only needed for files."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "save") from error
    return safetensors


def _hold(path: Path) -> int:
    """An open lock file with our process id in it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock(descriptor, wait=False):
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise FileError(
                f"{path.parent}: another run (process {holder}) is writing here; wait for it or choose another --out"
            )
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            break
        os.close(descriptor)  # the previous holder removed the file after we opened it and before we locked it
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    except OSError:
        os.close(descriptor)  # otherwise this process would keep the folder locked until it ends
        raise
    return descriptor


@contextmanager
def _only_writer(folder: Path) -> Iterator[bool]:
    """Wait for other writers of the folder, threads or processes; yields False if its file system has no locks."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor, wait=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file or folder; False if another process has locked it and `wait` is False.

    On a file system without locks: True if `wait` is False, so that no run is refused; False if `wait` is True, since a
    writer cannot know that it is the only one.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return not wait
    return True


def _to_disk(path: Path) -> None:
    """Flush a file or the entries of a folder to disk, so that a power failure does not undo the write."""
    folder = path.is_dir()
    if folder and fcntl is None:  # Windows cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers in tensors that share no memory, since safetensors refuses shared memory."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, value in tensors.items():
        own = value.detach().contiguous()
        own = own.clone() if own.untyped_storage().data_ptr() in seen else own
        seen.add(own.untyped_storage().data_ptr())
        apart[name] = own
    return apart
