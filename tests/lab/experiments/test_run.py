"""Running experiments: result files, folders, resuming, and what comes out of short runs."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from hardnet.errors import FileError, HardNetError
from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.results import read_result
from hardnet_lab.experiments.run import build_model, choose_device, reproduce, request
from hardnet_lab.problems import PROBLEMS
from hardnet_lab.train import InterruptedRunError, Silence, streams_of
from tests.lab.experiments import fabricated

SHORT = {"methods": "nn,aff", "seeds": "1-2", "epochs": 3, "device": "cpu"}


def run(out, experiment="pwc", **options):
    return reproduce(request(experiment, **(SHORT | options), out=out))


def numbers(path):
    result = read_result(path)
    curves = {name: values for name, values in result.history.items() if name != "seconds"}
    return result.metrics, curves, result.figures


def test_a_result_file_holds_what_the_report_needs(tmp_path):
    paths = run(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["pwc/nn.json", "pwc/aff.json"]
    content = json.loads(paths[1].read_text())
    assert (content["problem"], content["method"], content["label"]) == ("pwc", "aff", "HardNet-Aff")
    assert (content["seeds"], content["epochs"]) == ([1, 2], 3)
    assert all(len(values) == 2 for values in content["metrics"].values())
    assert content["history"]["epoch"] == [0, 2]
    assert {"train_s", "setup_s", "test_ms"} == content["timing"].keys()
    assert {"command", "revision", "versions", "device", "threads", "date", "seed"} == content["environment"].keys()
    assert len(content["figures"]["first"]["y"]) == 2
    assert max(content["metrics"]["max_violation"]) < 1e-12


@pytest.mark.parametrize("method", [method.name for method in specs.PAPER])
def test_every_method_of_the_tables_starts_on_every_problem_from_the_same_weights(method):
    spec = specs.all_methods()[method]
    for name in specs.TABLES:
        problem = PROBLEMS[name]()
        if method.startswith("dc3") and problem.dc3.predicted:
            continue  # its last layer is smaller, so every later draw differs
        model = build_model(problem, spec, streams_of([1]))
        plain = build_model(problem, specs.all_methods()["nn"], streams_of([1]))
        first = next(iter(model.net.parameters()))
        assert torch.equal(first, next(iter(plain.net.parameters())))


def test_published_settings():
    opt, pwc = PROBLEMS["opt"](), PROBLEMS["pwc"]()
    methods = specs.all_methods()
    aff = methods["aff"].settings(opt, 1000)
    assert (aff.warm_epochs, aff.batch_size, aff.soft_weight, aff.judge_last) == (100, 200, 10.0, 100)
    assert methods["nn"].settings(opt, 1000).soft_weight == 0
    assert methods["dc3"].settings(opt, 1000).warm_epochs == 0
    assert methods["aff"].settings(pwc, 1000).warm_epochs == 0
    assert methods["aff"].settings(opt, 20).warm_epochs == 2


def test_dc3_is_the_published_one_and_beside_it_the_right_one():
    box, opt, cbf = PROBLEMS["pwcbox"](), PROBLEMS["opt"](), PROBLEMS["cbf"]()
    published = specs.published_dc3(box).descent
    assert (published.steps, published.step, published.momentum, published.published_sign) == (10, 1e-2, 0.5, True)
    assert not specs.tuned_dc3(box).descent.published_sign
    assert specs.published_dc3(opt).raw_dim == specs.tuned_dc3(opt).raw_dim == 50
    assert tuple(specs.published_dc3(opt).predicted.tolist()) == opt.dc3.predicted
    assert (specs.published_dc3(cbf).options.extra_steps, specs.published_dc3(cbf).raw_dim) == (5, 2)


def test_the_mean_over_the_last_epochs_is_the_history_s(tmp_path, monkeypatch):
    monkeypatch.setitem(specs.JUDGE_LAST, "pwc", 2)
    (path,) = run(tmp_path, methods="nn", epochs=5)
    result = read_result(path)
    expected = torch.tensor(result.history["objective"][-2:]).mean(0).tolist()
    assert result.metrics["mse_last_epochs"] == pytest.approx(expected)


def test_the_gradient_paths_are_written(tmp_path):
    (path,) = reproduce(request("gradient", out=tmp_path))
    paths = read_result(path).figures["paths"]
    assert [(p["samples"], p["learning_rate"]) for p in paths] == [(1, 0.01), (1, 0.1), (2, 0.01), (2, 0.1)]
    assert len(paths[0]["y"]) == len(paths[0]["raw"]) == 101


def test_a_second_run_needs_resume_or_another_folder(tmp_path):
    paths = run(tmp_path)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(FileError, match="holds a run of 'nn'; use --resume or another --out"):
        run(tmp_path)
    with pytest.raises(FileError, match=r"holds another run .*; choose another --out"):
        run(tmp_path, seeds="1-3", resume=True)
    assert [path.read_bytes() for path in run(tmp_path, resume=True)] == before
    run(tmp_path, methods="soft")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "pwc").mkdir()
    (tmp_path / "pwc" / "thesis.tex").write_text("mine")
    with pytest.raises(FileError, match="holds files of something else"):
        run(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pwc").write_text("a file")
    with pytest.raises(FileError, match="a file stands where the results should go"):
        run(tmp_path / "other")
    assert not list(tmp_path.rglob("*.json"))


def test_methods_that_cannot_express_a_problem_say_why(tmp_path):
    class Notes(Silence):
        said = []

        def note(self, text):
            self.said.append(text)

    asked = request("pwc", methods="all", seeds="1", epochs=1, device="cpu", out=tmp_path)
    paths = reproduce(asked, Notes())
    assert tmp_path / "pwc" / "aff.json" in paths
    assert any("pwc acnet: left out, " in text for text in Notes.said)
    with pytest.raises(HardNetError, match="pwc: method 'acnet' cannot enforce this set"):
        run(tmp_path / "named", methods="acnet")
    assert not (tmp_path / "named").exists()


def test_one_of_several_that_fails_says_so_and_does_not_stop_the_rest(tmp_path, monkeypatch):
    broken = specs.Method("broken", "broken", specs.by_name("aff"))
    monkeypatch.setattr(broken.__class__, "settings", _refuse(broken, specs.Method.settings))
    monkeypatch.setattr(specs, "choose_methods", lambda names: [broken, specs.all_methods()["nn"]])
    options = {"seeds": "1", "epochs": 1, "device": "cpu", "recipe": "published"}
    paths = reproduce(request("pwc", methods="all", **options, out=tmp_path / "all"))
    assert [path.stem for path in paths] == ["broken", "nn"]
    assert [read_result(path).failure for path in paths] == ["out of luck", ""]
    monkeypatch.setattr(specs, "choose_methods", lambda names: [broken])
    with pytest.raises(HardNetError, match="out of luck"):
        reproduce(request("pwc", methods="broken", **options, out=tmp_path / "alone"))


def _refuse(broken, settings):
    def refuse(self, *arguments):
        if self is broken:
            raise HardNetError("out of luck")
        return settings(self, *arguments)

    return refuse


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", methods="aff", epochs=8)
    pressed = partial(os.kill, os.getpid(), signal.SIGINT)

    class Impatient(Silence):
        def update(self, training):
            if training.epoch == 3:
                pressed()

    asked = request("pwc", **(SHORT | {"methods": "aff", "epochs": 8}), out=tmp_path / "parts")
    with pytest.raises(InterruptedRunError, match="stopped at epoch 3 of 8; go on with --resume"):
        reproduce(asked, Impatient())
    assert not (tmp_path / "parts" / "pwc" / "aff.json").exists()
    parts = run(tmp_path / "parts", methods="aff", epochs=8, resume=True)
    assert numbers(whole[0]) == numbers(parts[0])


def test_a_killed_command_resumes_to_the_same_numbers(tmp_path):
    options = ["--methods", "aff", "--seeds", "1-2", "--epochs", "120", "--device", "cpu", "--out", str(tmp_path)]
    code = (
        "from hardnet_lab.experiments import run; run.CHECKPOINT_SECONDS = 0.05; import hardnet.cli; hardnet.cli.main()"
    )
    command = [sys.executable, "-c", code, "reproduce", "pwc", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    checkpoint = tmp_path / "pwc" / "aff.safetensors"
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "pwc" / "aff.json").exists()
    subprocess.run([*command, "--resume"], env=environment, check=True, stdout=subprocess.DEVNULL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = run(tmp_path / "whole", methods="aff", epochs=120)
    torch.set_num_threads(threads)
    assert numbers(tmp_path / "pwc" / "aff.json") == numbers(whole[0])


def test_a_corrupt_checkpoint_is_refused(tmp_path):
    (path,) = run(tmp_path, methods="aff")
    path.unlink()
    path.with_suffix(".safetensors").write_bytes(b"nonsense")
    with pytest.raises(FileError, match="corrupt checkpoint"):
        run(tmp_path, methods="aff", resume=True)


@pytest.mark.parametrize("damage", ["cut", "empty", "list", "key", "type", "digit", "nested"])
def test_a_damaged_result_is_made_again_from_its_checkpoint(tmp_path, damage):
    (path,) = run(tmp_path, methods="aff")
    before, whole = numbers(path), path.read_text()
    content = json.loads(whole)
    damaged = {
        "cut": whole[: len(whole) // 2],
        "empty": "",
        "list": "[]",
        "key": json.dumps({key: value for key, value in content.items() if key != "metrics"}),
        "type": json.dumps(content | {"metrics": [1.0]}),
        "digit": json.dumps(content | {"metrics": content["metrics"] | {"mse": [0.1, 0.2]}}),
        "nested": "[" * 10**5,
    }
    path.write_text(damaged[damage])
    with pytest.raises(FileError, match=r"aff.json: "):
        read_result(path)
    assert run(tmp_path, methods="aff", resume=True) == [path]
    assert numbers(path) == before


OTHER_TYPES = {
    "metrics": [{"mse": 1.0}, {"mse": [None]}, {"mse": ["0.1"]}, {"mse": [[0.1]]}],
    "timing": [{"train_s": [1.0]}, {"train_s": None}],
    "history": [{"epoch": 3}, {"loss": "1"}],
    "environment": [[], None],
    "figures": [1, []],
    "failure": [None, {}],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in OTHER_TYPES.items() for value in values])
def test_a_result_without_a_digest_is_judged_by_its_types(tmp_path, key, value):
    content = fabricated.result("pwc", "aff")
    path = tmp_path / "aff.json"
    path.write_text(json.dumps(content))
    assert read_result(path).metrics == content["metrics"]
    path.write_text(json.dumps(content | {key: value}))
    with pytest.raises(FileError, match=r"aff\.json: damaged"):
        read_result(path)


def test_the_result_of_another_run_is_not_taken_for_ours(tmp_path):
    aff, nn = tmp_path / "pwc" / "aff.json", tmp_path / "pwc" / "nn.json"
    run(tmp_path, methods="aff")
    nn.write_bytes(aff.read_bytes())
    with pytest.raises(FileError, match=r"nn\.json: the result of another run \(method aff\)"):
        run(tmp_path, methods="nn", resume=True)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_description_of_the_folder_is_named(tmp_path, content):
    run(tmp_path, methods="nn")
    (tmp_path / "pwc" / "run.json").write_text(content)
    with pytest.raises(FileError, match=r"run.json: "):
        run(tmp_path, methods="aff", resume=True)


def test_two_runs_on_one_folder_refuse_each_other(tmp_path):
    class Second(Silence):
        def update(self, training):
            with pytest.raises(FileError, match=rf"another run \(process {os.getpid()}\) is writing here"):
                run(tmp_path, "pwcbox", methods="aff")

    asked = request("pwc", **(SHORT | {"methods": "nn"}), out=tmp_path)
    reproduce(asked, Second())
    assert not (tmp_path / "pwcbox").exists()
    run(tmp_path, "pwcbox", methods="nn")


@pytest.mark.parametrize(
    ("seeds", "expected"), [("1-5", [1, 2, 3, 4, 5]), ("3", [3]), ("1,2,7", [1, 2, 7]), ("1-2,9", [1, 2, 9])]
)
def test_seeds(seeds, expected):
    assert specs.choose_seeds(seeds) == expected


@pytest.mark.parametrize(
    "seeds", ["", "a", "1-", "-3", "1-x", "5-1", "1,1", "²", "9" * 23, "9" * 5000, "1-" + "9" * 18, str(2**63)]
)
def test_what_is_no_seeds(seeds):
    with pytest.raises(HardNetError, match="--seeds: expected a range like 1-5"):
        specs.choose_seeds(seeds)


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(HardNetError, match="--device: expected auto, cpu or cuda, got 'quantum'"):
        choose_device("quantum")
    with pytest.raises(HardNetError, match="training needs float64"):
        choose_device("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there():
    with pytest.raises(HardNetError, match="it has no CUDA GPU; use cpu"):
        choose_device("cuda")
