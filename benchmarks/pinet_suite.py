"""Pinet itself (the package pinet-hcnn, in JAX) on the programs of its suite, with its own network and with ours.

``python -m benchmarks.pinet_suite pinet-small-convex [--network own,wide] [--seeds 1-5] [--out results/suites]`` writes
result files next to those of ``hardnet suite pinet``, so that the tables include them. Pinet's published settings: 50
iterations forward, 25 backward, sigma as tuned by its authors, omega 1.7, rows equilibrated; its network is 200-200
with ReLU, Adam 1e-2, batches of 2048, 50 epochs. The wide network is that of our recipe, with our optimizer. Training
times exclude compilation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hardnet_lab.experiments import recipes as specs
from hardnet_lab.experiments.results import Result, environment, write_result
from hardnet_lab.experiments.suites.catalog import find_case
from hardnet_lab.problems.suites import SuitePrograms

SIGMA = {100: 0.06806787572155291, 1000: 0.161}
"""Step size of the splitting by number of variables, as tuned by its authors."""
FORWARD, BACKWARD, OMEGA = 50, 25, 1.7


class Plan(NamedTuple):
    """How a network is trained."""

    label: str
    sizes: tuple[int, ...]
    activation: str
    epochs: int
    batch: int
    rate: float
    decay: float = 0.0
    dropout: float = 0.0
    displacement: float = 0.0
    cosine: bool = False
    skip: bool = False


def plans(problem: SuitePrograms, recipe: Any) -> dict[str, Plan]:
    """Pinet's own network and settings, and those of our recipe."""
    ours = recipe.settings
    return {
        "own": Plan("its own network", (200, 200), "relu", 50, 2048, 1e-2),
        "wide": Plan(
            "our network",
            recipe.hidden.sizes,
            recipe.hidden.activation,
            recipe.epochs,
            ours["batch_size"],
            ours["learning_rate"],
            ours["weight_decay"],
            recipe.hidden.dropout[0],
            ours["displacement"],
            cosine=True,
            skip=True,
        ),
    }


def enforcement(problem: SuitePrograms) -> Callable[[Any, Any], Any]:
    """Pinet's layer: raw ``(batch, n)`` and x ``(batch, equalities)`` to y."""
    from jax import numpy as jnp
    from pinet import (
        AffineInequalityConstraint,
        EqualityConstraint,
        EqualityConstraintsSpecification,
        EquilibrationParams,
        Project,
        ProjectionInstance,
    )

    A, b, C = (jnp.asarray(part.cpu().numpy())[None] for part in (problem.A, problem.b, problem.C))
    equality = EqualityConstraint(a_mat=C, b=jnp.zeros((1, C.shape[1], 1)), method=None, var_b=True)
    inequality = AffineInequalityConstraint(c_mat=A, lb=jnp.full((1, A.shape[1], 1), -jnp.inf), ub=b[..., None])
    layer = Project(equality, inequality, equilibration_params=EquilibrationParams(max_iter=25, tol=1e-3))
    sigma = SIGMA[problem.output_dim]

    def enforce(raw: Any, x: Any) -> Any:
        instance = ProjectionInstance(x=raw[..., None], eq=EqualityConstraintsSpecification(b=x[..., None]))
        found, _ = layer.call(y_raw=instance, sigma=sigma, omega=OMEGA, n_iter=FORWARD, n_iter_bwd=BACKWARD, fpi=False)
        return found.x[..., 0]

    return enforce


def initial(key: Any, sizes: tuple[int, ...], skip: bool) -> dict[str, Any]:
    """Weights and biases as in torch: uniform within ``1 / sqrt(inputs)``; a skip path of zeros."""
    import jax
    from jax import numpy as jnp

    weights: dict[str, Any] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        key, *own = jax.random.split(key, 3)
        bound = inputs**-0.5
        weights[f"W{layer}"] = jax.random.uniform(own[0], (inputs, outputs), float, -bound, bound)
        weights[f"b{layer}"] = jax.random.uniform(own[1], (outputs,), float, -bound, bound)
    return weights | ({"skip": jnp.zeros((sizes[0], sizes[-1]))} if skip else {})


def network(plan: Plan) -> Callable[..., Any]:
    """The network as a function of weights, x and, in training, a key for dropout after the first hidden layer."""
    import jax
    from jax import numpy as jnp

    activation = getattr(jax.nn, plan.activation)

    def apply(weights: dict[str, Any], x: Any, key: Any = None) -> Any:
        hidden = x
        for layer in range(len(plan.sizes)):
            hidden = activation(hidden @ weights[f"W{layer}"] + weights[f"b{layer}"])
            if key is not None and plan.dropout and layer == 0:
                kept = jax.random.bernoulli(key, 1 - plan.dropout, hidden.shape)
                hidden = jnp.where(kept, hidden / (1 - plan.dropout), 0.0)
        last = len(plan.sizes)
        raw = hidden @ weights[f"W{last}"] + weights[f"b{last}"]
        return raw + x @ weights["skip"] if plan.skip else raw

    return apply


def step_of(problem: SuitePrograms, plan: Plan, enforce: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """One step of Adam (AdamW if there is a decay) on one batch: ``(weights, first, second, count), x, key, rate``."""
    import jax
    from jax import numpy as jnp

    Q, p = (jnp.asarray(part.cpu().numpy()) for part in (problem.Q, problem.p))
    apply = network(plan)

    def loss(weights: Any, x: Any, key: Any) -> Any:
        raw = apply(weights, x, key)
        y = enforce(raw, x)
        linear = y if problem.convex else jnp.sin(y)
        value = (0.5 * Q * y**2 + p * linear).sum(-1)
        return (value + plan.displacement * ((jax.lax.stop_gradient(y) - raw) ** 2).sum(-1)).mean()

    def step(state: Any, x: Any, key: Any, rate: Any) -> Any:
        weights, first, second, count = state
        gradient, count = jax.grad(loss)(weights, x, key), count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
        grown = jax.tree.map(
            lambda w, m, v: (
                w * (1 - rate * plan.decay) - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
            ),
            weights,
            first,
            second,
        )
        return grown, first, second, count

    return step


def trained(problem: SuitePrograms, plan: Plan, seed: int) -> tuple[Callable[[Any], Any], float]:
    """The trained policy of one seed, from inputs to y, and the training time in seconds."""
    import jax
    from jax import numpy as jnp

    enforce, apply = enforcement(problem), network(plan)
    X = jnp.asarray(problem.inputs(problem.train).cpu().numpy())
    steps = len(X) // plan.batch
    key, own = jax.random.split(jax.random.key(seed))
    weights = initial(own, (problem.input_dim, *plan.sizes, problem.output_dim), plan.skip)
    zero = jax.tree.map(jnp.zeros_like, weights)
    step = step_of(problem, plan, enforce)

    def epoch(state: Any, key: Any, rate: Any) -> Any:
        order = jax.random.permutation(key, len(X))[: steps * plan.batch].reshape(steps, plan.batch)
        keys = jax.random.split(key, steps)
        return jax.lax.scan(lambda now, at: (step(now, X[at[0]], at[1], rate), None), state, (order, keys))[0]

    state = (weights, zero, zero, jnp.zeros(()))
    compiled = jax.jit(epoch).lower(state, key, jnp.asarray(plan.rate)).compile()
    began = time.perf_counter()
    for index in range(plan.epochs):
        key, own = jax.random.split(key)
        rate = plan.rate * (1 + jnp.cos(jnp.pi * index / plan.epochs)) / 2 if plan.cosine else jnp.asarray(plan.rate)
        state = compiled(state, own, rate)
    jax.block_until_ready(state)
    seconds = time.perf_counter() - began
    return jax.jit(lambda x: enforce(apply(state[0], x), x)), seconds


def result(problem: SuitePrograms, name: str, plan: Plan, seeds: list[int]) -> Result:
    """The result of all seeds, trained one after the other, as one of our result files."""
    import jax
    import numpy as np

    found: dict[str, list[float]] = {}
    spent = 0.0
    for seed in seeds:
        policy, seconds = trained(problem, plan, seed)
        spent += seconds
        y = torch.from_numpy(np.array(policy(problem.inputs(problem.test).numpy())))
        for metric, value in problem.evaluate(lambda _, y=y: y, problem.test).items():
            found.setdefault(metric, []).append(value.item())
    made = environment("cuda" if torch.cuda.is_available() else "cpu")
    made["versions"] |= {package: metadata.version(package) for package in ("jax", "pinet-hcnn")}
    made["jax device"] = str(jax.devices()[0])
    label = f"Pinet (pinet-hcnn {metadata.version('pinet-hcnn')}), {plan.label}"
    row = problem.name, "pinet", label, seeds, plan.epochs, found, {}, {"train_s": spent}, {}, made
    return Result(*row, f"pinet-{name}", f"Pinet's layer with {plan.label}, {plan.epochs} epochs, seeds one by one")


def main(arguments: list[str] | None = None) -> None:
    """Train Pinet on one case and write its result files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pinet_suite", description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--network", default="own,wide")
    parser.add_argument("--seeds", default="1-5")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/suites"))
    asked = parser.parse_args(arguments)
    import jax

    jax.config.update("jax_enable_x64", True)
    known = find_case(asked.case)
    problem = known[1].build() if known else None
    if known is None or not isinstance(problem, SuitePrograms):
        parser.error(f"{asked.case}: expected a case of Pinet's suite")
    for name in asked.network.split(","):
        plan = plans(problem, known[1].recipes[0])[name]
        plan = plan._replace(epochs=asked.epochs) if asked.epochs else plan
        made = result(problem, name, plan, specs.choose_seeds(asked.seeds))
        write_result(asked.out / f"{asked.case}.pinet-{name}.json", made)
        print(
            name, {metric: made.metrics.get(metric) for metric in ("gap", "worst_violation")}, made.timing, flush=True
        )


if __name__ == "__main__":
    main()
