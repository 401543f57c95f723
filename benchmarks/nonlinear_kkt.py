"""KKT-HardNet 1.0.2 on the equalities of `benchmarks.nonlinear`: the part of the comparison that runs in JAX.

It needs its own environment (``pip install kkt-hardnet==1.0.2``) and imports nothing from hardnet:
``python benchmarks/nonlinear_kkt.py cases.npz answers.npz``, with the cases written by
`benchmarks.nonlinear_peers --cases`; its option ``--kkt answers.npz`` reads the answers. It runs with two settings: the
defaults, and full steps with a damping of 1e-8. Times are processor time on one thread, without compilation, the
minimum of three.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
from kkthn.projection import ProjectionSettings, make_projection_layer  # pyright: ignore[reportMissingImports]

ROUNDS = 3
SETTINGS = {"default": {}, "full steps": {"newton_step_length": 1.0, "gn_reg": 1e-8}}


def column(y: Any, x: Any) -> Any:
    """Balances of an extractive distillation column."""
    own = [x[0] + x[1] - y[0] - y[1], 0.697616946 * x[0] - y[0] * y[2] - y[1] * y[5]]
    own += [0.302383054 * x[0] - y[0] * y[3] - y[1] * y[6], y[2] + y[3] + y[4] - 1, y[5] + y[6] + y[7] - 1]
    return jnp.stack([*own, x[2] * y[0] - y[8]])


def rotation(y: Any, x: Any) -> Any:
    """``Q'Q = I``, six rows."""
    Q = y.reshape(3, 3)
    return (Q.T @ Q - jnp.eye(3))[jnp.triu_indices(3)]


ROWS = {
    "ellipsoid": lambda y, x: jnp.stack([(y[0] / 3) ** 2 + y[1] ** 2 + 4 * y[2] ** 2 - 1]),
    "hyperbola": lambda y, x: jnp.stack([y[0] * y[1] - 1]),
    "torus": lambda y, x: jnp.stack([(jnp.sqrt(y[0] ** 2 + y[1] ** 2) - 2) ** 2 + y[2] ** 2 - 0.25]),
    "parabola": lambda y, x: jnp.stack([(y[0] / 2) ** 2 + x[0] ** 2 + y[1]]),
    "rotation": rotation,
    "column": column,
}


def layer(rows: Any, n: int, d: int, settings: dict[str, float]) -> Any:
    """KKT-HardNet's projection layer for the equalities ``rows(y, x) = 0``."""
    model = SimpleNamespace(
        var_spec=SimpleNamespace(total_size=n),
        parameter_spec=SimpleNamespace(shapes={"x": (d,)}),
        dtype=jnp.float64,
        bounds=SimpleNamespace(lower_fun=None, upper_fun=None),
        eq_residual=lambda parameters, y: rows(y, parameters["x"]),
        ineq_residual=lambda parameters, y: jnp.zeros((0,), dtype=y.dtype),
    )
    return make_projection_layer(model, settings=ProjectionSettings(**settings))


def main() -> None:
    """Solve all cases and write the answers."""
    cases, answers = np.load(sys.argv[1]), {}
    for name in sorted({key.split("/")[0] for key in cases.files}):
        raw, x = jnp.asarray(cases[f"{name}/raw"]), jnp.asarray(cases[f"{name}/x"])
        for spelled, settings in SETTINGS.items():
            project = layer(ROWS[name.split(",")[0]], raw.shape[1], x.shape[1], settings).project
            y = project(x, raw).block_until_ready()
            best = float("inf")
            for _ in range(ROUNDS):
                started = time.process_time()
                project(x, raw).block_until_ready()
                best = min(best, time.process_time() - started)
            answers[f"{name}/kkt-hardnet 1.0.2, {spelled}/y"] = np.asarray(y)
            answers[f"{name}/kkt-hardnet 1.0.2, {spelled}/ms"] = np.asarray(1e3 * best)
            print(name, spelled, f"{1e3 * best:.1f} ms", flush=True)
    np.savez(sys.argv[2], **answers)


if __name__ == "__main__":
    main()
