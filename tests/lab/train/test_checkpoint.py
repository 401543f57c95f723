"""Checkpoints: killed at any moment, a run goes on bit for bit; anything else is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import toy

from hardnet.errors import FileError
from hardnet.files import digest
from hardnet_lab.train import load_checkpoint, save_checkpoint

IDENTITY = {"problem": "toy", "seeds": [1, 2, 3]}

WORKER = """
import sys, pathlib, torch
torch.set_num_threads(1)
import toy
from hardnet_lab.train import save_checkpoint
path = pathlib.Path(sys.argv[1])
def watch(training):
    save_checkpoint(training, path, {"problem": "toy", "seeds": [1, 2, 3]})
    return False
toy.training(epochs=100000).run(watch)
"""


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, stop):
    whole = toy.training()
    whole.run()
    first = toy.training()
    first.run(lambda training: training.epoch == stop)
    save_checkpoint(first, tmp_path / "c.safetensors", IDENTITY)
    second = toy.training()
    load_checkpoint(second, tmp_path / "c.safetensors", IDENTITY)
    assert second.epoch == stop
    second.run()
    assert_same(toy.numbers(whole), toy.numbers(second))


@pytest.fixture
def one_thread():
    """As many as the worker has: sums in another order have other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_killed_without_warning_it_resumes_bit_for_bit(tmp_path):
    path = tmp_path / "c.safetensors"
    command = [sys.executable, "-c", WORKER, str(path)]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        _wait_for(path, worker)
        worker.send_signal(signal.SIGKILL)
    resumed = toy.training(epochs=100000)
    load_checkpoint(resumed, path, IDENTITY)
    end = resumed.epoch + 3
    resumed.run(lambda training: training.epoch == end)
    whole = toy.training(epochs=100000)
    whole.run(lambda training: training.epoch == end)
    assert_same(toy.numbers(whole), toy.numbers(resumed))


def _wait_for(path, worker):
    """Until there is a file, and a little longer; a worker that ended before fails the test in its own words."""
    deadline = time.monotonic() + 300
    while not path.exists() and worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    if worker.poll() is not None:
        pytest.fail(f"the worker ended by itself: {worker.stderr.read()}")
    assert path.exists(), "the worker wrote nothing in time"


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(toy.training(), path, IDENTITY)
    return path


def test_a_checkpoint_of_another_run_is_refused(saved):
    message = r"a checkpoint of another run; it differs in seeds \(saved \[1, 2, 3\], asked \[7\]\)"
    with pytest.raises(FileError, match=message):
        load_checkpoint(toy.training(), saved, IDENTITY | {"seeds": [7]})


def test_a_checkpoint_of_another_network_is_refused(saved):
    with pytest.raises(FileError, match="a checkpoint of another network"):
        load_checkpoint(toy.training(deep=False), saved, IDENTITY)


@pytest.mark.parametrize("keep", [0, 7, 1000])
def test_a_cut_file_is_refused(saved, keep):
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(FileError, match=r"corrupt checkpoint; .*; delete it to start over"):
        load_checkpoint(toy.training(), saved, IDENTITY)


def test_a_flipped_bit_is_noticed(saved):
    content = bytearray(saved.read_bytes())
    content[-20] ^= 1
    saved.write_bytes(bytes(content))
    with pytest.raises(FileError, match="its numbers do not match their digest"):
        load_checkpoint(toy.training(), saved, IDENTITY)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "c.safetensors")
    with pytest.raises(FileError, match="expected a checkpoint of format hardnet-checkpoint-2, got None"):
        load_checkpoint(toy.training(), tmp_path / "c.safetensors", IDENTITY)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileError, match="corrupt checkpoint"):
        load_checkpoint(toy.training(), tmp_path / "none.safetensors", IDENTITY)


def rewritten(path, change):
    """The same file with another header, as somebody who edits it would leave it."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["hardnet"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"hardnet": json.dumps(change(header))})
    return tensors


@pytest.mark.parametrize("epoch", [0, 1, 7, -1])
def test_another_epoch_is_noticed(tmp_path, epoch):
    path, first = tmp_path / "c.safetensors", toy.training()
    first.run(lambda training: training.epoch == 3)
    save_checkpoint(first, path, IDENTITY)
    rewritten(path, lambda header: header | {"epoch": epoch})
    with pytest.raises(FileError, match=r"c.safetensors: corrupt checkpoint, its numbers do not match their digest"):
        load_checkpoint(toy.training(), path, IDENTITY)


ENTRIES = ("format", "identity", "epoch", "seconds", "history", "digest")


@pytest.mark.parametrize("key", ENTRIES)
@pytest.mark.parametrize("value", ["absent", None, [], {}, "word", 1.5, True])
def test_a_header_without_an_entry_or_with_another_is_refused_by_name(saved, key, value):
    def change(header):
        rest = {name: held for name, held in header.items() if name != key}
        return rest if value == "absent" else rest | {key: value}

    rewritten(saved, change)
    with pytest.raises(FileError, match=r"c.safetensors: "):
        load_checkpoint(toy.training(), saved, IDENTITY)


def test_a_history_of_another_kind_is_refused_though_its_digest_is_right(saved):
    def change(header):
        header = header | {"history": {"joy": []}}
        return header | {"digest": digest(tensors, header)}

    tensors = rewritten(saved, lambda header: header)
    rewritten(saved, change)
    with pytest.raises(FileError, match=r"c.safetensors: damaged; its entry 'history'"):
        load_checkpoint(toy.training(), saved, IDENTITY)


def test_a_checkpoint_of_version_0_1_goes_on(tmp_path):
    path, first, second = tmp_path / "c.safetensors", toy.training(), toy.training()
    first.run(lambda training: training.epoch == 3)
    save_checkpoint(first, path, IDENTITY)
    tensors = rewritten(path, lambda header: header)
    rewritten(path, lambda header: header | {"format": "hardnet-checkpoint-1", "digest": digest(tensors, None)})
    load_checkpoint(second, path, IDENTITY)
    assert second.epoch == 3
    assert_same(toy.numbers(second), toy.numbers(first))


def test_a_full_disk_names_the_checkpoint_and_leaves_the_old_one(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr("os.fsync", _no_space)
    with pytest.raises(FileError, match=r"c.safetensors: could not be written; No space left on device"):
        save_checkpoint(toy.training(), saved, IDENTITY)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == ["c.safetensors"]


def _no_space(_):
    raise OSError(28, "No space left on device")
