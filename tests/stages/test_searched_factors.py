"""Factors of channels by the error of rounded weights: `smooth` with the strength "search"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.command_line import main as command
from jit_passes.specification.specification import QuantizationSpec
from jit_passes.stages.searched_factors import nearest, searched, sums_of
from tests.compare import sqnr

SCHEMES = ["per_channel_symmetric", "per_channel_affine", "per_channel_power_of_two"]
WEIGHT_ONLY: dict[str, Any] = {
    "version": 1,
    "global": {"mode": "weight_only", "weight": {"bits": 4, "group_size": 32}},
}


def spec_of(scheme: str, group: int | None = None, bits: int = 4) -> QuantizationSpec:
    axis = None if scheme.startswith("per_tensor") else 0
    return QuantizationSpec.of_bits(bits, qscheme=scheme, ch_axis=axis, group_size=group)


@pytest.mark.parametrize("group", [None, 8, 32])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nearest_codes_are_those_of_the_reference_model(scheme: str, group: int | None) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(32, 12, bias=False)).eval()
    with torch.no_grad():
        layer[0].weight += torch.linspace(-0.2, 0.3, 12)[:, None]
    weight: dict[str, Any] = {"bits": 4, "scheme": scheme.removeprefix("per_channel_")}
    weight |= {"group_size": group} if group else {"channelwise": True}
    config = {"version": 1, "global": {"mode": "weight_only", "weight": weight}}
    model = jit_passes.quantize_script(torch.jit.script(layer), target="reference", config=config)
    spec = QuantizationSpec("int8", -7, 7, scheme, 0, group_size=group)
    found = nearest(layer[0].weight.detach().double(), spec)
    torch.testing.assert_close(model(torch.eye(32)).t().double(), found, rtol=1e-6, atol=0)


def slow(values: Tensor, weights: list[Tensor], spec: QuantizationSpec) -> list[float]:
    """Return the error for each exponent: outputs, channels and values one by one."""
    errors = []
    for step in range(20):
        factors = [float(column.abs().mean()) ** (step / 20) for column in values.t()]
        error = 0.0
        for weight in weights:
            scaled = torch.stack(
                [column * s for column, s in zip(weight.t(), factors, strict=True)]
            )
            rounded = nearest(scaled.t(), spec)
            for channel, s in enumerate(factors):
                lost = weight[:, channel] - rounded[:, channel] / s
                error += float(lost.square().sum() * values[:, channel].square().mean())
        errors.append(error)
    return errors


@pytest.mark.parametrize("scheme", ["per_tensor_symmetric", *SCHEMES])
def test_the_search(scheme: str) -> None:
    """Factors are those of the exponent with the least error of a slow form."""
    torch.manual_seed(0)
    values = torch.randn(50, 16, dtype=torch.float64) * torch.linspace(0.3, 9, 16).square()
    weights = [torch.randn(n, 16, dtype=torch.float64) for n in (6, 9)]
    spec = spec_of(scheme)
    found = searched(sums_of(values), [(weight, spec) for weight in weights])
    errors = slow(values, weights, spec)
    best = min(range(20), key=errors.__getitem__)
    torch.testing.assert_close(found, values.abs().mean(0) ** (best / 20))
    assert best > 0 and errors[best] < 0.9 * errors[0]


def test_values_that_are_zero() -> None:
    spec = spec_of("per_channel_symmetric")
    zeros = torch.zeros(4, 8, dtype=torch.float64)
    assert searched(sums_of(zeros), [(torch.ones(3, 8), spec)]).tolist() == [1.0] * 8
    zeros[:, 3] = 5  # other channels count as 2^-12 of it
    found = searched(sums_of(zeros), [(torch.randn(3, 8), spec)])
    assert (found > 0).all() and found.isfinite().all()


class Block(nn.Module):
    """Half of a transformer's block, whose layer norm has a few large channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)
        self.norm.weight.data[::10] *= 20

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., 64]."""
        return x + self.down(torch.tanh(self.up(self.norm(x))))


Bench = tuple[torch.jit.ScriptModule, list[Tensor], Tensor]


@pytest.fixture(scope="module")
def bench() -> Bench:
    torch.manual_seed(0)
    batches = [torch.randn(16, 64) for _ in range(5)]
    return torch.jit.script(nn.Sequential(Block(), Block()).eval()), batches[:4], batches[4]


@pytest.mark.parametrize("mode", ["weight_only", "dynamic"])
def test_a_transformer(bench: Bench, mode: str) -> None:
    """The model computes what it did, and with 4 bits it loses less."""
    model, batches, x = bench
    weight = WEIGHT_ONLY["global"]["weight"]
    by_hand = jit_passes.smooth(model, batches, strength="search", weight=weight)
    assert sqnr(model(x), by_hand(x)) > 90
    rules = [{"module": "*.down", "keep_float": True}]  # no layer norm is in front of it
    config = {"version": 1, "global": {"mode": mode, "weight": weight}, "rules": rules}
    options = {"target": "reference", "config": config}
    plain = jit_passes.quantize_script(model, batches, smooth=None, **options)
    found = jit_passes.quantize_script(model, batches, smooth="search", **options)
    assert sqnr(model(x), found(x)) > sqnr(model(x), plain(x)) + 2
    assert jit_passes.provenance(found)["smooth"] == "search"
    again = jit_passes.quantize_script(by_hand, batches, smooth=None, **options)
    assert torch.equal(again(x), found(x))
    recipe = config | {"stages": {"smooth": "search"}}
    replayed = jit_passes.quantize_script(model, batches, target="reference", config=recipe)
    assert torch.equal(replayed(x), found(x))


def test_layers_that_stay_float_do_not_count() -> None:
    """Where no linear behind a layer norm is quantized, it stays as it is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    scripted = torch.jit.script(model.eval())
    config = {
        "version": 1,
        "global": {"mode": "weight_only", "weight": {"bits": 4}},
        "rules": [{"module": "1", "keep_float": True}],
    }
    batches = [torch.randn(16, 32) * torch.linspace(0.1, 5, 32) for _ in range(3)]
    found = jit_passes.quantize_script(
        scripted, batches, target="reference", config=config, smooth="search"
    )
    gains = [
        node.operand("weight").constant
        for node in jit_passes.GraphView.of(found).nodes
        if node.kind == "aten::layer_norm"
    ]
    assert (gains[0] == 1).all() and len(gains) == 2
    assert jit_passes.provenance(found)["smoothed"] == ["2:layer_norm"]


def test_groups_that_do_not_fit(bench: Bench) -> None:
    """Linears whose groups do not fit stay float, and change no factor: all are 1 here."""
    model, batches, x = bench
    found = jit_passes.smooth(
        model, batches, strength="search", weight={"bits": 4, "group_size": 7}
    )
    assert torch.equal(found(x), model(x))


def test_errors(bench: Bench) -> None:
    model, batches, _ = bench
    for options, message in (
        ({"strength": 0.5, "weight": {"bits": 4}}, "is for strength='search'"),
        ({"strength": "search", "weight": {"bit": 4}}, "weight has the options"),
        ({"strength": "search", "weight": {"dtype": "float"}}, "leaves nothing to search"),
        ({"strength": "much"}, "strength is a number from 0 to 1"),
    ):
        with pytest.raises(JitPassesError, match=message):
            jit_passes.smooth(model, batches, **options)
    with pytest.raises(JitPassesError, match="smooth=search needs calibration data"):
        jit_passes.quantize_script(model, config=WEIGHT_ONLY, smooth="search")


def test_the_command(tmp_path: Path, bench: Bench) -> None:
    model, batches, x = bench
    torch.jit.save(model, str(tmp_path / "model.pt"))
    np.savez(tmp_path / "data.npz", input=torch.cat(batches).numpy())
    (tmp_path / "config.yaml").write_text(
        "{version: 1, global: {mode: weight_only, weight: {bits: 4, group_size: 32}}}"
    )
    arguments = ["quantize", "model.pt", "--data", "data.npz", "--config", "config.yaml"]
    given = [str(tmp_path / a) if "." in a else a for a in arguments]
    out = str(tmp_path / "out.pt")
    assert command([*given, "--target", "reference", "--smooth", "search", "-o", out]) == 0
    found = torch.jit.load(out)
    assert jit_passes.provenance(found)["smooth"] == "search" and sqnr(model(x), found(x)) > 10
