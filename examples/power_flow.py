"""A dispatch of an electric grid that is in balance: the nearest one to a network's guess, on the grid of 9 buses.

The outputs are the active and reactive power of 3 generators, and voltage and angle of 9 buses. Every bus must be in
balance: what the lines carry away, its load and its generation add up to zero, for active and reactive power.
"""

import torch

import hardnet as hn
from hardnet_lab.problems.suites.acopf import PowerBalance, PowerFlow, draw_loads

torch.manual_seed(0)
problem = PowerBalance("case9")
grid, constraint = problem.grid, problem.constraint  # hn.Nonlinear(balance, ...) & hn.Box(...)

loads = draw_loads(grid, 32, seed=1)
guess = grid.nominal + 0.05 * torch.randn(32, grid.size, dtype=torch.float64)  # what a network might say
print(f"guess: out of balance by up to {grid.balance(guess, loads).abs().max():.3f} of the base power")

layer = hn.layers.NonlinearLayer(constraint)
found = layer.solve(guess, loads)
violation = hn.check(constraint, found.y, loads).max_violation
print(f"nearest dispatch: {(found.status == 0).sum()} of 32 found, worst violation {violation:.1e}")
print(f"moved by {(found.y - guess).norm(dim=-1).mean():.3f} on average")
assert violation <= 1e-8

# the rest of a dispatch also follows from the free powers and the voltages of the generators, by the power flow: the
# balance then holds whatever a network says, and the layer is left with the bounds of what follows
flow = PowerFlow("case9")
controls = torch.nn.Parameter(grid.chosen(guess))
layer = hn.layers.NonlinearLayer(flow.constraint, mode="retract")
optimizer = torch.optim.Adam([controls], lr=0.05)
for step in range(21):
    u = layer(controls, loads)
    price = flow.value(u, loads).mean()
    optimizer.zero_grad()
    price.backward()
    optimizer.step()
    if step % 10 == 0:
        worst = max(part.max().item() for part in flow.residuals(u, loads))
        print(f"step {step}: price {price:.4f}, worst violation of the whole dispatch {worst:.0e}")
