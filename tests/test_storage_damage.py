"""Saved models under attack: death at every moment, full disks, damaged and edited files, folders of all kinds."""

import json
import os
import random
import shutil
import signal
import time

import pytest
import torch

import hardnet as hn
from tests.draws import draw
from tests.faults import deaths, forked

FileError = hn.errors.FileError
X = draw(5, 4)


def model(seed, options=None):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).double()
    A, bound = draw(2, 4, seed=seed), draw(2).abs()
    return hn.HardNet(net, hn.Affine(A, lower=-bound, upper=bound), **(options or {"method": "aff"}))


def which(folder, *candidates):
    """Which of some models a folder holds; None where it holds no model at all."""
    if not (folder / "model.safetensors").exists():
        with pytest.raises(FileError, match="not a saved model"):
            hn.load(folder, model(9).net)
        return None
    loaded = hn.load(folder, model(9).net)
    (found,) = [i for i, own in enumerate(candidates) if torch.equal(loaded(X), own(X)) and loaded.method == own.method]
    return found


OLD, NEW = model(1), model(2, {"method": "projection", "on_infeasible": "nearest"})


def folder(kind, tmp_path):
    """A place to save to: plain, behind a link, or as the version before wrote it."""
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "model").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    return tmp_path / "model"


def write_old_layout(path):
    """What version 0.1 wrote: two files, of which only the JSON says what the numbers belong to."""
    from safetensors.torch import save_file

    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    state = {name: value for name, value in OLD.state_dict().items() if not name.endswith("_extra_state")}
    save_file(state, path / "model.safetensors")
    hn.save(OLD, path.parent / "new")
    header = json.loads((path.parent / "new" / "model.json").read_text())
    old = {key: header[key] for key in ("method", "options", "leak", "dtype", "constraint")}
    (path / "model.json").write_text(json.dumps({"format": 1, **old}))


@pytest.mark.filterwarnings("ignore::hardnet.errors.FileWarning")
@pytest.mark.parametrize("kind", ["fresh", "over", "link", "0.1", "."])
def test_death_at_any_call_leaves_the_old_or_the_new_model(tmp_path, monkeypatch, kind):
    path = folder(kind, tmp_path)

    def before():
        if kind == "fresh":
            shutil.rmtree(path, ignore_errors=True)
        elif kind == "0.1":
            write_old_layout(path)
        else:
            hn.save(OLD, path)

    before()
    if kind == ".":
        monkeypatch.chdir(path)
    place = "." if kind == "." else path
    found = [which(path, OLD, NEW) for _ in deaths(lambda: hn.save(NEW, place), before)]
    assert set(found) == {None if kind == "fresh" else 0, 1}
    assert found == sorted(found, key=lambda model: model is not None and model)  # never new, then old again
    hn.save(OLD, place)
    assert which(path, OLD, NEW) == 0
    assert sorted(entry.name for entry in path.iterdir()) == ["model.json", "model.safetensors"]


def test_killed_at_random_moments_it_leaves_one_of_the_two(tmp_path):
    dice = random.Random(3)
    hn.save(OLD, tmp_path / "model")
    for _ in range(20):
        worker = forked(lambda: _save_for_ever(tmp_path / "model"))
        time.sleep(dice.random() / 10)
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        assert which(tmp_path / "model", OLD, NEW) in (0, 1)


def _save_for_ever(path):
    while True:
        hn.save(NEW, path)
        hn.save(OLD, path)


def test_the_current_folder_keeps_its_model_and_refuses_other_files(tmp_path, monkeypatch):
    hn.save(OLD, tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    hn.save(NEW, ".")
    assert which(tmp_path / "model", OLD, NEW) == 1
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="exists and is not a saved model"):
        hn.save(NEW, ".")


def test_a_model_of_another_tool_is_not_overwritten(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "other").mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "other" / "model.safetensors")
    before = (tmp_path / "other" / "model.safetensors").read_bytes()
    with pytest.raises(FileError, match="exists and is not a saved model"):
        hn.save(NEW, tmp_path / "other")
    with pytest.raises(FileError, match="does not say what it belongs to"):
        hn.load(tmp_path / "other", model(9).net)
    assert (tmp_path / "other" / "model.safetensors").read_bytes() == before


def test_links_are_followed_and_stay_links(tmp_path):
    hn.save(OLD, tmp_path / "there")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    hn.save(NEW, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert which(tmp_path / "there", OLD, NEW) == which(tmp_path / "link", OLD, NEW) == 1
    (tmp_path / "dangling").symlink_to(tmp_path / "not-yet")
    hn.save(OLD, tmp_path / "dangling")
    assert which(tmp_path / "not-yet", OLD, NEW) == 0


@pytest.mark.parametrize("number", [28, 5, 13])
def test_a_full_disk_names_the_file_and_keeps_the_old_model(tmp_path, monkeypatch, number):
    hn.save(OLD, tmp_path / "model")

    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(FileError, match=rf"model.safetensors: could not be written; {os.strerror(number)}"):
        hn.save(NEW, tmp_path / "model")
    monkeypatch.undo()
    assert which(tmp_path / "model", OLD, NEW) == 0


@pytest.fixture
def saved(tmp_path):
    hn.save(OLD, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"rubbish", b"null", b'{"format": 99}', b'{"format": 2}', b"\xff", b"[" * 10**5],
    ids=lambda content: content[:9].decode(errors="replace"),
)
def test_rubbish_is_refused_by_the_name_of_its_file(saved, name, content):
    (saved / name).write_bytes(content)
    with pytest.raises(FileError, match=name):
        hn.load(saved, model(9).net)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_cut_file_is_refused_wherever_it_is_cut(saved, name):
    whole = (saved / name).read_bytes()
    for length in range(0, len(whole) - 2, max(1, len(whole) // 40)):
        (saved / name).write_bytes(whole[:length])
        with pytest.raises(FileError, match=name):
            hn.load(saved, model(9).net)


def test_a_flipped_bit_is_noticed_wherever_it_is(saved):
    whole = (saved / "model.safetensors").read_bytes()
    for place in range(8, len(whole), max(1, len(whole) // 60)):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        (saved / "model.safetensors").write_bytes(bytes(damaged))
        with pytest.raises(FileError):
            hn.load(saved, model(9).net)


KEYS = ("format", "method", "options", "leak", "constraint", "digest")


def resealed(folder, change):
    """Another header with a digest that fits it, as a writer with a defect would leave it."""
    from hardnet.files import read_tensors, write_tensors

    header, tensors = read_tensors(folder / "model.safetensors", "")
    change(header)
    header.pop("digest", None)
    write_tensors(folder / "model.safetensors", tensors, header)


@pytest.mark.parametrize("key", [key for key in KEYS if key != "digest"])
@pytest.mark.parametrize(
    "value", ["absent", None, [], 7.5, "word", {"type": "Affine"}, {"arguments": {}}, {"magic": 1}]
)
def test_a_header_without_an_entry_or_with_another_is_refused(saved, key, value):
    def change(header):
        del header[key]
        if value != "absent":
            header[key] = value

    (saved / "model.json").unlink()
    resealed(saved, change)
    with pytest.raises(FileError, match="model"):
        hn.load(saved, model(9).net)


@pytest.mark.parametrize("key", [key for key in KEYS if key != "digest"])
def test_an_edited_copy_is_noticed(saved, key):
    header = json.loads((saved / "model.json").read_text())
    for value in ("soft", {"strict": True}, 0.5):
        if isinstance(header[key], type(value)):
            (saved / "model.json").write_text(json.dumps(header | {key: value}))
            with pytest.raises(FileError, match=r"model.json: was changed"):
                hn.load(saved, model(9).net)
    (saved / "model.json").write_text(json.dumps({name: held for name, held in header.items() if name != key}))
    with pytest.raises(FileError, match=r"model.json: "):
        hn.load(saved, model(9).net)


def test_without_the_copy_it_loads(saved):
    (saved / "model.json").unlink()
    assert which(saved, OLD, NEW) == 0
