"""Lightning training with the constraint in the logs: violation by name, displacement, gradient that is kept."""

import warnings

import pytorch_lightning as pl
import torch

import hardnet as hn
from hardnet.integrations.lightning import ConstraintMonitor


class Policy(pl.LightningModule):
    """A network that learns a control within a budget that depends on x."""

    def __init__(self):
        super().__init__()
        net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.SiLU(), torch.nn.Linear(64, 3))
        budget = hn.Affine([[1.0, 1.0, 1.0]], upper=lambda x: x[..., :1].abs(), name="budget")
        self.model = hn.HardNet(net, budget & hn.Box(0.0, 1.0, name="limits"))

    def training_step(self, batch, _):
        """Squared error of the enforced output."""
        x, target = batch
        return (self.model(x) - target).square().mean()

    def configure_optimizers(self):
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    """Two epochs, and what the monitor logged last."""
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    torch.manual_seed(0)
    x = torch.randn(512, 2)
    data = torch.utils.data.TensorDataset(x, torch.rand(512, 3))
    monitor = ConstraintMonitor(every_n_steps=4)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, callbacks=[monitor], **quiet)
    trainer.fit(Policy(), torch.utils.data.DataLoader(data, batch_size=64))
    for name, value in sorted(trainer.logged_metrics.items()):
        print(f"{name:32} {value.item():.3g}")


if __name__ == "__main__":
    main()
