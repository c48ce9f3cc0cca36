"""Plans that put elements in other places: flips, repeats, paddings, and pixels of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.compare import sqnr
from tests.plans import Grid, plan_of, plans_in, traced
from tests.seeds import seeds
from tests.x86.operators.test_parts import assert_all_equal
from tests.x86.operators.test_picks import in_one_plan
from tests.x86.program.test_state import mutate, restored


class Applied(nn.Module):
    def __init__(self, function: Any, codes: bool) -> None:
        super().__init__()
        self.function, self.codes, self.grid = function, codes, Grid(0.031, 131)

    def forward(self, x: Tensor) -> Any:
        return self.function(self.grid(x) if self.codes else F.hardswish(x))


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("seed", seeds(60))
def test_resizes_by_centres(seed: int, codes: bool) -> None:
    """Sizes and factors of `nearest-exact`; PyTorch computes positions in float32."""
    draw = torch.Generator().manual_seed(seed)
    dims, size = (int(torch.randint(1, n, (), generator=draw)) for n in (4, 13))
    x = torch.randn(2, 3, *[size] * dims)
    out = int(torch.randint(1, 30, (), generator=draw))
    factor = float(torch.rand((), generator=draw)) * 4 + 1 / size
    for options in ({"size": [out] * dims}, {"scale_factor": factor}):
        assert_all_equal(
            traced(
                Applied(lambda y, o=options: F.interpolate(y, mode="nearest-exact", **o), codes), x
            ),
            x,
        )


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
def test_pixels_of_channels(lead: tuple[int, ...], codes: bool) -> None:
    for factor in (1, 2, 3):
        x = torch.randn(*lead, 5 * factor**2, 4, 3)
        assert_all_equal(traced(Applied(lambda y, f=factor: F.pixel_shuffle(y, f), codes), x), x)
        x = torch.randn(*lead, 5, 2 * factor, 3 * factor)
        assert_all_equal(traced(Applied(lambda y, f=factor: F.pixel_unshuffle(y, f), codes), x), x)


@pytest.mark.parametrize("codes", [True, False])
def test_no_axis_rests(codes: bool) -> None:
    """Elements of the innermost axis are copied one by one."""
    x = torch.randn(2, 3, 4, 5, 3)
    for function in (
        lambda y: y.flip([0, 1, 2, 3, 4]),
        lambda y: torch.roll(y, [1, 2, 3, 4, 1], [0, 1, 2, 3, 4]),
        lambda y: y.repeat(2, 1, 2, 2, 3),
        lambda y: y[0, 0].repeat(2, 2, 2, 2, 2),
        lambda y: y[0, 0].repeat(2, 2, 1, 1, 1),
        lambda y: y[0].tile([2, 3, 1, 2, 3]),
        lambda y: y[0, 0].tile([2, 2, 3, 2, 3]),
    ):
        assert_all_equal(traced(Applied(function, codes), x), x)


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 37), (2, 5, 33), (2, 35, 4, 5), (0, 3, 4)], ids=str)
def test_repeats(shape: tuple[int, ...], codes: bool) -> None:
    """Of all elements in a row, and of each by itself, along all axes; of fewer axes and more."""
    x = torch.randn(shape)
    last = x.transpose(0, -1)
    for counts in ([2], [3, 1], [1, 2], [2, 1, 1], [1, 2, 1, 3]):
        for y in (x, last):
            assert_all_equal(traced(Applied(lambda y, c=counts: y.tile(c), codes), y), y)
    for axis in range(-len(shape), len(shape)):
        for y in (x, last):
            assert_all_equal(
                traced(Applied(lambda y, a=axis: y.repeat_interleave(3, a), codes), y), y
            )


class Repeated(nn.Module):
    """Between convolutions, as often as sizes say; a script does not know the number of axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = y.tile([1, 2, 1, y.shape[2] // 4]).tile([2, 1])
        return self.last(y.repeat_interleave(y.shape[3] // 8, 2).repeat_interleave(2, -1))


@pytest.mark.parametrize("mode", ["static", "auto"])
def test_repeats_between_convolutions(mode: str) -> None:
    torch.manual_seed(0)
    net, data = Repeated().eval(), torch.randn(2, 3, 10, 18)
    for script in (torch.jit.script(net), torch.jit.trace(net, data)):
        found = jit_passes.quantize_script(script, [data], target="x86", mode=mode)
        assert len(plans_in(found)) == 1
        for x in (data, torch.randn(1, 3, 14, 21), data.to(memory_format=torch.channels_last)):
            with torch.no_grad():
                assert sqnr(net(x), found(x)) > 28


TIMES: dict[str, Callable[..., Tensor]] = {
    "tile": lambda y: y.tile([y.shape[0], 1, 1]),
    "repeat": lambda y: y.repeat([y.shape[0], 1, 1]),
    "repeat_interleave": lambda y: y.repeat_interleave(y.shape[0], 0),
    "nothing": lambda y: torch.cat([y.repeat_interleave(0, 0), y, y.tile([0, 1, 1])]),
}


@pytest.mark.parametrize("name", TIMES)
def test_repeats_of_no_time(name: str) -> None:
    """As often as there are images, of which there may be none; and no time at all."""
    lowered = in_one_plan(TIMES[name], torch.randn(3, 5, 16))
    for images, results in ((0, 0), (1, 1), (4, 4 if name == "nothing" else 16)):
        assert lowered(torch.randn(images, 5, 16)).shape == (results, 5, 8)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda y: y.repeat_interleave(2), "as one row"),
        (lambda y: y.repeat_interleave(torch.tensor([1, 2, 1]), 1), "as a tensor says"),
        (lambda y: y.repeat_interleave(2, 1, output_size=6), "how long its result is"),
        (lambda y: y.tile([]), "repeats no axis"),
    ],
)
def test_repeats_that_no_plan_has(function: Any, reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason):
        plan_of(traced(Applied(function, True), torch.randn(2, 3, 4)))


def around(image: Tensor) -> tuple[Tensor, ...]:
    return (
        F.pad(image, [3, 1, 0, 2], mode="reflect"),
        F.pad(image, [5, 1, 0, 2], mode="replicate"),
        F.pad(image, [3, 1, 0, 2], mode="circular"),
        F.pad(image, [-1, 2, 1, -2], mode="reflect"),
        F.pad(image, [-1, 2, 1, -2], mode="replicate"),
        nn.ReplicationPad3d((1, 0, 2, 2, 1, 3))(image[:, None]),
        F.pad(image.flatten(2), [4, 0], mode="reflect"),
    )


@pytest.mark.parametrize("codes", [True, False])
def test_paddings_by_elements(codes: bool) -> None:
    """Negative numbers cut off, as PyTorch has it."""
    x = torch.randn(2, 3, 4, 5)
    assert_all_equal(traced(Applied(around, codes), x), x)


@pytest.mark.parametrize(("mode", "least"), [("reflect", 4), ("circular", 3)])
def test_paddings_larger_than_the_image(mode: str, least: int) -> None:
    """PyTorch raises too."""
    x = torch.randn(2, 3, least, 8)
    region = traced(Applied(lambda y: F.pad(y, [0, 0, 3, 0], mode=mode), True), x)
    plan = plan_of(region)
    assert torch.equal(plan.run([x])[0], region(x))
    with pytest.raises(RuntimeError, match="pads an axis of"):
        plan.run([x[:, :, 1:]])


class Padded(nn.Module):
    """Up to a multiple of four, as models that reduce an image twice have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        height, width = y.shape[2], y.shape[3]
        y = F.pad(y, [0, (4 - width % 4) % 4, 0, (4 - height % 4) % 4], mode="reflect")
        return F.pixel_shuffle(self.last(y.repeat(1, 1, 2, 1).flip(3)), 2)


def test_models_of_any_size() -> None:
    torch.manual_seed(0)
    net, data = Padded().eval(), torch.randn(2, 3, 13, 18)
    for script in (torch.jit.script(net), torch.jit.trace(net, data)):
        found = jit_passes.quantize_script(script, [data], target="x86", mode="static")
        assert len(plans_in(found)) == 1
        with torch.no_grad():
            for size in ((13, 18), (10, 9), (22, 31)):
                x = torch.randn(2, 3, *size)
                assert sqnr(net(x), found(x)) > 25


def everything(y: Tensor) -> tuple[Tensor, ...]:
    shuffled = F.pixel_unshuffle(F.pixel_shuffle(y, 2), 2)
    resized = F.interpolate(y, size=[5, 7], mode="nearest-exact")
    return (*around(y[:, :3]), shuffled.flip([1, 2]), resized.repeat(2, 1, 1, 2))


def test_mutated_states() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 4, 6)
    plan = plan_of(traced(Applied(everything, True), x))
    refused, ran = mutate(plan, x, 1500)
    assert refused > 200 and ran > 50


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        ("flip", [1 << 40], "an axis of"),
        ("repeat", [-1, 1, 1, 2], "a number of times of -1"),
        ("pad_reflect", [1, 2, 3], "on one side only"),
        ("pad_edge", [1 << 40, 1], "a padding of"),
        ("pixel_shuffle", [0], "a factor of 0"),
        ("pixel_unshuffle", [-2], "a factor of -2"),
        ("resize_nearest_exact", [2, 0, 3], "a size of 0"),
    ],
)
def test_wrong_numbers(kind: str, numbers: list[int], message: str) -> None:
    x = torch.randn(2, 4, 4, 6)
    lists, scales, operators = plan_of(traced(Applied(everything, True), x)).__getstate__()[0]
    assert any(texts[0] == kind for texts, _, _ in operators)
    others = [
        (texts, [*parts[:2], numbers] if texts[0] == kind else parts, tensors)
        for texts, parts, tensors in operators
    ]
    with pytest.raises(RuntimeError, match=message):
        restored((lists, scales, others))
