"""The target `fixed_point`: integers alone, equal to an oracle in Python's integers."""

from __future__ import annotations

import importlib
import itertools
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import jit_passes
from jit_passes import _C, GraphView, JitPassesError, Pipeline
from jit_passes.passes.pipeline import FOLD_NUMBERS
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.lower import compute_on_integers
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.codes import ROUNDS_STEPS
from tests.folders import ROOT
from tests.integer_oracle import Oracle
from tests.processes import run_python

pytestmark = pytest.mark.filterwarnings("ignore:nothing was quantized")


class Everything(nn.Module):
    """Each operator of the target, with zero points, channels, groups, strides and dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=2, dilation=2, groups=8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.row = nn.Conv1d(8, 6, 3, padding=1)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.relu6(self.depthwise(x))
        y = F.max_pool2d(x, 3, 1, 1) + self.grouped(x)
        y = F.relu(y - x) * torch.sigmoid(x)
        y = F.avg_pool2d(torch.cat([x, y], 1), (3, 2), (1, 2), (1, 0))
        z = y.reshape(x.shape[0], 2, 8, -1).permute(0, 1, 3, 2).mean(1).transpose(1, 2)
        z = F.max_pool1d(F.pad(self.row(z), (1, 2)), 2)
        return self.last(F.adaptive_avg_pool2d(z.unsqueeze(-1), 1).flatten(1))


class Residual(nn.Module):
    """A block whose sums have one scale."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x + self.b(F.relu(self.a(x))))
        return self.fc(x.mean([2, 3]))


def data(count: int = 4, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, 12, 12, generator=generator) for _ in range(count)]


def models(
    module: Callable[[], nn.Module], target: Any, **options: Any
) -> tuple[torch.jit.ScriptModule, torch.jit.ScriptModule]:
    """Return the reference model and the lowered one."""
    torch.manual_seed(0)
    scripted = torch.jit.script(module().eval())
    prepared = jit_passes.prepare(scripted, target=target, **options)
    jit_passes.calibrate(prepared, data())
    reference = jit_passes.convert(prepared)
    return reference, jit_passes.lower(reference)


class Watch(TorchDispatchMode):
    """Lists the operators that give floats."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point():
            self.found.append(func.name().split("::")[1].split(".")[0])
        return result


# How floats are rounded, otherwise than halves to even in double precision.
ROUNDED = {
    "half_even": ["round"],
    "half_up": ["_to_copy", "add", "floor"],
    "half_away": ["_to_copy", "sign", "add", "trunc"],
    "truncate": ["_to_copy", "floor"],
    "double_round": ["round"],
}
FORMS = [
    *itertools.product(("multiplier", "shift"), ROUNDINGS),
    ("multiplier", "double_round"),
]


@pytest.mark.parametrize(("requantization", "rounding"), FORMS)
def test_equals_the_oracle(requantization: str, rounding: str) -> None:
    target = FixedPoint(requantization, rounding)
    reference, lowered = models(Everything, target)
    x = data(1, seed=7)[0]
    found, expected = lowered(x), Oracle(tabled(reference), rounding)(x)
    assert torch.equal(found, expected)
    assert len(found.unique()) > 8
    with Watch() as watch:
        lowered(x)
    # Floats are quantized first, and the last codes become floats. Nothing else does.
    first = ["_to_copy", "mul", "nan_to_num", "add", "_to_copy"]
    if requantization == "shift":  # without zero points
        first = ["mul", "nan_to_num"]
    first += ROUNDED[rounding]
    steps = {"half_even", "half_away", "double_round"} if ROUNDS_STEPS else {"half_away"}
    if requantization == "multiplier" and rounding in steps:  # the zero point is added last
        first = ["mul", "nan_to_num", *ROUNDED[rounding], "add"]
    first += ["clamp"]
    last = ["_to_copy", "sub", "mul"] if requantization == "multiplier" else ["_to_copy", "mul"]
    assert watch.found == first + last


def tabled(reference: torch.jit.ScriptModule) -> Any:
    """Return a reference model with tables in place of functions, whose floats are its own."""
    own = _C.clone(reference._c, "forward")
    return Pipeline("tables", (FOLD_NUMBERS, "fold_lookup_tables")).run(own).module


NARROW = {"input": {"bits": 4}, "weight": {"bits": 4}}
TWELVE = {"input": {"bits": 12, "signed": True}, "output": {"bits": 12, "signed": True}}
WIDE = {"input": {"bits": 16, "signed": True}, "output": {"bits": 16, "signed": True}}


@pytest.mark.parametrize(
    ("options", "tensors"),
    [
        ({"accumulator_bits": 16}, NARROW),
        ({"accumulator_bits": 48}, WIDE),
        ({"multiplier_bits": 16}, {}),
        ({"rounding": "double_round"}, TWELVE),
        ({"requantization": "shift"}, {"bias": {"bits": 8}}),
        ({"requantization": "shift"}, {"weight": {"channelwise": True}}),
    ],
    ids=[
        "int4",
        "int16",
        "multiplier of 16 bits",
        "int12, rounded twice",
        "bias of its own",
        "shift of each channel",
    ],
)
def test_formats_of_slots(options: dict[str, Any], tensors: dict[str, Any]) -> None:
    target = FixedPoint(**options)
    reference, lowered = models(Everything, target, config={"version": 1, "global": tensors})
    assert all(row.dtype == "int8" for row in jit_passes.coverage(lowered))
    x = data(1, seed=7)[0]
    bits = 15 if {48, 16} & {target.accumulator_bits, target.multiplier_bits} else 31
    oracle = Oracle(tabled(reference), target.rounding, bits, lift=15 if tensors is TWELVE else 20)
    assert torch.equal(lowered(x), oracle(x))


@pytest.mark.parametrize("requantization", ["multiplier", "shift"])
def test_slots(requantization: str) -> None:
    """A correlation of 16 bits and a bias with a format of its own are rounded apart."""
    reference, lowered = slots(requantization)
    x = data(1, seed=7)[0]
    found = lowered(x)
    assert torch.equal(found, Oracle(tabled(reference))(x)) and len(found.unique()) > 8
    if requantization == "shift":
        assert torch.equal(found, reference(x))
    kinds = [node.kind for node in GraphView.of(lowered).nodes]
    assert kinds.count("aten::round") == 1  # of the input


def slots(requantization: str) -> tuple[torch.jit.ScriptModule, torch.jit.ScriptModule]:
    """Return a reference model with five slots, and the lowered one."""
    torch.manual_seed(0)
    recipe: dict[str, Any] = {"recipe": "graffitist"}
    if requantization == "multiplier":
        recipe = {"input": 8, "weight": 8, "correlation": 16, "bias": 12, "sum": 8}
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 3, 3, bias=False),
        nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 10),
    )  # fmt: skip
    target = FixedPoint(requantization)
    trained = jit_passes.quantize_slots(torch.jit.script(model), target=target, **recipe)
    for x in data():
        trained.train()(x)
    reference = jit_passes.convert(trained.eval())
    return reference, jit_passes.lower(reference)


METHODS = [
    ("shift", "tqt"), ("shift", "moving_average"),
    ("multiplier", "lsq"), ("multiplier", "lsq_plus"),
]  # fmt: skip


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("requantization", "method"), METHODS)
def test_trained(requantization: str, method: str, rounding: str) -> None:
    """Integers of the lowered model are those of the model that trained."""
    target, x = FixedPoint(requantization, rounding), data(1, seed=8)[0]
    trained = jit_passes.prepare_qat(
        torch.jit.script(Residual()), target=target, fake_quantizer=method
    )
    for batch in data():
        trained.train()(batch).square().mean().backward()
    lowered = jit_passes.lower(jit_passes.convert(trained.eval()))
    assert jit_passes.parity(trained, lowered, [x]).equal
    assert all(row.dtype == "int8" for row in jit_passes.coverage(lowered))


def test_roundings_differ() -> None:
    x = torch.cat(data(32))
    results = [models(Residual, FixedPoint("shift", rounding))[1](x) for rounding in ROUNDINGS]
    for one, other in itertools.combinations(results, 2):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("module", [Everything, Residual])
def test_shift_equals_the_reference(module: Callable[[], nn.Module], rounding: str) -> None:
    """With powers of two the reference's float32 is exact, so all codes are equal."""
    reference, lowered = models(module, FixedPoint("shift", rounding))
    for x in data(8, seed=5):
        assert torch.equal(lowered(x), reference(x))


def test_rounds_as_the_reference() -> None:
    """Codes that are rounded otherwise than the target rounds are left to the floats."""
    reference, _ = models(Residual, FixedPoint("shift", "half_up"))
    math = {"only_shift": True, "accumulator_bits": 32, "multiplier_bits": 31}
    compute = partial(compute_on_integers, rounding="truncate", **math)
    with pytest.warns(jit_passes.JitPassesWarning, match="rounded half_up, and the target has fl"):
        result = Pipeline("compute", (compute,)).run(_C.clone(reference._c, "forward"))
    kinds = [node.kind for node in GraphView.of(result.module).nodes]
    assert kinds.count("aten::conv2d") == 2 and "aten::bitwise_right_shift" not in kinds


def test_rounding_of_options() -> None:
    """A rule may ask for the target's rounding; others are refused before any data."""
    scripted, target = torch.jit.script(Residual().eval()), FixedPoint(rounding="truncate")
    for rounding, why in (("floor", ""), ("half_even", "rounded half_even, and the target has")):
        options = {"input": {"rounding": rounding}, "output": {"rounding": rounding}}
        config = {"version": 1, "global": options}
        rows = jit_passes.inspect(scripted, target=target, config=config)
        assert all(why in row.reason for row in rows) and bool(why) == bool(rows[0].reason)


def test_fixed_scale_has_the_rounding() -> None:
    """A scale that is known beforehand trains and lowers with the target's rounding."""
    config = {"version": 1, "global": {"input": {"scale": 0.125, "dtype": "int8"}}}
    target, x = FixedPoint(rounding="truncate"), data(1, seed=8)[0]
    trained = jit_passes.prepare_qat(torch.jit.script(Residual()), target=target, config=config)
    for batch in data():
        trained.train()(batch).square().mean().backward()
    reference = jit_passes.convert(trained.eval())
    lowered = jit_passes.lower(reference)
    assert jit_passes.parity(trained, lowered, [x]).equal
    kinds = [node.kind for node in GraphView.of(reference).nodes]
    assert kinds.count("jit_passes::fake_quantize") == kinds.count("jit_passes::quantize")


@pytest.mark.parametrize("module", [Everything, Residual])
def test_multiplier_differs_at_ties_alone(module: Callable[[], nn.Module]) -> None:
    """Of equal codes, the reference's float32 gives others only where the exact value is a tie.

    A value of 2^8 steps has 2^-16 of a step in float32, and a few operators round it.
    """
    reference, lowered = models(module, FixedPoint())
    count, far = 0, 0.0
    for x in data(4, seed=5):
        oracle = Oracle(tabled(reference))
        assert torch.equal(oracle(x), lowered(x))
        for codes, expected, exact in oracle.by_floats(x):
            others = codes != expected
            far = max([far, *np.abs(exact[others] % 1 - 0.5)])
            assert np.abs(codes - expected).max() <= 1
            count += codes.size
    assert count > 10_000 and far < 2**-13


@pytest.mark.parametrize("network", ["DigitsResNet", "DigitsMobileNet"])
def test_digits(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    digits = importlib.import_module("digits")
    images = digits.load_digits_tensors()
    torch.manual_seed(0)
    trained = digits.train(getattr(digits, network)(4), images, epochs=1, progress=False)
    script = torch.jit.script(trained.eval())
    for requantization in ("multiplier", "shift"):
        prepared = jit_passes.prepare(script, target=FixedPoint(requantization))
        jit_passes.calibrate(prepared, images.train_x[:256].split(64))
        reference = jit_passes.convert(prepared)
        lowered = jit_passes.lower(reference)
        x = images.test_x[:3]
        assert torch.equal(lowered(x), Oracle(tabled(reference))(x)), requantization
        differ = (lowered(images.test_x) != reference(images.test_x)).sum()
        most = 0 if requantization == "shift" else 0.05 * 10 * len(images.test_x)
        assert differ == 0 or differ < most, requantization


def test_loads_in_plain_pytorch(tmp_path: Path) -> None:
    _, lowered = models(Everything, FixedPoint())
    x = data(1)[0]
    torch.jit.save(lowered, tmp_path / "model.pt")
    torch.save((x, lowered(x)), tmp_path / "example.pt")
    program = (
        "import torch; x, y = torch.load('example.pt'); model = torch.jit.load('model.pt'); "
        "print(torch.equal(model(x), y))"
    )
    assert run_python("-c", program, cwd=tmp_path) == "True\n"


def test_accumulator_too_narrow_for_any_data() -> None:
    """With a symmetric input the zero point is known, so the bound is that of the codes."""
    torch.manual_seed(0)
    scripted = torch.jit.script(Residual().eval())
    config = {"version": 1, "global": {"input": {"scheme": "symmetric", "signed": True}}}
    target = FixedPoint(accumulator_bits=16)
    row = jit_passes.inspect(scripted, target=target, config=config)[0]
    weight = dict(scripted.named_parameters())["a.weight"].detach().double()
    scale = weight.abs().amax((1, 2, 3), keepdim=True) / 127
    codes = (weight / scale).round().clamp(-127, 127).flatten(1)
    most = int(torch.maximum(codes * -128, codes * 127).sum(1).max())
    bits = most.bit_length() + 1
    assert f"{most}], which takes {bits} bits, and the accumulator has 16" in row.reason
    assert "accumulator_bits=24" in row.reason


class LargeBias(Residual):
    """A bias that 16 bits do not hold, in steps of the sum."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.fc.bias, 1000.0)


def test_accumulator_too_narrow_for_the_bias() -> None:
    config, target = {"version": 1, "global": NARROW}, FixedPoint(accumulator_bits=16)
    with pytest.warns(jit_passes.JitPassesWarning, match="1 operator computed in float: 'fc:lin"):
        reference, lowered = models(LargeBias, target, config=config)
    *others, row = jit_passes.coverage(lowered)
    assert row.name == "fc:linear" and all(other.dtype == "int8" for other in others)
    (node,) = (n for n in GraphView.of(reference).nodes if n.name == "fc:linear")
    codes, bias = (v.producer.main_operand.constant.long() for v in node.inputs[1:3])
    zero = node.main_operand.producer.inputs[2].constant
    products = torch.maximum(codes * (0 - zero), codes * (15 - zero)).sum(1)
    assert f"{int((products + bias).max())}], which takes" in row.reason
    x = data(1)[0]
    assert torch.equal(lowered(x), reference(x))


class Summing(nn.Module):
    """An operator that has no integer form, between integers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).cumsum(1))


def test_refused_operator() -> None:
    with pytest.warns(jit_passes.JitPassesWarning, match="'cumsum' .*no integer form"):
        reference, lowered = models(Summing, FixedPoint())
    kinds = [node.kind for node in GraphView.of(lowered).nodes]
    assert kinds.count("aten::conv2d") == 2 and kinds.count("aten::round") == 2
    x = data(1)[0]
    assert torch.equal(lowered(x), reference(x))


class Between(nn.Module):
    """An operator between two convolutions."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.function, self.b = nn.Conv2d(3, 4, 1), function, nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.function(self.a(x)))
        return y


OF_ONE = "it is no function of one tensor and numbers, as a table is"


@pytest.mark.parametrize(
    ("kind", "function", "reason"),
    [
        ("prelu", nn.PReLU(), ""),
        ("prelu", nn.PReLU(4), "it has a slope for each channel: a table is for one slope"),
        ("pow", lambda x: x**3, ""),
        ("pow", lambda x: 2.0**x, ""),
        ("pow", lambda x: x.sigmoid() ** x.sin(), OF_ONE),
        ("fmod", lambda x: x.fmod(0.5), ""),
        ("remainder", lambda x: x.remainder(0.5), ""),
        ("floor_divide", lambda x: x.floor_divide(0.5), ""),
        ("maximum", lambda x: x.maximum(torch.tensor(0.25)), ""),
        ("maximum", lambda x: x.maximum(x.flip(1)), OF_ONE),
        ("minimum", lambda x: torch.minimum(torch.tensor(0.25), x), ""),
        ("atan2", lambda x: x.atan2(torch.tensor(1.0)), ""),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.tensor results:torch.jit.TracerWarning")
def test_functions_of_one_tensor_are_tables(
    kind: str, function: Callable[[Tensor], Tensor], reason: str
) -> None:
    """Inspection says beforehand which operators have a table, and the target's list has them."""
    torch.manual_seed(0)
    traced = torch.jit.trace(Between(function).eval(), data(1)[0], check_trace=False)
    rows = {row.kind: row for row in jit_passes.inspect(traced, target="fixed_point")}
    row = rows[f"aten::{kind}"]
    assert (row.dtype, row.reason) == ("float" if reason else "int8", reason)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", jit_passes.JitPassesWarning)
        lowered = jit_passes.quantize_script(traced, data(), target="fixed_point")
    told = [str(w.message) for w in found if w.category is jit_passes.JitPassesWarning]
    assert told == [f"1 operator computed in float: '{row.name}' ({reason})"] * bool(reason)
    kinds = [node.kind for node in GraphView.of(lowered).nodes]
    assert (f"aten::{kind}" in kinds) == bool(reason) and (reason or "aten::take" in kinds)
    assert f"\naten::{kind} " in str(FixedPoint())


def test_first_operator_in_float_is_named() -> None:
    """The cause stands first, and each operator behind it says what it reads."""
    stack = nn.Sequential(nn.PReLU(4), nn.AvgPool2d(2), nn.Hardswish())
    told = (
        "3 operators computed in float: 'function.0:prelu' (it has a slope for each channel: a "
        "table is for one slope), 'function.1:avg_pool2d' (its operand 'function.0:prelu' is in "
        "float), 'function.2:hardswish' (its operand 'function.1:avg_pool2d' is in float)"
    )
    with pytest.warns(jit_passes.JitPassesWarning, match=f"^{re.escape(told)}$"):
        models(partial(Between, stack), FixedPoint())


class Moved(Summing):
    """Results of such an operator are clipped and moved ahead of the next layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x).cumsum(1)).flip(2)[:, :, 1:])


def test_refused_operator_is_named_behind_moves() -> None:
    with pytest.warns(
        jit_passes.JitPassesWarning, match="'cumsum' .the target has no integer form"
    ):
        reference, lowered = models(Moved, FixedPoint())
    x = data(1)[0]
    assert torch.equal(lowered(x), reference(x))


def test_pool_with_windows_of_several_sizes() -> None:
    """A quantize stands behind it for the next layer, and it stays in float all the same."""

    class Pooled(nn.Sequential):
        def __init__(self) -> None:
            pool = nn.AvgPool2d(3, 2, ceil_mode=True)
            super().__init__(nn.Conv2d(3, 3, 1), pool, nn.Conv2d(3, 3, 1))

    with pytest.warns(jit_passes.JitPassesWarning, match="windows differ in size .ceil_mode"):
        reference, lowered = models(Pooled, FixedPoint("shift"))
    x = data(1)[0]
    assert torch.equal(lowered(x), reference(x))


class Flat(nn.Sequential):
    """The input is padded and flattened before the first layer."""

    def __init__(self) -> None:
        super().__init__(nn.ZeroPad2d(1), nn.Flatten(), nn.Linear(3 * 14 * 14, 5), nn.Sigmoid())


class Pyramid(nn.Module):
    """Features of two sizes, the smaller ones made larger."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2, 1)
        self.up, self.last = nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = F.relu(self.a(x))
        small = F.relu(self.b(large))
        return self.last(torch.cat([large, self.up(small)], 1))


def pyramid() -> tuple[torch.jit.ScriptModule, torch.jit.ScriptModule]:
    """Return the reference model and the lowered one; a script asks for the number of axes."""
    torch.manual_seed(0)
    traced = torch.jit.trace(Pyramid().eval(), data(1)[0])
    prepared = jit_passes.prepare(traced, target=FixedPoint("shift"))
    jit_passes.calibrate(prepared, data())
    reference = jit_passes.convert(prepared)
    return reference, jit_passes.lower(reference)


def test_upsampling_repeats_codes() -> None:
    reference, lowered = pyramid()
    x = data(1, seed=8)[0]
    assert torch.equal(lowered(x), reference(x))
    kinds = [node.kind for node in GraphView.of(lowered).nodes]
    assert kinds.count("aten::repeat_interleave") == 2 and kinds.count("aten::round") == 1


class Sized(nn.Module):
    """Sizes are asked of what a clip gives, and of what a pool gives, in front of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.a(x))
        z = F.max_pool2d(y, 2)
        return self.b(z).reshape(y.shape[0], z.shape[1], -1)


def test_sizes_are_those_of_codes() -> None:
    reference, lowered = models(Sized, FixedPoint("shift"))
    x = data(1)[0]
    with Watch() as watch:
        found = lowered(x)
    assert torch.equal(found, reference(x)) and watch.found[-2:] == ["_to_copy", "mul"]
    assert len(watch.found) == 6


@pytest.mark.parametrize("rounding", ["half_even", "truncate"])
def test_input_is_moved_as_codes(rounding: str) -> None:
    reference, lowered = models(Flat, FixedPoint(rounding=rounding))
    graph = GraphView.of(lowered)
    (node,) = (node for node in graph.nodes if node.kind in ("aten::round", "aten::floor"))
    while node.main_operand.producer is not None:
        node = node.main_operand.producer
        assert not node.moves_data
    assert node.main_operand is graph.inputs[0]
    x = data(1, seed=8)[0]
    assert torch.equal(lowered(x), reference(x)) and len(lowered(x).unique()) > 4


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("requantization", "float"),
        ("rounding", "nearest"),
        ("accumulator_bits", 20),
        ("multiplier_bits", 8),
    ],
)
def test_bad_options(option: str, value: Any) -> None:
    with pytest.raises(JitPassesError, match=f"{option}.*{value}"):
        FixedPoint(**{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requantization": "shift", "multiplier_bits": 16}, "not for 'shift'"),
        ({"accumulator_bits": 48, "multiplier_bits": 32}, "of 32 bits, not 48"),
        ({"accumulator_bits": 48, "rounding": "double_round"}, "take another rounding"),
        (
            {"requantization": "shift", "rounding": "double_round"},
            "rounding='double_round' is for requantization='multiplier', not for 'shift'",
        ),
        ({"multiplier_bits": 16, "rounding": "double_round"}, "take another rounding"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(JitPassesError, match=message):
        FixedPoint(**options)


def test_double_rounding_refuses_slots_before_data() -> None:
    """Neither TFLite nor TOSA rounds a correlation ahead of its bias."""
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3)))
    target = FixedPoint(rounding="double_round")
    slots = {"input": 8, "weight": 8, "correlation": 16, "bias": 12, "sum": 8}
    message = "target rounds once the bias is added"
    with pytest.raises(JitPassesError, match=message):
        jit_passes.quantize_slots(model, target=target, **slots)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (nn.ReLU(True), "1 operator computed in float: '1:batch_norm' (the target has no integer"),
        (nn.Sigmoid(), "no integer form of it), '2:sigmoid' (its operand '1:batch_norm' is in"),
    ],
    ids=["clip", "function"],
)
def test_floats_in_front_of_functions_are_named(function: nn.Module, told: str) -> None:
    """Batch norms that have no running statistics stay in float, which is said before any data."""
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, function, nn.Conv2d(4, 3, 3))
    target = FixedPoint("shift")
    scripted = torch.jit.script(net)
    with pytest.warns(jit_passes.JitPassesWarning, match="1:batch_norm: it is neither a layer"):
        trained = jit_passes.quantize_slots(scripted, recipe="graffitist", target=target)
    trained.train()(data(1)[0])
    reference = jit_passes.convert(trained.eval())
    with pytest.warns(jit_passes.JitPassesWarning, match=re.escape(told)):
        jit_passes.lower(reference)


def test_shift_refuses_other_schemes() -> None:
    config = {"version": 1, "global": {"input": {"scheme": "affine", "signed": False}}}
    with pytest.warns(jit_passes.JitPassesWarning):
        _, lowered = models(Residual, FixedPoint("shift"), config=config)
    assert "per_tensor_affine" in jit_passes.coverage(lowered)[0].reason
