"""A safety filter of a robot with two inputs, compiled for C++: `python export.py`, then CMake as in README.md.

Writes policy.pt2 (the program), states.bin and expected.bin (1000 states, and the inputs that Python answers).
"""

import torch

import hardnet as hn

CENTERS = torch.tensor([[1.5, 0.1], [-0.5, 1.0], [0.3, -1.2]])
RADIUS, RATE = 0.7, 2.0


def barrier(state):
    """h(state) >= 0 outside the discs, (*batch, 3)."""
    return (state.unsqueeze(-2) - CENTERS).square().sum(-1) - RADIUS**2


def normals(state):
    """grad h, (*batch, 3, 2)."""
    return 2 * (state.unsqueeze(-2) - CENTERS)


def least(state):
    """grad h . u >= -rate h keeps h from falling below 0."""
    return -RATE * barrier(state)


def make_model():
    """Inputs within the actuators' limits always; out of the discs as far as these allow."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    discs = hn.Affine(normals, lower=least, name="disc")
    limits = hn.Box([-0.5, -0.5], [0.5, 0.5], name="thrust")
    return hn.HardNet(net, limits & hn.Relaxed(discs, weight=[1.0, 10.0, 1.0]), "projection").eval()


if __name__ == "__main__":
    model = make_model()
    states = 2 * torch.randn(1000, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(states)
        shapes = ({0: torch.export.Dim("batch", min=1)},)
        program = torch.export.export(model, (states[:8],), dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(program, package_path="policy.pt2")
    for name, numbers in (("states", states), ("expected", expected)):
        with open(f"{name}.bin", "wb") as file:
            file.write(numbers.contiguous().numpy().tobytes())
    print(hn.check(model.constraint, expected, states))
