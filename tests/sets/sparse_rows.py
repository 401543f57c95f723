"""Sparse rows that several tests need."""

import warnings

import torch

from tests.solvers.families import F64


def compressed(A):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its compressed rows a beta
        return A.to_sparse_csr()


def differences(n):
    return torch.eye(n, dtype=F64)[1:] - torch.eye(n, dtype=F64)[:-1]
