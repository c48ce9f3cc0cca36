"""The passes that only models with parameters show: golden files have none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jit_passes import Pipeline, prepare_qat, run_pass
from jit_passes.passes.subject import wrap
from jit_passes.stages.normalize import normalize_training
from tests.qat_nets import Shared, batch, compiled, nodes_of, seeded

Make = Callable[[], nn.Module]


class Block(nn.Module):
    """A weighted operator and a batch norm; `mode` says what is in between."""

    def __init__(self, layer: nn.Module, norm: nn.Module, mode: str = "") -> None:
        super().__init__()
        self.layer = layer
        self.between = nn.ReLU() if mode == "relu" else nn.Identity()
        self.norm = norm
        self.used = nn.Identity() if mode == "used" else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.between(self.layer(x))
        z = self.norm(y)
        if self.used is not None:
            return z, self.used(y)
        return z, z


def norm2d(**options: bool) -> nn.Module:
    return nn.BatchNorm2d(4, **options)


DEFERRED: dict[str, Make] = {
    "conv": lambda: Block(nn.Conv2d(4, 4, 3), norm2d()),
    "no_bias": lambda: Block(nn.Conv2d(4, 4, 3, bias=False), norm2d()),
    "groups": lambda: Block(nn.Conv2d(4, 4, 3, groups=4), norm2d()),
    "transposed": lambda: Block(nn.ConvTranspose2d(4, 4, 3), norm2d()),
    "not_affine": lambda: Block(nn.Conv2d(4, 4, 3), norm2d(affine=False)),
}
LEFT: dict[str, Make] = {
    "no_statistics": lambda: Block(nn.Conv2d(4, 4, 3), norm2d(track_running_stats=False)),
    "relu": lambda: Block(nn.Conv2d(4, 4, 3), norm2d(), "relu"),
    "used": lambda: Block(nn.Conv2d(4, 4, 3), norm2d(), "used"),
    "transposed_groups": lambda: Block(nn.ConvTranspose2d(4, 4, 3, groups=2), norm2d()),
    "no_weights": lambda: Block(nn.MaxPool2d(2), norm2d()),
}


@pytest.mark.parametrize("origin", ["scripted", "traced_in_training", "traced_in_eval"])
@pytest.mark.parametrize("name", [*DEFERRED, *LEFT])
def test_defer_batch_norm(name: str, origin: str) -> None:
    """The operators that fold_batch_norm will fold, and no others."""
    x = batch(2, 4, 6, 6)
    model = compiled(seeded((DEFERRED | LEFT)[name]()), x, origin)
    marked = wrap(normalize_training(model))
    deferred = nodes_of(marked, "jit_passes::deferred_batch_norm")
    left = nodes_of(marked, "aten::batch_norm")
    assert (len(deferred), len(left)) == ((1, 0) if name in DEFERRED else (0, 1))
    again = run_pass("defer_batch_norm", marked)
    assert len(nodes_of(again, "jit_passes::deferred_batch_norm")) == len(deferred)
    model.eval()
    marked.eval()
    if origin == "traced_in_training":
        return  # it has a batch norm that trains in both modes
    assert all(torch.equal(a, b) for a, b in zip(model(x), marked(x), strict=True))


class MCDropout(nn.Module):
    """Drops numbers in eval mode too, as its author wants."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, True)


def test_follow_mode_leaves_a_constant_of_the_user() -> None:
    """A scripted dropout that is always on stays on, whatever its module is called."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), MCDropout()))
    marked = wrap(normalize_training(model))
    marked.eval()
    dropped = float((marked(batch(4, 3, 10, 10)) == 0).float().mean())
    assert 0.4 < dropped < 0.6


def test_pool_attributes() -> None:
    """Each attribute is read once, ahead of all else; modules that are called twice as well."""
    x = batch(2, 4, 6, 6)
    model = compiled(seeded(Shared), x, "scripted_in_eval")
    pooled = run_pass("pool_attributes", model)
    names = [str(node).split("=", 1)[1] for node in nodes_of(pooled, "prim::GetAttr")]
    assert len(nodes_of(model, "prim::CallMethod")) > 0
    reads = [n.kind() for n in pooled.graph.nodes()][: len(names)]
    assert set(reads) == {"prim::GetAttr"}
    assert len(names) == len(set(names))
    assert torch.equal(pooled(x), model(x))


class Counting(nn.Module):
    """Assigns an attribute that it reads before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 1
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.count + self.total
        self.count = self.count + 1
        self.total = self.total + 1
        return y * self.count + self.total


def test_pool_attributes_leaves_what_is_assigned() -> None:
    model = torch.jit.script(Counting())
    pooled = run_pass("pool_attributes", model)
    assert len(nodes_of(pooled, "prim::GetAttr")) == len(nodes_of(model, "prim::GetAttr"))
    assert torch.equal(model(torch.ones(1)), pooled(torch.ones(1)))


def test_normal_form_trains_alike() -> None:
    """All of it together: the same results and gradients, to the bit of a kernel."""
    x = batch(2, 4, 6, 6)
    for origin in ("scripted", "traced_in_training"):
        model = compiled(seeded(Shared), x, origin)
        normal = wrap(normalize_training(compiled(seeded(Shared), x, origin)))
        for mode in (True, False) if origin == "scripted" else (True,):
            one, other = model.train(mode)(x), normal.train(mode)(x)
            assert torch.allclose(one, other, atol=1e-6)
            if mode:
                one.square().sum().backward()
                other.square().sum().backward()
        if origin == "scripted":
            for (name, p), (_, q) in zip(
                model.named_parameters(), normal.named_parameters(), strict=True
            ):
                assert p.grad is not None and q.grad is not None
                assert torch.allclose(p.grad, q.grad, atol=1e-4), name


class Flags(nn.Module):
    """A branch on a flag, a number that is assigned, and the mode."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.rounds = 0
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.rounds += 1
        y = self.conv(x)
        if self.residual:
            y = y + x
        return y if self.training else torch.relu(y)


@pytest.mark.parametrize("residual", [True, False])
def test_fold_attributes(residual: bool) -> None:
    """The flag is a constant; what is assigned, and the mode, are read."""
    model = torch.jit.script(seeded(Flags(residual)))
    folded = run_pass("fold_attributes", model)
    reads = {node.s("name") for node in nodes_of(folded, "prim::GetAttr")}
    assert "residual" not in reads and {"rounds", "training", "weight"} <= reads
    x = batch(2, 4, 3, 3)
    for mode in (True, False):
        assert torch.equal(folded.train(mode)(x), model.train(mode)(x))
    assert folded.rounds == model.rounds == 2
    again = Pipeline("again", ("fold_attributes",)).run(folded)
    assert not again.records[0].changed
    # And so a model that trains has the branch on its mode only.
    qat = prepare_qat(model.train(), target="reference")
    assert len(nodes_of(qat, "prim::If")) == 1
