"""Answers that do not come from this library: Lawson-Hanson for the nearest point, a linear program for emptiness."""

import torch


def nearest_point(raw, A, lower, upper):
    """``argmin |y - raw|`` of one sample: least distance programming by non-negative least squares, polished once."""
    from scipy.optimize import nnls

    rows, right = torch.cat([A, -A]), torch.cat([upper, -lower])
    kept = right.isfinite()
    rows, right = rows[kept], right[kept]
    norm = rows.norm(dim=-1, keepdim=True)
    rows, right = rows / norm, right / norm.squeeze(-1)
    missing = rows @ raw - right  # rows z <= -missing with z = y - raw
    size = missing.abs().max()
    matrix = torch.cat([-rows.mT, (missing / size).unsqueeze(0)])
    target = torch.zeros(len(matrix), dtype=raw.dtype)
    target[-1] = 1.0
    weight, _ = nnls(matrix.numpy(), target.numpy(), maxiter=1000)
    active = torch.tensor(weight) > 0
    move = torch.linalg.lstsq(rows[active], -missing[active], driver="gelsd").solution
    return raw + move


def contradict(A, lower, upper):
    """Whether ``lower <= A y <= upper`` has no point, by a linear program over the rows scaled to length one."""
    from scipy.optimize import linprog

    rows, right = torch.cat([A, -A]), torch.cat([upper, -lower])
    kept = right.isfinite()
    rows, right = rows[kept], right[kept]
    norm = rows.norm(dim=-1, keepdim=True)
    rows, right = rows / norm, right / norm.squeeze(-1)
    found = linprog(torch.zeros(A.shape[-1]).numpy(), rows.numpy(), right.numpy(), bounds=(None, None))
    return found.status == 2


def two_stages(raw, A, lower, upper, weight):
    """The least ``sum w s^2`` with ``lower <= A y + s <= upper`` (s = 0 where w is 0), then the nearest y with it.

    By an interior point method, one sample at a time: s ``(k,)`` and y ``(n,)``. The second stage allows the slack to
    differ by what the first one is off.
    """
    import pytest

    cp = pytest.importorskip("cvxpy")

    point, slack = cp.Variable(len(raw)), cp.Variable(len(lower))
    matrix, soft = A.numpy(), weight > 0

    def inside(value, room=0.0):
        rows = [value[i] >= lower[i].item() - room for i in range(len(lower)) if lower[i] > -torch.inf]
        return rows + [value[i] <= upper[i].item() + room for i in range(len(upper)) if upper[i] < torch.inf]

    exact = {"solver": cp.CLARABEL, "tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
    hard = [slack[i] == 0 for i in range(len(lower)) if not soft[i]]
    cost = cp.sum(cp.multiply(weight.numpy(), cp.square(slack)))
    cp.Problem(cp.Minimize(cost), [*inside(matrix @ point + slack), *hard]).solve(**exact)
    least = torch.tensor(slack.value)
    least = torch.where(soft, least, 0.0)
    nearest = cp.Problem(cp.Minimize(cp.sum_squares(point - raw.numpy())), inside(matrix @ point + least.numpy(), 1e-8))
    nearest.solve(**exact)
    return least, torch.tensor(point.value)
