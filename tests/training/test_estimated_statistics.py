"""Statistics of batch norms after training: beside PyTorch's, and beside sums by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import jit_passes
from jit_passes.errors import JitPassesError
from tests.advice import traced_branches
from tests.qat_nets import METHODS, Net, Plain, batch

Model = torch.jit.ScriptModule
DATA = [batch(8, 3, 8, 8, seed=seed) * 2 + 1 for seed in range(5)]


def trained(
    net: nn.Module, make: Callable[[nn.Module], Model] = torch.jit.script, **how: Any
) -> Model:
    """A model whose scales have begun and whose running averages lag behind."""
    model = jit_passes.prepare_qat(make(net), **{"bits": 4, **how}).train()
    for x in DATA[:2]:
        model(x)
    return model


def traced(net: nn.Module) -> Model:
    return torch.jit.trace(net.train(), DATA[0], check_trace=False)


@traced_branches
@pytest.mark.parametrize(
    ("make", "momentum"),
    [  # A trace keeps the factor of its one batch, which is another one without momentum.
        *((make, momentum) for make in (torch.jit.script, traced) for momentum in (0.1, 0.5)),
        (torch.jit.script, None),
    ],
)
def test_float_statistics_equal_pytorchs(make: Any, momentum: float | None) -> None:
    torch.manual_seed(0)
    net = Net()
    net.bn1.momentum = net.bn2.momentum = momentum
    plain = copy.deepcopy(net)
    model = trained(net, make)
    jit_passes.disable_fake_quantize(model)
    jit_passes.estimate_statistics(model, DATA)
    update_bn(DATA, plain.train())
    for name in ("bn1", "bn2"):
        for key in ("running_mean", "running_var"):
            found, wanted = (getattr(getattr(m, name), key) for m in (model, plain))
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


def test_quantized_statistics_equal_sums_by_hand() -> None:
    """Of the convolution of quantized inputs with quantized weights, in double."""
    torch.manual_seed(0)
    model = trained(Single(), bits=3)
    norm, conv = model.bn, model.conv
    factor = (norm.weight / (norm.running_var + 1e-5).sqrt()).detach().double()
    scale = conv.weight_scale.detach().double()
    step = (scale / factor).reshape(-1, 1, 1, 1)
    weight = (conv.weight.detach() / step).round().clamp(-3, 3) * step
    grid = conv.input_scale.detach().double()
    results = [
        nn.functional.conv2d((x / grid).round().clamp(-4, 3) * grid, weight)
        .transpose(0, 1)
        .flatten(1)
        for x in DATA
    ]
    jit_passes.estimate_statistics(model, iter(DATA))
    mean = torch.stack([y.mean(1) for y in results]).mean(0)
    var = torch.stack([y.var(1) for y in results]).mean(0)
    assert torch.allclose(norm.running_mean.double(), mean, rtol=1e-4, atol=1e-4)
    assert torch.allclose(norm.running_var.double(), var, rtol=1e-4)
    after = (norm.weight / (norm.running_var + 1e-5).sqrt()).detach().double()
    assert torch.allclose(conv.weight_scale.detach().double() / scale, after / factor, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_codes_stay(method: str) -> None:
    """Where scales can follow; powers of two cannot. Nothing else of the model changes."""
    torch.manual_seed(0)
    model = trained(Net(), fake_quantizer=method)
    model.eval()
    model.bn1.train()
    jit_passes.freeze_statistics(model)
    before = jit_passes.Oscillations(model).state_dict()["weights"]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    jit_passes.estimate_statistics(model, DATA, progress=False)
    after = jit_passes.Oscillations(model).state_dict()["weights"]
    same = [torch.equal(after[name]["codes"], it["codes"]) for name, it in before.items()]
    assert all(same) == (method != "tqt")
    changed = {name for name, t in model.state_dict().items() if not torch.equal(t, state[name])}
    scales = {"conv1.weight_scale", "conv2.weight_scale"} if method.startswith("lsq") else set()
    ranges = {name for name in changed if name.endswith("weight_range")}
    assert changed - ranges == scales | {
        f"bn{k}.running_{what}" for k in (1, 2) for what in ("mean", "var")
    }
    assert not model.training and model.bn1.training and not model.bn2.training
    parity = jit_passes.parity(model.eval(), jit_passes.convert(model), DATA[:1])
    assert parity.equal, str(parity)


def test_dead_channels_stay_dead() -> None:
    """The variance of a constant is 0, and not below it by the last bit."""
    torch.manual_seed(0)
    net = Single()
    with torch.no_grad():
        net.conv.weight[1] = 0
        net.bn.running_var.fill_(1e3)
    model = trained(net)
    jit_passes.estimate_statistics(model, DATA)
    assert 0 <= model.bn.running_var[1] < 1e-3
    assert model(DATA[0]).isfinite().all() and model.conv.weight_scale.isfinite().all()


class Rare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.often, self.rare = Single(), Single()

    def forward(self, x: Tensor, rare: bool = False) -> Tensor:
        return self.rare(x) if rare else self.often(x)


def test_branches() -> None:
    """Batches count where they go; a batch norm that none reaches stays as it is, and is told."""
    torch.manual_seed(0)
    model = jit_passes.prepare_qat(torch.jit.script(Rare()), bits=4).train()
    for rare in (False, True):
        model(DATA[0], rare)
    twin = copy.deepcopy(model)
    before = model.rare.bn.running_var.clone()
    with pytest.warns(jit_passes.JitPassesWarning, match="data never reached 'rare.bn:batch_norm'"):
        jit_passes.estimate_statistics(model, DATA)
    assert torch.equal(model.rare.bn.running_var, before)
    jit_passes.estimate_statistics(twin, [{"x": x, "rare": k > 2} for k, x in enumerate(DATA)])
    assert not torch.equal(twin.rare.bn.running_var, before)
    with pytest.warns(jit_passes.JitPassesWarning, match="never reached"):
        jit_passes.estimate_statistics(model, DATA[:3])
    assert torch.allclose(twin.often.bn.running_var, model.often.bn.running_var, rtol=1e-4)


def test_errors_change_nothing() -> None:
    torch.manual_seed(0)
    model = trained(Net())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(JitPassesError, match=r"batch 1 of the data does not run\. .* 3 channels"):
        jit_passes.estimate_statistics(model, [DATA[0], torch.randn(2, 5, 8, 8)])
    with pytest.raises(
        JitPassesError, match=r"batch 0 of the data does not run: it has 2 parts.*pass input_fn"
    ):
        jit_passes.estimate_statistics(model, [(DATA[0], torch.zeros(8))])
    with pytest.raises(JitPassesError, match=r"batch 1 of the data.* NaN"):
        jit_passes.estimate_statistics(model, [DATA[0], DATA[1] * torch.nan])
    with pytest.raises(JitPassesError, match="the data is empty"):
        jit_passes.estimate_statistics(model, [])
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(JitPassesError, match="no batch norm whose statistics follow data"):
        jit_passes.estimate_statistics(jit_passes.prepare_qat(torch.jit.script(Plain())), DATA)
    with pytest.raises(JitPassesError, match=r"call jit_passes.prepare_qat\(model\) first"):
        jit_passes.estimate_statistics(torch.jit.script(Net()), DATA)
