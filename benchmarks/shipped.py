"""Exported models: each family run by ONNX Runtime (and by AOTInductor) on many samples, and checked.

``python -m benchmarks.shipped [--samples N] [--only NAME,NAME] [--aot] [--out FILE]``. The exported graph contains a
network and its layer and returns y, status and residual. Times are processor time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hardnet as hn
from hardnet.solvers import Status
from hardnet_lab.experiments.results import environment, write_json

INPUTS, OUTPUTS = 4, 6
SPREAD = 3.0
"""Scale of the raw outputs: most samples are outside their set."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


TWO, MANY, ONE = drawn(2, OUTPUTS, seed=1), drawn(9, OUTPUTS, seed=2), torch.ones(1, OUTPUTS)


def moving_rows(x: Tensor) -> Tensor:
    """Rows ``(*batch, 2, 6)``."""
    return TWO + 0.3 * torch.sin(x[..., :1, None])


def capacity(x: Tensor) -> Tensor:
    """Upper bounds ``(*batch, 2)``."""
    return 0.2 + x[..., :2].abs()


def total(x: Tensor) -> Tensor:
    """A total ``(*batch, 1)`` that the box can reach."""
    return torch.tanh(x[..., :1])


def size(x: Tensor) -> Tensor:
    """A size ``(*batch)``."""
    return 0.5 + x[..., 0].abs()


def box() -> hn.Box:
    """The cube of side 2."""
    return hn.Box(-torch.ones(OUTPUTS), 1.0)


FAMILIES: dict[str, tuple[Callable[[], Any], str]] = {
    "few rows": (lambda: hn.Affine(moving_rows, upper=capacity), "projection"),
    "a box and a row": (lambda: box() & hn.Equality(ONE, total), "projection"),
    "a box and two rows": (lambda: box() & hn.Affine(TWO, lower=-0.5, upper=0.5), "projection"),
    "a simplex": (lambda: hn.Simplex(OUTPUTS, size), "cvx"),
    "a ball": (lambda: hn.Ball(torch.zeros(OUTPUTS), size), "cvx"),
    "general rows": (lambda: hn.Affine(MANY, lower=-0.5, upper=0.5), "projection"),
}


class Shipped(nn.Module):
    """A network with its layer, which also returns the layer's status and residual."""

    def __init__(self, constraint: Any, method: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = hn.HardNet(nn.Linear(INPUTS, OUTPUTS), constraint, method).eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Y ``(*batch, 6)``, status and residual ``(*batch)``."""
        layer: Any = self.model.layer
        found = layer.solve(SPREAD * self.model(x, enforce=False), x)
        return found.y, found.status, found.residual


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the processor seconds of this process and its child processes, such as a C++ compiler."""
    spent = lambda: time.process_time() + sum(os.times()[2:4])
    start = spent()
    return call(), spent() - start


def exported(shipped: Shipped) -> torch.export.ExportedProgram:
    """The exported graph, for any batch size from 2."""
    batch = torch.export.Dim("batch", min=2)
    return torch.export.export(shipped, (drawn(8, INPUTS),), dynamic_shapes=({0: batch},))


def judged(shipped: Shipped, x: Tensor, answer: Any) -> dict[str, Any]:
    """Check y: the status of the graph, the certificate of the library, and the distance to eager code."""
    y, status = (torch.as_tensor(part) for part in answer[:2])
    solved = status == int(Status.SOLVED)
    certificate = hn.check(shipped.model.constraint, y[solved], x[solved])
    expected = shipped(x)[0]
    return {
        "samples": len(x),
        "solved": int(solved.sum()),
        "moved": int((expected != SPREAD * shipped.model(x, enforce=False)).any(-1).sum()),
        "hold": int(certificate.satisfied.sum()),
        "worst_violation": certificate.max_violation,
        "from_eager": (y - expected)[solved].abs().max().item(),
    }


@torch.no_grad()
def by_onnx(shipped: Shipped, program: torch.export.ExportedProgram, x: Tensor) -> dict[str, Any]:
    """The graph in ONNX, without custom operators, run by ONNX Runtime."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        graph, made = timed(lambda: torch.onnx.export(program, dynamo=True, verbose=False))
        graph.save(path)
        session = onnxruntime.InferenceSession(path)
        answer, ran = timed(lambda: session.run(None, {session.get_inputs()[0].name: x.numpy()}))
        size = path.stat().st_size
    return {"make_s": made, "run_s": ran, "bytes": size, **judged(shipped, x, answer)}


@torch.no_grad()
def by_inductor(shipped: Shipped, program: torch.export.ExportedProgram, x: Tensor) -> dict[str, Any]:
    """The graph compiled ahead of time to a C++ library."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.pt2")
        _, made = timed(lambda: torch._inductor.aoti_compile_and_package(program, package_path=path))
        run = torch._inductor.aoti_load_package(path)
        answer, ran = timed(lambda: run(x))
    return {"make_s": made, "run_s": ran, **judged(shipped, x, answer)}


def measure(name: str, samples: int, aot: bool) -> dict[str, Any]:
    """The results of one family."""
    make, method = FAMILIES[name]
    shipped = Shipped(make(), method)
    program, seconds = timed(lambda: exported(shipped))
    x = drawn(samples, INPUTS, seed=3)
    found = {"method": method, "export_s": seconds, "onnx": by_onnx(shipped, program, x)}
    return found | ({"aot": by_inductor(shipped, program, x)} if aot else {})


def main(arguments: list[str] | None = None) -> None:
    """Measure the families, and print and record each result immediately."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shipped", description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--only", default=",".join(FAMILIES), help="comma-separated families")
    parser.add_argument("--aot", action="store_true", help="AOTInductor too, which needs a C++ compiler")
    parser.add_argument("--note", help="a sentence about the circumstances")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    results: dict[str, Any] = {"environment": environment("cpu", 0), "note": asked.note, "families": {}}
    for name in asked.only.split(","):
        results["families"][name] = measure(name, asked.samples, asked.aot)
        print(name, results["families"][name], flush=True)
        if asked.out:
            write_json(asked.out, results)


if __name__ == "__main__":
    main()
