"""Configurations of the least cost, against all sets of layers."""

from __future__ import annotations

import itertools
import time
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.configuration.file import read_configuration
from jit_passes.report.cost import Cost, file_size, latency_on
from jit_passes.tuning import search
from jit_passes.tuning.ranking import suspects
from jit_passes.tuning.variants import IN_FLOAT, Variants


class Bottlenecks(nn.Module):
    """Residual pairs of linears; the widest one has most of the noise, and of the bytes."""

    def __init__(self, outer: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(outer, width) for width in widths)
        self.down = nn.ModuleList(nn.Linear(width, outer) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down):  # noqa: B905  TorchScript has no `strict`
            x = x + down(torch.relu(up(x)))
        return x


def bottlenecks(
    outer: int, widths: tuple[int, ...], bits: tuple[int, ...]
) -> tuple[torch.jit.ScriptModule, list[Tensor], dict[str, Any]]:
    """A model, data, and a configuration with bits for the second linear of each pair."""
    torch.manual_seed(0)
    model = torch.jit.script(Bottlenecks(outer, widths).eval())
    rules = [{"module": f"down.{i}", "weight": {"bits": n}} for i, n in enumerate(bits)]
    return model, [torch.randn(64, outer)], {"version": 1, "rules": rules}


def variants_of(model: torch.jit.ScriptModule, data: list[Tensor], config: Any) -> Variants:
    return Variants(
        model, data, None, quantizer=None, target="reference", config=config, mode=None,
        method="forward", input_fn=None, resume=None, progress=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("widths", "bits", "more"), [((256, 32), (4, 4), 2), ((256, 64), (3, 4), 0.5)], ids=str
)
def test_the_smallest_file(widths: tuple[int, ...], bits: tuple[int, ...], more: float) -> None:
    """Of all sets of layers in float within the budget; few layers alone give a larger file."""
    model, data, config = bottlenecks(16, widths, bits)
    variants = variants_of(model, data, config)
    layers = [layer.name for layer in variants.layers]
    budget = variants.score({}) + more
    costs = {}
    for count in range(len(layers) + 1):
        for chosen in itertools.combinations(layers, count):
            choices = dict.fromkeys(chosen, IN_FLOAT)
            if variants.score(choices) >= budget:
                costs[frozenset(chosen)] = file_size(variants.model_of(choices))
    how: dict[str, Any] = {"budget": budget, "alternatives": (), "target": "reference"}
    few = jit_passes.tune(model, data, config=config, **how)
    small = jit_passes.tune(model, data, config=config, objective="size", **how)
    names, fewer = (frozenset(layer.name for layer in t.layers) for t in (small, few))
    assert fewer == {"down.0:linear"} and "down.0:linear" not in names
    # Records of a file begin at multiples of 64 bytes, so costs do not add up to the byte.
    assert costs[names] - 64 <= min(costs.values()) < costs[fewer]
    assert small.score >= budget
    base = file_size(variants.model_of({}))
    assert small.costs == (base, costs[names]) and few.costs is None
    for layer in small.layers:
        alone = file_size(variants.model_of({layer.name: IN_FLOAT}))
        assert layer.extra == alone - base
    assert small.evaluations < 2 ** len(layers) / 4


def multiplications(batch: tuple[Tensor, ...], method: str) -> Cost:
    """A clock that no other process disturbs: a float multiplication takes a nanosecond."""

    def measure(model: torch.jit.ScriptModule) -> float:
        with (
            torch.profiler.profile(record_shapes=True, with_flops=True) as profile,
            torch.no_grad(),
        ):
            getattr(model, method)(*batch)
        return 1e-6 + sum(event.flops for event in profile.key_averages()) / 2e9

    return measure


def test_latency() -> None:
    """The median of calls that sleep."""
    pauses = iter([0.0] * 10 + [0.2] * 3 + [0.02] * 7)

    class Sleeps:
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(next(pauses))
            return x

    measured = latency_on((torch.ones(1),), "forward")(cast(Any, Sleeps()))
    assert 0.02 <= measured < 0.2


def test_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that takes milliseconds stays on integers, although it is suspected first."""
    monkeypatch.setattr(search, "latency_on", multiplications)
    model, data, config = bottlenecks(64, (2048, 64, 64), (3, 4, 4))
    variants = variants_of(model, data, config)
    assert suspects(variants)[0][0].name == "down.0:linear"
    budget = variants.score({}) + 0.5
    how: dict[str, Any] = {"budget": budget, "alternatives": (), "config": config}
    few = jit_passes.tune(model, data, target="reference", **how)
    assert [layer.name for layer in few.layers] == ["down.0:linear"]
    fast = jit_passes.tune(model, data, target="stock", objective="latency", **how)
    assert fast.score >= budget and fast.layers
    wide = {"up.0:linear", "down.0:linear"}
    assert not wide & {layer.name for layer in fast.layers}, str(fast)
    assert fast.costs is not None and 0 < fast.costs[0] < 1


def test_text() -> None:
    """The summary has the cost, the comments what each layer costs; it is a configuration."""
    model, data, config = bottlenecks(16, (64, 32), (4, 4))
    budget = variants_of(model, data, config).score({}) + 2
    how: dict[str, Any] = {"budget": budget, "config": config, "target": "reference"}
    tuned = jit_passes.tune(model, data, objective="size", alternatives=(), **how)
    assert tuned.costs is not None
    before, after = (f"{cost / 1024:.1f} KiB" for cost in tuned.costs)
    lines = str(tuned).splitlines()
    assert lines[2] == f"# size: {after}; {before} with all layers quantized"
    for layer in tuned.layers:
        assert layer.extra is not None
        comment = next(line for line in lines if f"in float: {layer.extra / 1024:+.1f} KiB" in line)
        assert "as the others: " in comment
    assert read_configuration(str(tuned)) == tuned.configuration
    assert [row["extra"] for row in tuned.to_dict()["layers"]] == [r.extra for r in tuned.layers]
