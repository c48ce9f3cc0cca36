"""Training that starts at the codes of a calibrated model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import JitPassesError
from jit_passes.graph.view import GraphView
from tests.qat_nets import Net, Plain, Twice, batch

Model = torch.jit.ScriptModule
HOW: dict[str, Any] = {"target": "reference", "mode": "static"}
DATA = [batch(8, 3, 8, 8, seed=seed) for seed in range(8)]


def configuration(bits: int = 3, **weight: Any) -> dict[str, Any]:
    options = {"bits": bits, "calibration": "output_error", **weight}
    return {"version": 1, "global": {"weight": options, "input": {"bits": 4}}}


def both(
    net: nn.Module, how: str | None = "gptq", data: Any = DATA, config: Any = None, **train: Any
) -> tuple[Model, Model]:
    """The model that trains and the calibrated one."""
    config = configuration() if config is None else config
    qat = jit_passes.prepare_qat(
        torch.jit.script(copy.deepcopy(net)), **{**HOW, "config": config, **train}
    )
    prepared = jit_passes.prepare(torch.jit.script(net.eval()), config=config, **HOW)
    calibrated = jit_passes.calibrate(prepared, data, progress=False)
    if how is not None:
        calibrated = jit_passes.round_weights(calibrated, data, how=how, progress=False)
    return qat, calibrated


def net_of(make: Any = Net) -> nn.Module:
    """A net whose batch norms have seen data."""
    torch.manual_seed(0)
    net = make().train()
    for x in DATA if make is Net else ():
        net(x)
    return net


def weights_of(model: Model) -> list[tuple[Any, ...]]:
    """Codes and scales of constant weights."""
    return [
        tuple(value.constant for value in node.inputs[:2])
        for node in GraphView.of(model).nodes
        if "dequantize" in node.kind
        and isinstance(node.inputs[0].constant, torch.Tensor)
        and node.inputs[0].constant.dtype == torch.int8
    ]


@pytest.mark.parametrize("channelwise", [True, False])
@pytest.mark.parametrize("how", [None, "gptq", "gptq_sequential"])
def test_weights_start_at_the_codes(how: str | None, channelwise: bool) -> None:
    """Converted before the first step, both models have equal codes and scales."""
    weight: dict[str, Any] = {} if channelwise else {"channelwise": False}
    if not channelwise:
        weight["calibration"] = "mean_squared_error"
    qat, calibrated = both(net_of(), how, config=configuration(**weight))
    nearest = weights_of(
        jit_passes.convert(both(net_of(), None, config=configuration(**weight))[1])
    )
    jit_passes.disable_observers(qat)
    jit_passes.start_from(qat, calibrated)
    jit_passes.enable_observers(qat)
    jit_passes.freeze_statistics(qat)
    qat.train()(DATA[0])  # scales of activations begin
    found, wanted = (weights_of(jit_passes.convert(model)) for model in (qat, calibrated))
    assert len(found) == len(wanted) == 3
    for (codes, scale), (other, step) in zip(found, wanted, strict=True):
        assert torch.equal(codes, other)
        assert torch.allclose(torch.as_tensor(scale), torch.as_tensor(step), rtol=1e-6)
    changed = any(not torch.equal(a, b) for (a, _), (b, _) in zip(wanted, nearest, strict=True))
    assert changed == (how is not None)


@pytest.mark.parametrize(("narrow_range", "smallest"), [(None, -3), (True, -3), (False, -4)])
def test_the_smallest_code_is_of_use_unless_the_range_is_narrow(
    narrow_range: bool | None, smallest: int
) -> None:
    """In training too, from GPTQ, and in the converted model."""
    options = {} if narrow_range is None else {"narrow_range": narrow_range}
    qat, calibrated = both(net_of(), config=configuration(**options))
    jit_passes.start_from(qat, calibrated)
    jit_passes.freeze_statistics(qat)
    qat.train()(DATA[0])  # scales of activations begin
    for model in (calibrated, qat):
        codes = [codes for codes, _ in weights_of(jit_passes.convert(model))]
        ends = [int(end) for one in codes for end in one.aminmax()]
        assert (min(ends), max(ends)) == (smallest, 3)


def test_weights_start_in_the_middle() -> None:
    """Of their codes, so the dampening loss begins at 0."""
    qat, calibrated = both(net_of())
    jit_passes.start_from(qat, calibrated)
    assert float(jit_passes.Oscillations(qat).dampening().detach()) < 1e-10


def test_models_that_do_not_go_together() -> None:
    """Nothing of the model that trains changes."""
    net = net_of()
    qat, calibrated = both(net)
    state = {name: tensor.clone() for name, tensor in qat.state_dict().items()}
    other = both(net, None, config=configuration(4))[1]
    with pytest.raises(JitPassesError, match=r"from -7 to 7 and 8 scales .* -3 to 3 and 8"):
        jit_passes.start_from(qat, other)
    coarse = configuration(channelwise=False, calibration="histogram")
    with pytest.raises(JitPassesError, match="and 1 scales in the calibrated model"):
        jit_passes.start_from(qat, both(net, None, config=coarse)[1])
    with pytest.raises(JitPassesError, match="does not train that"):
        jit_passes.start_from(qat, both(net_of(Plain))[1])
    with pytest.raises(JitPassesError, match="the first model"):
        jit_passes.start_from(calibrated, calibrated)
    with pytest.raises(JitPassesError, match="the second"):
        jit_passes.start_from(qat, qat)
    assert all(torch.equal(tensor, state[name]) for name, tensor in qat.state_dict().items())
    ranged = both(net, None, fake_quantizer="moving_average")[0]
    with pytest.raises(JitPassesError, match="trains without a scale of its own"):
        jit_passes.start_from(ranged, calibrated)


class TwoNorms(nn.Module):
    """One convolution with a batch norm behind each call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        nn.init.uniform_(self.bn2.weight, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv(torch.relu(self.bn1(self.conv(x)))))


def test_a_parameter_of_two_places() -> None:
    """The parameter can start where all places have one rounding, and not where they part."""
    data = [batch(4, 4, 8, 8, seed=seed) for seed in range(8)]
    qat, calibrated = both(net_of(Twice), "gptq", data)
    jit_passes.start_from(qat, calibrated)
    assert torch.equal(qat.conv.weight_scale, qat.tied.weight_scale)
    assert float(jit_passes.Oscillations(qat).dampening().detach()) < 1e-10
    qat, calibrated = both(net_of(TwoNorms), "gptq", data)
    with pytest.raises(JitPassesError, match="with codes of their own"):
        jit_passes.start_from(qat, calibrated)
