"""Each family that ships, from the model to ONNX Runtime: every sample is solved, holds, and agrees with eager code."""

import pytest

from benchmarks import shipped

QUICK = ("a ball", "few rows")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in shipped.FAMILIES]
)
def test_a_family_holds_in_onnx_runtime(name):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = shipped.measure(name, 2000, aot=False)["onnx"]
    assert found["solved"] == found["hold"] == found["samples"]
    assert found["moved"] > found["samples"] / 2
    assert found["from_eager"] <= 1e-4  # float32 outputs of size 10, rows of condition 10
