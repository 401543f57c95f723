"""Two processes that share every batch end with the numbers of one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toy

from hardnet.train.distributed import World, local_device

WORKER = """
import sys, torch
torch.set_num_threads(1)
import toy
from hardnet.train import joined
with joined(torch.device("cpu")) as world:
    run = toy.training(world=world)
    run.run()
    torch.save(toy.numbers(run), f"{sys.argv[1]}/{world.rank}.pt")
"""


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_cover_the_batch_once(size):
    rows = [row for rank in range(size) for row in range(30)[World(rank, size).share(4, 14)]]
    assert rows == list(range(4, 14))


def test_two_processes_equal_one(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    subprocess.run([*command, str(script), str(tmp_path)], env=environment, check=True, timeout=600)
    whole = toy.training()
    whole.run()
    for rank in range(2):
        shared = torch.load(tmp_path / f"{rank}.pt")
        for name, value in toy.numbers(whole).items():
            torch.testing.assert_close(shared[name], value, rtol=1e-7, atol=1e-8)


def test_each_process_has_its_own_gpu(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device(torch.device("cuda")) == torch.device("cuda", 3)
    assert local_device(torch.device("cpu")) == torch.device("cpu")
