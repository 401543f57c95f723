"""``python -m benchmarks projection``: the exact projection against the peers, in one run, as ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from benchmarks.affine_problems import floors
from benchmarks.peers import NUMBERS, Case, Peer, Run, ours, torch_peers
from benchmarks.peers_jax import jax_peers
from hardnet.experiments import timing
from hardnet.experiments.markdown import table_text
from hardnet.experiments.results import write_json
from hardnet.experiments.stamp import environment
from hardnet.functional import project_affine


class Size(NamedTuple):
    """Samples, outputs, rows, how many of these are equalities, and whether all samples share A."""

    samples: int
    n: int
    m: int
    equalities: int = 0
    shared: bool = False

    def __str__(self) -> str:
        rows = f"{self.equalities}eq+{self.m - self.equalities}" if self.equalities else str(self.m)
        return f"{self.samples},{self.n},{rows}{' shared A' if self.shared else ''}"


CPU_SIZES = (
    Size(1000, 1, 1),
    Size(1000, 10, 5),
    Size(1000, 10, 20),
    Size(256, 50, 50),
    Size(200, 100, 100),
    Size(200, 100, 100, equalities=50),
    Size(1024, 100, 50),
    Size(1024, 100, 50, shared=True),
)
GPU_SIZES = (
    Size(1000, 2, 2),
    Size(1000, 10, 20),
    Size(1024, 100, 50),
    Size(1024, 100, 50, shared=True),
    Size(2048, 100, 100),
    Size(2048, 100, 100, equalities=50),
)
ON_DEVICE = ("qpth", "pinet 100", "pinet 1000")
"""The peers that run on a GPU here (JAX takes its own); the others are left to a CPU."""
FAILURES = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""What a peer may raise: that is its result, not the end of the run."""
WRONG = {"violation": 1e-5, "distance": 1e-3, "gradient error": 1e-2}
"""Above these a tool's answer counts as wrong."""


def problem(size: Size, device: str, dtype: torch.dtype, seed: int) -> Case:
    """A ~ N(0, 1), bounds A y0 -/+ |N(0, 1)| around a centre, raw = y0 + 3 N(0, 1)."""
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=source, dtype=torch.float64)
    A = draw(size.m, size.n) if size.shared else draw(size.samples, size.m, size.n)
    centre = draw(size.samples, size.n)
    middle = (A @ centre.unsqueeze(-1)).squeeze(-1)
    lower, upper = middle - draw(size.samples, size.m).abs(), middle + draw(size.samples, size.m).abs()
    lower[:, : size.equalities] = upper[:, : size.equalities] = middle[:, : size.equalities]
    numbers = (centre + 3 * draw(size.samples, size.n), A, lower, upper)
    raw, A, lower, upper = (number.to(device=device, dtype=dtype) for number in numbers)
    return Case(raw, A, lower, upper, size.equalities)


def all_peers(device: str) -> dict[str, Peer]:
    """Every peer that could be asked for on this device; on a GPU our own path in plain torch is one of them."""
    every = torch_peers() | jax_peers()
    if device == "cpu":
        return every
    return {"hardnet, plain torch": Peer((), without_kernels)} | {name: every[name] for name in ON_DEVICE}


def without_kernels(case: Case) -> Run:
    """Ours as it is on a GPU without Triton."""
    run = ours(case)
    return run._replace(forward=_in_torch(run.forward), both=run.both and _in_torch(run.both))


def _in_torch(work: Callable[[], Any]) -> Callable[[], Any]:
    """The work while nobody finds Triton."""

    def attempt() -> Any:
        there, gpu.HAS_TRITON = gpu.HAS_TRITON, False
        try:
            return work()
        finally:
            gpu.HAS_TRITON = there

    return attempt


def main_table(
    device: str = "cpu",
    out: Path | None = None,
    sizes: Sequence[Size] | None = None,
    dtype: torch.dtype = torch.float64,
    peers: Sequence[str] | None = None,
    seed: int = 0,
    seconds: float = 2.0,
) -> dict[str, Any]:
    """Time and judge hardnet and the peers on the same problems, print a table, return (and write) the figures.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        out: Where to write the JSON, if anywhere.
        sizes: What to run; the sizes of the published comparison by default.
        dtype: Of all numbers.
        peers: Names of the peers to run; all installed ones by default.
        seed: Of the problems.
        seconds: Time to spend on each tool and size, at least five calls.
    """
    known = all_peers(device)
    chosen = {name: known[name] for name in (known if peers is None else peers)}
    missing = [name for name, peer in chosen.items() if not peer.installed]
    tools = {"hardnet": Peer((), ours)} | {name: peer for name, peer in chosen.items() if peer.installed}
    rows: list[dict[str, Any]] = []
    result = {"environment": environment(device, seed), "dtype": str(dtype), "rows": rows, "missing": missing}
    if device != "cpu":
        result["copy_bytes_per_ms"] = timing.copy_bandwidth(device, megabytes=1024)
    for size in sizes or (CPU_SIZES if device == "cpu" else GPU_SIZES):
        case = problem(size, device, dtype, seed)
        exact = _exact(case)
        found = [_row(name, peer, case, str(size), exact, device, seconds) for name, peer in tools.items()]
        rows += _with_floor(found, size, dtype, result.get("copy_bytes_per_ms"))
        _print(rows, str(size))
        if out is not None:  # after every size: a run that is cut short keeps what it has
            write_json(out, result, indent=1)
    print("not installed:", ", ".join(missing) or "none")
    return result


def _with_floor(rows: list[dict[str, Any]], size: Size, dtype: torch.dtype, bandwidth: float | None) -> list[dict]:
    """What moving the numbers would take at the bandwidth of a copy, and how often a tool takes that; on a GPU."""
    if bandwidth is None:
        return rows
    forward, both = floors((size.samples, size.n, size.m), bandwidth, dtype.itemsize, size.shared)
    for row in rows:
        for key, floor in (("forward", forward), ("forward+backward", both)):
            if key in row:
                row[f"{key} floor"], row[f"{key} x floor"] = floor, row[key] / floor
    return rows


def _exact(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """The reference for all tools: our y and gradients, which the tests hold against independent solvers."""
    leaves = case.leaves()
    y = project_affine(*leaves)
    grads = torch.autograd.grad(y.sum(), leaves)
    return y.detach(), dict(zip(NUMBERS, grads, strict=True))


def _row(
    name: str, peer: Peer, case: Case, size: str, exact: tuple[Tensor, dict[str, Tensor]], device: str, seconds: float
) -> dict[str, Any]:
    """Times (scaled to the whole batch where a slow tool ran on a part of it), errors, and whether it is right."""
    count = min(peer.most or len(case.raw), len(case.raw))
    factor = len(case.raw) / count
    part = case if count == len(case.raw) else case.take(count)
    row: dict[str, Any] = {"size": size, "tool": name, "scaled": factor != 1}
    try:
        run = peer.build(part)
        works = {"forward": run.forward} | ({"forward+backward": run.both} if run.both else {})
        times = timing.time_all(works, device, seconds)
        row |= {key: factor * value for key, value in times.items()}
        row |= _errors(part, run.both() if run.both else (run.forward(), {}), exact)
    except FAILURES as error:
        return row | {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    row["right"] = all(row[key] is None or row[key] <= limit for key, limit in WRONG.items())
    return row


def _errors(
    case: Case, found: tuple[Tensor, dict[str, Tensor]], exact: tuple[Tensor, dict[str, Tensor]]
) -> dict[str, float | None]:
    """Worst violation, worst distance to the exact y, and worst relative error of a gradient that a tool has."""
    y, grads = found[0].detach().to(case.raw), found[1]
    product = (case.A @ y.unsqueeze(-1)).squeeze(-1)
    violation = torch.maximum(product - case.upper, case.lower - product).clamp_min(0).max().item()
    distance = (y - exact[0][: len(y)]).abs().max().item()
    whole, right = _by_row(case, grads), _by_row(case, exact[1])
    errors = [_relative(whole[name], right[name]) for name in whole if name != "A" or case.A.dim() == 3]
    return {"violation": violation, "distance": distance, "gradient error": max(errors) if errors else None}


def _by_row(case: Case, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients with both bounds of an equality added up: how a tool splits them is its own choice."""
    grads = {name: grad.to(case.raw) for name, grad in grads.items()}
    if "lower" in grads and "upper" in grads:
        total, tight = grads["lower"] + grads["upper"], torch.arange(case.A.shape[-2]) < case.equalities
        grads |= {name: torch.where(tight.to(total.device), total, grads[name]) for name in ("lower", "upper")}
    return grads


def _relative(found: Tensor, exact: Tensor) -> float:
    exact = exact[: len(found)]
    return ((found - exact).norm() / exact.norm().clamp_min(1e-300)).item()


def _print(rows: Sequence[dict[str, Any]], size: str) -> None:
    """The lines of one size, with the ratio of each tool's forward + backward to ours."""
    here = [row for row in rows if row["size"] == size]
    base = here[0]
    keys = ["forward", "forward+backward", "violation", "distance", "gradient error"]
    keys += [key for key in ("forward x floor", "forward+backward x floor") if key in base]
    lines = [
        [
            row["tool"] + ("~" if row["scaled"] else ""),
            *(row.get(key) for key in keys),
            _ratio(row, base),
            _verdict(row),
        ]
        for row in here
    ]
    print(f"\n{size}\n" + table_text(["tool", *keys, "ratio", "right"], lines), flush=True)


def _ratio(row: dict[str, Any], base: dict[str, Any]) -> float | None:
    key = "forward+backward" if "forward+backward" in row else "forward"
    return row[key] / base[key] if key in row and key in base else None


def _verdict(row: dict[str, Any]) -> str:
    return row["error"][:40] if "error" in row else ("yes" if row["right"] else "no")
