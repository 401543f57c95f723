"""Who computes the closed form on a CPU: tests that use the fixture `path` run once for either."""

import pytest

from hardnet.kernels.cpu import launch as cpu


@pytest.fixture(scope="module", params=["compiled", "torch"])
def path(request):
    """The code that numba compiles, or the formulas in torch, as where numba is not installed."""
    if request.param == "compiled" and not cpu.HAS_NUMBA:
        pytest.skip("numba is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "HAS_NUMBA", request.param == "compiled")
        yield request.param
