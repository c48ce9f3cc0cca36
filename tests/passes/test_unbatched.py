"""Convolutions of inputs without a batch axis: on integers, and right for inputs that have one."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.targets import Target
from tests.codes import ROUNDS_STEPS
from tests.compare import sqnr
from tests.models.convolutions import conv

TARGETS = ("stock", "x86", "reference")
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of its quantized tensors


class Residual(nn.Module):
    """A sum and a concatenation of channels, between convolutions that are clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = conv(4, 8), conv(8, 8), conv(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.first(x))
        b = torch.relu(self.second(a) + a)
        return self.last(torch.cat([a, b], dim=-3)).clamp(-1, 1)


class Branched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = conv(4, 8), conv(8, 5), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        return self.one(y) if bool(x.mean() > 100) else self.other(y)


# Shape of a sample, and how many operators are on integers, at least.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "line": (lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 1)), (4, 19), 2),
    "images": (
        lambda: nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), conv(8, 4)),
        (4, 12, 9),
        2,
    ),
    "space": (
        lambda: nn.Sequential(nn.Conv3d(4, 8, 3), nn.ReLU6(), nn.Conv3d(8, 4, 1)),
        (4, 6, 5, 7),
        2,
    ),
    "depthwise": (
        lambda: nn.Sequential(conv(), nn.Conv2d(8, 8, 3, padding=1, groups=8)),
        (4, 12, 9),
        2,
    ),
    "transposed": (
        lambda: nn.Sequential(conv(), nn.ReLU(), nn.ConvTranspose2d(8, 5, 3, 2)),
        (4, 8, 9),
        2,
    ),
    "residual": (Residual, (4, 9, 8), 3),
    "averages": (lambda: nn.Sequential(conv(), nn.AvgPool2d(2), conv(8, 4)), (4, 9, 8), 2),
    "head": (
        lambda: nn.Sequential(
            conv(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(-3), nn.Linear(8, 3)
        ),
        (4, 9, 8),
        1,
    ),
    "branch": (Branched, (4, 9, 8), 2),
}


def stages(name: str, target: str, batches: list[Tensor]) -> tuple[torch.jit.ScriptModule, ...]:
    torch.manual_seed(0)
    model = torch.jit.script(MODELS[name][0]().eval())
    prepared = jit_passes.prepare(model, target=target, mode="static")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, batches))
    return model, reference, jit_passes.lower(reference)


def samples(name: str, count: int = 6) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(MODELS[name][1]) for _ in range(count)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("given", ["none", "both"])
def test_either_form(name: str, target: str, given: str) -> None:
    """Whether data had a batch axis, never had one, or some did: one sample as in a batch.

    Ties may be a step from those of the reference. Of averages of four codes many are ties, and
    where steps are rounded, PyTorch's kernels for either layout disagree on them.
    """
    floor = 27 if name == "averages" and ROUNDS_STEPS else 40
    calibration = samples(name)
    if given == "both":
        calibration = [calibration[0][None], *calibration[1:], torch.stack(calibration)]
    model, reference, lowered = stages(name, target, calibration)
    assert len(jit_passes.coverage(lowered).int8) >= MODELS[name][2], jit_passes.coverage(lowered)
    buffer = io.BytesIO()
    torch.jit.save(lowered, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    batch = torch.stack(samples(name, 3))
    with torch.no_grad():
        whole = lowered(batch)
        assert whole.shape == model(batch).shape
        assert sqnr(whole, model(batch)) > 25
        assert sqnr(whole, reference(batch)) > floor
        for sample, expected in zip(batch, whole, strict=True):
            found = lowered(sample)
            assert found.shape == model(sample).shape == expected.shape
            # Linear layers of one row may have another kernel: the last bit of a tie.
            assert torch.equal(found, expected) or sqnr(found, expected) > floor
            assert torch.equal(loaded(sample), found)
        assert torch.equal(loaded(batch), whole)


@pytest.mark.parametrize("name", ["line", "images", "space"])
def test_batches_that_lose_their_axis(name: str) -> None:
    """Of data with a batch axis alone: plans and the reference take either, kernels say no."""
    batch = torch.stack(samples(name))
    for target in TARGETS:
        model, _, lowered = stages(name, target, [batch])
        with torch.no_grad():
            if target == "stock":
                with pytest.raises(RuntimeError, match="Expected activation tensor to have"):
                    lowered(batch[0])
            else:
                assert sqnr(lowered(batch[0]), model(batch[0])) > 25
                alone, first = lowered(batch[0]), lowered(batch)[0]
                # Convolutions in float add up in another order for one image than for several.
                exact = target == "x86"
                assert torch.equal(alone, first) if exact else sqnr(alone, first) > 40


@pytest.mark.parametrize("given", ["vectors", "batches", "both"])
def test_vectors(given: str) -> None:
    """Linears of single vectors: float on `stock` where data hold one, else an error."""
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval())
    vectors, batch = [*torch.randn(6, 8)], torch.randn(6, 8)
    data = {"vectors": vectors, "batches": [batch], "both": [*vectors, batch]}[given]
    for target in TARGETS:
        lowered = jit_passes.quantize_script(model, data, target=target, mode="static")
        count = 0 if target == "stock" and given != "batches" else 2
        assert len(jit_passes.coverage(lowered).int8) == count
        with torch.no_grad():
            assert sqnr(lowered(batch), model(batch)) > 25
            if target == "stock" and given == "batches":
                with pytest.raises(RuntimeError, match=r"dimension of input|rank should be"):
                    lowered(vectors[0])
            else:
                assert sqnr(lowered(vectors[0]), model(vectors[0])) > 20


def test_the_target_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target may be one of a package of somebody else's."""
    asked: list[Mapping[str, Any]] = []

    class Counting:
        @staticmethod
        def from_record(record: Mapping[str, Any]) -> Target:
            asked.append(record)
            return Target.from_record(record)

    monkeypatch.setattr("jit_passes.stages.seen.Target", Counting)
    data = samples("residual")
    for given, count in ((data, 1), ([torch.stack(data)], 0)):
        asked.clear()
        stages("residual", "stock", given)
        assert len(asked) == count


def test_memory_formats() -> None:
    """Of an image with channels last, and one that is a part of a wider one."""
    _, _, lowered = stages("images", "stock", samples("images"))
    (x,) = samples("images", 1)
    last = x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    wide = torch.zeros(4, 24, 9)[:, ::2].copy_(x)
    with torch.no_grad():
        assert torch.equal(lowered(last), lowered(x)) and torch.equal(lowered(wide), lowered(x))


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_tools(mode: str) -> None:
    """`compare` finds the values of both models in one shape."""
    data = samples("images")
    model = torch.jit.script(MODELS["images"][0]().eval())
    for target in ("stock", "reference") if mode == "static" else ("x86", "reference"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantized = jit_passes.quantize_script(model, data, target=target, mode=mode)
        found = jit_passes.compare(model, quantized, data)
        # A region shows its result alone.
        assert found.unmatched == (("0:conv2d", "3:conv2d") if target == "x86" else ())
        names = {row.name for row in found.rows}
        assert mode == "dynamic" or {"1:relu", "3:conv2d"} <= names


def test_no_axis_where_none_is_missing() -> None:
    """Data with a batch axis leave the graph as it was."""
    _, reference, _ = stages("images", "stock", [torch.stack(samples("images"))])
    assert "unsqueeze" not in jit_passes.format_graph(reference)
    _, reference, _ = stages("images", "reference", samples("images"))
    assert "unsqueeze" not in jit_passes.format_graph(reference)
    _, reference, _ = stages("images", "stock", samples("images"))
    assert jit_passes.format_graph(reference).count("aten::unsqueeze") == 2
