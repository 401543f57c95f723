"""Files: old or new at every moment, sealed by a digest, never written by two runs at once."""

import ast
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import hardnet
from hardnet.errors import FileError
from hardnet.files import digest, read_tensors, replacing, sole_run, write_atomically, write_tensors
from tests.faults import deaths


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_library_writes_files_through_this_module_alone():
    """Every other way to write leaves half a file where the process dies: calls by name, in the whole source."""
    source = Path(hardnet.__file__).parent
    found = []
    for path in sorted(source.rglob("*.py")):
        if path.name == "files.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            stream = name == "savefig" and ast.unparse(node.args[0]) == "stream"
            reads = name == "open" and [ast.unparse(given) for given in node.args] == ["'rb'"]
            if reads or "os.devnull" in ast.unparse(node):
                continue
            if name in ("write_text", "write_bytes", "savefig", "save_file", "open", "dump") and not stream:
                found.append(f"{path.relative_to(source)}:{node.lineno} {ast.unparse(node)}")
    assert found == []


@pytest.mark.parametrize("before", [None, b"old"])
def test_death_at_any_call_leaves_the_old_or_the_new_file(tmp_path, before):
    path, seen = tmp_path / "deep" / "file", set()

    def restore():
        path.unlink(missing_ok=True) if before is None else write_atomically(path, before)

    for _ in deaths(lambda: write_atomically(path, b"new"), restore):
        seen.add(path.read_bytes() if path.exists() else None)
    assert seen == {before, b"new"}


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    for _ in deaths(lambda: write_atomically(tmp_path / "file", b"new")):
        pass
    (tmp_path / ".file.0123.part").mkdir()
    (tmp_path / ".file.0123.part" / ".tmp4567").write_bytes(b"half")
    write_atomically(tmp_path / "file", b"last")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() == b"new"


def test_many_writers_at_once_leave_one_whole_file(tmp_path):
    contents = [bytes([65 + i]) * 100_000 for i in range(8)]
    writers = [threading.Thread(target=write_atomically, args=(tmp_path / "file", content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (tmp_path / "file").read_bytes() in contents
    assert files_below(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_failed_write_names_the_file_and_leaves_the_old_one(tmp_path, monkeypatch, call, number):
    write_atomically(tmp_path / "file", b"old")

    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(FileError, match=rf"file: could not be written; {os.strerror(number)}"):
        write_atomically(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert files_below(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_error_while_writing_leaves_the_old_file(tmp_path):
    write_atomically(tmp_path / "file", b"old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "file") as fresh:
        _interrupted_write(fresh)
    assert files_below(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def _interrupted_write(path):
    path.write_bytes(b"half")
    raise KeyboardInterrupt


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8)


def test_tensors_and_header_come_back_bit_for_bit(tmp_path):
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    tensors |= {"none": torch.zeros(0, 3), "number": torch.tensor(torch.nan), "turned": torch.rand(3, 4).mT}
    written = write_tensors(tmp_path / "t", tensors, {"epoch": 3, "loss": [0.1, float("inf")]})
    header, found = read_tensors(tmp_path / "t", "broken")
    assert header == written
    assert header["digest"] == digest(found, header) == digest(tensors, {"epoch": 3, "loss": [0.1, float("inf")]})
    assert all(torch.equal(found[name].nan_to_num(7.0), tensors[name].nan_to_num(7.0)) for name in tensors)


def test_tensors_that_share_memory_are_written_one_by_one(tmp_path):
    whole = torch.rand(4, 4)
    tensors = {"one": whole, "other": whole, "row": whole[1], "turned": whole.mT, "same": whole.expand(2, 4, 4)}
    write_tensors(tmp_path / "t", tensors, {})
    found = read_tensors(tmp_path / "t", "broken")[1]
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("change", [{"epoch": 4}, {"more": 1}, {"epoch": "3"}])
def test_the_digest_covers_header_names_types_and_shapes(change):
    tensors, header = {"w": torch.arange(6.0)}, {"epoch": 3}
    sealed = digest(tensors, header)
    assert digest(tensors, header | change) != sealed
    others = [torch.arange(6.0).reshape(2, 3), torch.arange(6.0).view(torch.int32), torch.arange(6.0) + 1e-6]
    assert sealed not in [digest({"w": other}, header) for other in others]
    assert digest({"v": tensors["w"]}, header) != sealed


HOLDER = """
import sys, time, pathlib
from hardnet.files import sole_run
with sole_run(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_processes_refuse_each_other_and_a_dead_one_holds_nothing(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "runs")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with (
        pytest.raises(FileError, match=rf"another run \(process {holder.pid}\) is writing here"),
        sole_run(tmp_path / "runs"),
    ):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert files_below(tmp_path) == ["runs/.lock"]
    with sole_run(tmp_path / "runs"):
        assert (tmp_path / "runs" / ".lock").read_text() == str(os.getpid())
    assert files_below(tmp_path) == []


def test_a_lock_within_one_process_is_refused_too(tmp_path):
    with sole_run(tmp_path), pytest.raises(FileError, match="another run"), sole_run(tmp_path):
        pass
    with sole_run(tmp_path):
        pass


@pytest.mark.parametrize("call", ["truncate", "write"])
def test_a_full_disk_names_the_lock_and_holds_nothing(tmp_path, monkeypatch, call):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(FileError, match=r"\.lock: could not be written; No space left"), sole_run(tmp_path):
        pass
    monkeypatch.undo()
    with sole_run(tmp_path):
        pass


def test_of_many_that_ask_at_once_one_holds(tmp_path):
    inside, most, refused = [], [], []

    def ask():
        try:
            with sole_run(tmp_path):
                inside.append(1)
                most.append(len(inside))
                inside.pop()
        except FileError:
            refused.append(1)

    askers = [threading.Thread(target=ask) for _ in range(20)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(most) + len(refused) == 20
    assert max(most) == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="could not be written; "), sole_run(tmp_path / "file" / "runs"):
        pass
    with pytest.raises(FileError, match="could not be written; "):
        write_atomically(tmp_path / "file" / "runs", b"")


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{"])
def test_a_header_that_is_no_object(tmp_path, text):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(1)}, tmp_path / "t", metadata={"hardnet": text})
    if json.dumps(None) == text:
        assert read_tensors(tmp_path / "t", "broken")[0] is None
        return
    with pytest.raises(FileError, match="t: broken; "):
        read_tensors(tmp_path / "t", "broken")
