"""Two processes that share every batch end with the numbers of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toy

from hardnet_lab.train.distributed import World, local_device

WORKER = """
import sys, torch
torch.set_num_threads(1)
import toy
from hardnet_lab.train import joined
with joined(torch.device("cpu")) as world:
    run = toy.training(world=world)
    run.run()
    torch.save(toy.numbers(run), f"{sys.argv[1]}/{world.rank}.pt")
"""


SHARDED = """
import os, torch
torch.set_num_threads(1)
import hardnet as hn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
constraints = {
    "constant rows": hn.Affine(torch.randn(2, 4), lower=-0.1, upper=0.1),
    "rows of x": hn.Affine(lambda x: x.reshape(-1, 1, 4), upper=lambda x: x[:, :1].abs() + 0.1),
    "box and a row": hn.Box(-torch.ones(4), torch.ones(4)) & hn.Equality(torch.ones(1, 4), torch.ones(1)),
}
x = torch.randn(16, 4)
for name, constraint in constraints.items():
    model = hn.HardNet(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)), constraint)
    fully_shard(model.net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for cast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            raw, y = model(x, enforce=False), model(x)
        assert raw.dtype == torch.bfloat16, (name, raw.dtype)
        assert y.dtype == (torch.float32 if cast else torch.bfloat16), (name, y.dtype)
        assert hn.check(constraint, y.detach(), x).ok, name
        y.float().square().sum().backward()
        assert all(parameter.grad.full_tensor().isfinite().all() for parameter in model.parameters()), name
        optimizer.step()
        optimizer.zero_grad()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)  # FSDP2 on gloo leaves threads behind that abort an ordinary exit now and then
"""


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_cover_the_batch_once(size):
    rows = [row for rank in range(size) for row in range(30)[World(rank, size).share(4, 14)]]
    assert rows == list(range(4, 14))


def run_on_two_processes(worker, folder):
    script = folder / "worker.py"
    script.write_text(worker)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(script), str(folder)], env=environment, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


def test_sharded_weights_in_half_precision_keep_the_rows(tmp_path):
    """FSDP2's mixed precision and autocast: the network in bfloat16, the constraint in float32."""
    run_on_two_processes(SHARDED, tmp_path)


def test_two_processes_equal_one(tmp_path):
    run_on_two_processes(WORKER, tmp_path)
    whole = toy.training()
    whole.run()
    for rank in range(2):
        shared = torch.load(tmp_path / f"{rank}.pt")
        for name, value in toy.numbers(whole).items():
            torch.testing.assert_close(shared[name], value, rtol=1e-7, atol=1e-8)


def test_a_gradient_that_some_processes_lack_is_summed_all_the_same(monkeypatch):
    """A parameter that only another process used takes that process's gradient; one that none used has none."""
    used, other, unused = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    used.grad = torch.tensor([1.0, 2.0])

    def reduce(flat):
        """What another process adds: gradients of the first two, and that it has these."""
        flat += torch.tensor([10.0, 20.0, 3.0, 4.0, 0.0, 0.0, 1.0, 1.0, 0.0])

    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    World(0, 2).sum_gradients([used, other, unused])
    assert used.grad.tolist() == [11.0, 22.0]
    assert other.grad is not None
    assert other.grad.tolist() == [3.0, 4.0]
    assert unused.grad is None


def test_each_process_has_its_own_gpu(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device(torch.device("cuda")) == torch.device("cuda", 3)
    assert local_device(torch.device("cpu")) == torch.device("cpu")
