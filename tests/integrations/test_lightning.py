"""The monitor: what was logged is what happened, by name, and the layer is left as it was."""

import pytest
import torch

import hardnet as hn

pl = pytest.importorskip("pytorch_lightning")
from hardnet.integrations.lightning import ConstraintMonitor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
D = torch.float64


class Module(pl.LightningModule):
    def __init__(self, models):
        super().__init__()
        self.models = torch.nn.ModuleDict(models)

    def training_step(self, batch, _):
        return sum((model(batch) - 3).square().mean() for model in self.models.values())

    def validation_step(self, batch, _):
        return self.training_step(batch, _)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def constraint():
    return hn.Affine([[1.0, 1.0]], upper=1.0, name="budget") & hn.Box(-1.0, 1.0, name="limits")


def fit(models, **options):
    monitor = ConstraintMonitor(**options)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=[monitor], **quiet)
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=D)
    loaders = [torch.utils.data.DataLoader(x, batch_size=8) for _ in range(2)]
    module = Module(models)
    trainer.fit(module, *loaders)
    return x, {name: value.item() for name, value in trainer.callback_metrics.items()}


def test_what_is_logged_is_what_happened():
    model = hn.HardNet(torch.nn.Linear(2, 2).double(), constraint())
    with torch.no_grad():  # some samples are moved, whatever the weights of other tests were
        model.net.weight.copy_(2 * torch.eye(2))
        model.net.bias.zero_()
    x, logged = fit({"only": model}, every_n_steps=1)
    y, raw = model(x, return_raw=True)
    certificate = hn.check(model.constraint, y, x)
    assert logged["hardnet/violation/budget"] == pytest.approx(certificate.by_name()["budget"].violation, abs=1e-15)
    assert logged["hardnet/violation/limits"] == 0
    assert logged["hardnet/satisfied"] == 1
    distance = (y - raw).norm(dim=-1)
    assert logged["hardnet/displacement"] == pytest.approx(distance.mean().item(), rel=1e-6)
    assert logged["hardnet/moved"] == pytest.approx((distance > 0).double().mean().item())
    assert 0 < logged["hardnet/moved"] < 1
    flow = hn.gradient_flow(model, x, lambda y: (y - 3).square().mean())
    assert logged["hardnet/gradient_kept"] == pytest.approx(flow.kept[flow.moved].mean().item(), abs=1e-6)
    assert logged["val_hardnet/displacement"] == pytest.approx(logged["hardnet/displacement"])
    assert "val_hardnet/gradient_kept" not in logged


def test_a_soft_method_shows_its_violation():
    model = hn.HardNet(torch.nn.Linear(2, 2).double(), constraint(), "soft")
    with torch.no_grad():
        model.net.bias.fill_(5.0)
    _, logged = fit({"only": model}, every_n_steps=1)
    assert logged["hardnet/violation/budget"] > 1
    assert logged["hardnet/satisfied"] < 1


def test_several_models_have_their_paths_and_hooks_are_removed():
    models = {
        "first": hn.HardNet(torch.nn.Linear(2, 2).double(), constraint()),
        "second": hn.HardNet(torch.nn.Linear(2, 3).double(), hn.Simplex(4), "rayen"),
    }
    models["second"].net = torch.nn.Linear(2, models["second"].layer.raw_dim).double()
    _, logged = fit(models, every_n_steps=1)
    assert "hardnet/models.first/violation/budget" in logged
    assert "hardnet/models.second/violation/Simplex" in logged
    assert not any(model.layer._forward_hooks for model in models.values())


def test_only_every_few_steps_are_looked_at():
    with pytest.raises(hn.errors.OptionError, match="every_n_steps"):
        ConstraintMonitor(every_n_steps=0)


HALF = {"bf16-mixed": torch.float32, "bf16-true": torch.bfloat16, "16-true": torch.float16}


@pytest.mark.parametrize(("method", "moving"), [("aff", True), ("projection", False)])
@pytest.mark.parametrize("precision", HALF)
def test_fabric_keeps_the_rows_in_half_precision(precision, method, moving):
    """Weights and x in half types beside float32 constants: enforced in float32, y in the dtype of the network."""
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1, precision=precision)
    A = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    rows = hn.Affine((lambda x: x[..., :1, None] + A) if moving else A, upper=torch.ones(2))
    model = hn.HardNet(torch.nn.Linear(3, 4), rows, method=method)
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = 3 * torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
    before = [weight.detach().clone() for weight in model.parameters()]
    y = wrapped(x)
    fabric.backward((y.float() - 3).square().mean())
    optimizer.step()
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert y.isfinite().all()
    half = {"bf16-mixed": x, "bf16-true": x.bfloat16(), "16-true": x.half()}[precision]
    with fabric.autocast(), torch.no_grad():
        own = model(half)
    assert own.dtype == HALF[precision]
    certificate = hn.check(model.constraint, own, half)
    assert certificate.ok, certificate
    assert own.abs().max() > 0.5
