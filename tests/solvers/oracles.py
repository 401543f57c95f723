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
