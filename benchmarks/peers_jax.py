"""The other tools written in JAX, with the calls of `benchmarks.peers`; gradients are jitted like the forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import Peer, Run
from benchmarks.problems import NUMBERS, Case


def through_jax(case: Case, project: Callable[..., Any], wanted: tuple[str, ...] = NUMBERS) -> Run:
    """A run of a batched JAX function of raw, A, lower, upper; `wanted` names the gradients it has."""
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    arrays = [jax.numpy.asarray(part.detach().cpu().numpy()) for part in case[:4]]
    places = tuple(NUMBERS.index(name) for name in wanted)
    solve = jax.jit(project)

    def summed(*numbers: Any) -> tuple[Any, Any]:
        y = project(*numbers)
        return y.sum(), y

    slopes = jax.jit(jax.grad(summed, argnums=places, has_aux=True))

    def tensor(array: Any) -> Tensor:
        return torch.from_numpy(np.array(array))

    def both() -> tuple[Tensor, dict[str, Tensor]]:
        grads, y = slopes(*arrays)
        return tensor(y), {name: tensor(grad) for name, grad in zip(wanted, grads, strict=True)}

    return Run(lambda: tensor(solve(*arrays)), both)


def jaxopt(case: Case) -> Run:
    """BoxOSQP of jaxopt."""
    import jax
    from jax import numpy as jnp
    from jaxopt import BoxOSQP

    solver, eye = BoxOSQP(jit=True), jnp.eye(case.raw.shape[-1])

    def one(raw: Any, A: Any, lower: Any, upper: Any) -> Any:
        return solver.run(params_obj=(eye, -raw), params_eq=A, params_ineq=(lower, upper)).params.primal[0]

    return through_jax(case, jax.vmap(one, in_axes=(0, None if case.A.dim() == 2 else 0, 0, 0)))


def qpax(case: Case) -> Run:
    """The primal-dual interior point of qpax."""
    import jax
    import qpax as package
    from jax import numpy as jnp

    k, eye = case.equalities, jnp.eye(case.raw.shape[-1])

    def one(raw: Any, A: Any, lower: Any, upper: Any) -> Any:
        G, h = jnp.concatenate([A[k:], -A[k:]]), jnp.concatenate([upper[k:], -lower[k:]])
        return package.solve_qp_primal(eye, -raw, A[:k], upper[:k], G, h)

    return through_jax(case, jax.vmap(one, in_axes=(0, None if case.A.dim() == 2 else 0, 0, 0)))


def pinet(iterations: int) -> Callable[[Case], Run]:
    """Douglas-Rachford splitting of pinet; it has no gradients for A and the bounds."""

    def build(case: Case) -> Run:
        import jax
        from jax import numpy as jnp
        from pinet import AffineInequalityConstraint, EqualityConstraint, Project, ProjectionInstance

        jax.config.update("jax_enable_x64", True)
        k = case.equalities
        A = jnp.asarray((case.A if case.A.dim() == 3 else case.A.unsqueeze(0)).cpu().numpy())
        lower, upper = (jnp.asarray(bound.cpu().numpy())[..., None] for bound in (case.lower, case.upper))
        equality = EqualityConstraint(a_mat=A[:, :k], b=upper[:, :k], method="pinv") if k else None
        inequality = AffineInequalityConstraint(c_mat=A[:, k:], lb=lower[:, k:], ub=upper[:, k:])
        layer = Project(eq_constraint=equality, ineq_constraint=inequality)

        def project(raw: Any, *_: Any) -> Any:
            instance = ProjectionInstance(x=raw[..., None])
            start = layer.initialize(instance)
            return layer.call(s0=start, y_raw=instance, n_iter=iterations)[0].x[..., 0]

        return through_jax(case, project, ("raw",))

    return build


def jax_peers() -> dict[str, Peer]:
    """The tools in JAX, by name."""
    return {
        "jaxopt BoxOSQP": Peer(("jaxopt", "numpy"), jaxopt, 100),
        "qpax": Peer(("qpax", "numpy"), qpax, 256),
        "pinet 100": Peer(("pinet", "numpy"), pinet(100)),
        "pinet 1000": Peer(("pinet", "numpy"), pinet(1000), 256),
    }
