"""The network and the set of the examples of this folder; run once, it writes a model and a table for them."""

import sys

import torch

import hardnet as hn


def build():
    """The architecture that `hn.save` wrote the weights of."""
    return torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def budget(x):
    """What the two outputs may add up to."""
    return x[..., :1].abs()


limits = hn.Affine(torch.ones(1, 2), upper=budget, name="budget") & hn.Box(-1.0, 1.0)


def make_model():
    """The saved model."""
    return hn.load("policy", build(), limits)


if __name__ == "__main__":
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = int(sys.argv[1])
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    hn.save(hn.HardNet(build(), limits), "policy", example=x[:2])
    columns = {"id": range(rows), "speed": x[:, 0].numpy(), "angle": x[:, 1].numpy(), "load": x[:, 2].numpy()}
    pq.write_table(pa.table(columns), "states.parquet", row_group_size=rows // 8)
