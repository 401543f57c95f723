"""Train the two models of the playground and export them: ``python docs/playground/make_models.py``.

A graph maps ``x (batch, n)`` and ``push (batch, k)`` to ``raw = net(x) + push`` and ``y``, which is raw enforced in
C(x). The push is zero in training; the page lets the reader disturb the network with it. Beside the two ``.onnx`` files
stands ``models.json``: what they reached, and the command, revision, versions, device, date and seed they came from.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.layers import Layer
from hardnet.layers.auto import build_layer
from hardnet_lab.experiments.recipes import all_methods
from hardnet_lab.experiments.results import environment, write_json
from hardnet_lab.experiments.run import build_model, final_metrics
from hardnet_lab.problems import PROBLEMS, Problem
from hardnet_lab.train import Training, stacked_net, streams_of

FOLDER = Path(__file__).parent / "models"
STAMP = "models.json"
SEED = 1


@dataclass(frozen=True)
class Recipe:
    """How one model is trained: a method of the tables, the epochs, and the rate of Adam."""

    method: str
    epochs: int
    learning_rate: float


RECIPES = {"pwc": Recipe("aff", 1000, 1e-4), "cbf": Recipe("projection", 40, 3e-4)}


class Encoded(nn.Module):
    """``mlp(encode(x))``: the network of a problem as plain Linear layers.

    Args:
        problem: Says what the network sees of x, and its widths.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        sizes = (problem.encoded_dim, *problem.hidden.sizes, problem.output_dim)
        self.encode = problem.encode
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``(batch, n)`` to ``(batch, k)``."""
        features = self.encode(x)
        for linear in list(self.linears)[:-1]:
            features = linear(features).relu()
        return self.linears[-1](features)


class Shipped(nn.Module):
    """``raw = net(x) + push`` and ``y`` in C(x): what is exported.

    Args:
        net: From x to the raw output.
        layer: Enforces C(x).
    """

    def __init__(self, net: nn.Module, layer: Layer) -> None:
        super().__init__()
        self.net, self.layer = net, layer

    def forward(self, x: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        """Map x ``(batch, n)`` and push ``(batch, k)`` to raw and y, both ``(batch, k)``."""
        raw = self.net(x) + push
        return raw, self.layer(raw, x)


def shipped(name: str) -> Shipped:
    """The float32 module of a model, with untrained weights."""
    problem = PROBLEMS[name]()
    return Shipped(Encoded(problem), build_layer(problem.constraint, RECIPES[name].method)).float().eval()


def train(name: str, epochs: int | None = None) -> tuple[Shipped, dict[str, Any]]:
    """Train one model with the experiments' own machinery; it and what it reached on the test inputs in float64."""
    recipe, problem = RECIPES[name], PROBLEMS[name]()
    method, streams = all_methods()[recipe.method], streams_of([SEED])
    stacked = build_model(problem, method, streams)
    settings = method.settings(problem, epochs or recipe.epochs, stacked.layer.guarantee)
    training = Training(problem, stacked, streams, replace(settings, learning_rate=recipe.learning_rate))
    training.run()
    reached = {metric: values[0] for metric, values in final_metrics(problem, training).items()}
    about = {"method": recipe.method, "epochs": settings.epochs, "learning_rate": recipe.learning_rate}
    model = shipped(name)
    take_weights(model.net, stacked_net(stacked))
    return model, about | {"test": reached}


@torch.no_grad()
def take_weights(net: nn.Module, stacked: nn.Module) -> None:
    """Copy the first seed's weights ``(in, out)`` and biases into plain Linear layers."""
    for plain, source in zip(net.linears, stacked.linears, strict=True):  # pyright: ignore[reportArgumentType]
        plain.weight.copy_(source.weight[0].T)
        plain.bias.copy_(source.bias[0, 0])


def export(model: Shipped, name: str, path: Path) -> None:
    """Write the graph with a free batch size, and nothing in it of the machine that made it."""
    problem, batch = PROBLEMS[name](), torch.export.Dim("batch")
    x = problem.test[:7].float()
    push = torch.zeros(7, problem.output_dim)
    program = torch.onnx.export(
        model,
        (x, push),
        input_names=["x", "push"],
        output_names=["raw", "y"],
        dynamic_shapes=({0: batch}, {0: batch}),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    path.write_bytes(_plain(program.model_proto).SerializeToString())


def _plain(proto: Any) -> Any:
    """The same graph without notes: the exporter writes the stack trace of every operation, with paths."""
    parts = [proto, proto.graph, *proto.functions, *proto.graph.node, *proto.graph.value_info]
    parts += [*proto.graph.input, *proto.graph.output, *proto.graph.initializer]
    for part in parts:
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    proto.graph.ClearField("value_info")
    return proto


def main() -> None:
    """Train, export and stamp."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, help="for a quick look; the recipes' own by default")
    parser.add_argument("--out", type=Path, default=FOLDER)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    stamp: dict[str, Any] = environment("cpu", SEED) | {"models": {}}
    stamp["command"] = shlex.join(["python", "docs/playground/make_models.py", *sys.argv[1:]])
    stamp["versions"] |= {package: metadata.version(package) for package in ("onnx", "onnxscript")}
    for name in RECIPES:
        model, stamp["models"][name] = train(name, asked.epochs)
        export(model, name, asked.out / f"{name}.onnx")
    write_json(asked.out / STAMP, stamp)


if __name__ == "__main__":
    main()
