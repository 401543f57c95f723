"""What `import hardnet` brings along: little beside torch, and no compiler. Modules are counted, not seconds."""

import json
import subprocess
import sys

CODE = """
import json, sys, torch
before = set(sys.modules)
import hardnet
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_importing_costs_little_beside_torch():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600, check=True)
    new = json.loads(done.stdout)
    foreign = [name for name in new if name.split(".")[0] != "hardnet"]
    heavy = {"sympy", "triton", "numba", "scipy", "cvxpy", "daqp", "matplotlib", "typer", "rich", "torch._dynamo"}
    heavy |= {"lightning", "pytorch_lightning", "sklearn", "gymnasium", "hardnet_lab"}
    assert not heavy & {name if name.startswith("torch.") else name.split(".")[0] for name in foreign}
    assert len(foreign) <= 40, foreign
    assert not [name for name in new if name.startswith(("hardnet.cli", "hardnet.integrations"))]
