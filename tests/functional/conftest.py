"""The fixture `path`: tests that use it run once with compiled code and once with plain torch."""

import pytest

from hardnet.kernels.cpu import launch as cpu


@pytest.fixture(scope="module", params=["compiled", "torch"])
def path(request):
    """Use the code compiled by numba, or the torch formulas, as if numba were not installed."""
    if request.param == "compiled" and not cpu.HAS_NUMBA:
        pytest.skip("numba is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "HAS_NUMBA", request.param == "compiled")
        yield request.param
