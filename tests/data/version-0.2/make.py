"""How these models were made, at revision 8ed4124: ``PYTHONPATH=src:. python make.py FOLDER`` in a checkout of it."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import hardnet as hn
from tests.cases import CASES

NAMES = (
    "aff-constant aff-moving aff-strict aff-eq projection-many-rows projection-moving projection-relaxed cvx-simplex "
    "cvx-ball cvx-quadratic cvx-cone cvx-lmi cvx-mixed nonlinear nonlinear-retract dc3 dc3-moving kkt-hpinn acnet "
    "rayen-point rayen-curved linsat cdgm cone"
)

if __name__ == "__main__":
    expected, folder = {}, Path(sys.argv[1])
    for case in CASES:
        if case.name in NAMES.split():
            layer = case.layer()
            net = torch.nn.Linear(case.input_dim or 4, layer.raw_dim or case.raw_dim).double()
            generator = torch.Generator().manual_seed(3)
            for part in net.parameters():
                part.data = torch.randn(part.shape, generator=generator, dtype=torch.float64) * case.spread
            model, x = hn.HardNet(net, layer.constraint, layer), case.data()[0]
            x = torch.randn(6, 4, generator=generator, dtype=torch.float64) if x is None else x
            hn.save(model, folder / case.name, example=x)
            expected |= {f"{case.name}.x": x, f"{case.name}.y": model(x).detach()}
    save_file(expected, folder / "expected.safetensors")
