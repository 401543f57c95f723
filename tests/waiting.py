"""Operations that make the host wait for a GPU, refused on a CPU: what a CUDA graph cannot capture."""

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = (
    "_local_scalar_dense is_nonzero nonzero masked_select unique _unique2 unique_dim equal _linalg_svd linalg_eig "
    "_linalg_eigh linalg_lstsq linalg_pinv _linalg_check_errors linalg_matrix_rank repeat_interleave "
    "_linalg_solve_ex linalg_lu_factor_ex linalg_lu_solve linalg_inv_ex cholesky_solve"
).split()
"""Reading a value, counting non-zeros, factorizations that check themselves or iterate on the host, and batched ones
that ask the device for memory: those of LU, and the solve that belongs to Cholesky. Triangular solves do not."""


class NoWait(TorchDispatchMode):
    """Refuses every operation that makes the host wait for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket._qualified_op_name.removeprefix("aten::")
        assert name not in WAITS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))
