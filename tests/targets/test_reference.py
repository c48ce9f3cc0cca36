"""The target `reference`: the reference model itself, with or without lookup tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError, coverage
from jit_passes.quantizer import Role
from jit_passes.targets import Reference, Stock, Target, resolve_target

# Of an operator, what a support table says of it, by dimensions.
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class Net(nn.Module):
    """Functions between convolutions: FIXED, OWN, SHARED, of two tensors, and spelled out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.a(x))
        z = F.gelu(self.b(y))
        z = F.max_pool2d(self.c(y * z), 2)
        z = self.d(z * F.relu6(z + 3) / 6)
        return self.e(F.avg_pool2d(torch.tanh(z), 2))


def batches(*shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for _ in range(3)]


def reference_of(model: nn.Module, data: list[Tensor], target: Reference) -> torch.jit.ScriptModule:
    script = torch.jit.script(model.eval())
    prepared = jit_passes.prepare(script, target=target)
    jit_passes.calibrate(prepared, data, progress=False)
    return jit_passes.convert(prepared)


def kinds(module: torch.jit.ScriptModule) -> list[str]:
    return [node.kind() for node in module.graph.nodes()]


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("tables", [True, False])
def test_lowered_is_the_reference_model(net: Net, tables: bool, tmp_path: Path) -> None:
    """To the bit, and after loading too."""
    data = batches(2, 4, 12, 12)
    target = Reference(lookup_tables=tables)
    reference = reference_of(net, data, target)
    lowered = jit_passes.lower(reference)
    torch.jit.save(lowered, tmp_path / "lowered.pt")
    loaded = torch.jit.load(tmp_path / "lowered.pt")
    with torch.no_grad():
        expected, exact = reference(data[0]), net(data[0])
        assert torch.equal(lowered(data[0]), expected)
        assert torch.equal(loaded(data[0]), expected)
        assert 20 * torch.log10(exact.norm() / (exact - expected).norm()) > 20
    assert len(coverage(loaded).int8) == 5 and not coverage(loaded).float
    assert {"aten::conv2d", "aten::mul", "aten::avg_pool2d"} <= set(kinds(lowered))
    functions = {"aten::sigmoid", "aten::gelu", "aten::tanh"} & set(kinds(lowered))
    assert functions == (set() if tables else {"aten::sigmoid", "aten::gelu", "aten::tanh"})
    assert kinds(lowered).count("jit_passes::lookup_table") == (4 if tables else 0)


class Sums(nn.Module):
    """An average pool that divides by 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(4, 4, 3), nn.Conv3d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.avg_pool3d(self.first(x), 2, divisor_override=1))


def test_sums_of_windows_have_a_range_of_their_own() -> None:
    torch.manual_seed(0)
    model, data = Sums().eval(), batches(2, 4, 8, 8, 8)
    reference = reference_of(model, data, Reference())
    with torch.no_grad():
        wanted, found = model(data[0]), reference(data[0])
    assert 20 * torch.log10(wanted.norm() / (wanted - found).norm()) > 30


def test_lower_a_reference_from_a_file(net: Net, tmp_path: Path) -> None:
    """Scripted functions have numbers, which files spell out."""
    data = batches(2, 4, 12, 12)
    reference = reference_of(net, data, Reference())
    torch.jit.save(reference, tmp_path / "reference.pt")
    lowered = jit_passes.lower(torch.jit.load(tmp_path / "reference.pt"))
    assert kinds(lowered).count("jit_passes::lookup_table") == 4
    with torch.no_grad():
        assert torch.equal(lowered(data[0]), reference(data[0]))


def test_in_one_call(net: Net) -> None:
    data = batches(2, 4, 12, 12)
    script = torch.jit.script(net)
    lowered = jit_passes.quantize_script(script, data, target="reference", progress=False)
    with torch.no_grad():
        expected = jit_passes.lower(reference_of(net, data, Reference()))(data[0])
        assert torch.equal(lowered(data[0]), expected)


def test_its_quantizer_knows_the_target(net: Net) -> None:
    """The caller need not say it twice."""
    data = batches(2, 4, 12, 12)
    script = torch.jit.script(net)
    quantizer = Reference(lookup_tables=False).quantizer()
    lowered = jit_passes.quantize_script(script, data, quantizer=quantizer, progress=False)
    assert "jit_passes::lookup_table" not in kinds(lowered)
    assert "jit_passes::dequantize" in kinds(lowered)


def test_fixed_parameters(net: Net) -> None:
    """The results of sigmoid and tanh take all codes there are, whatever calibration sees."""
    reference = reference_of(net, batches(2, 4, 12, 12), Reference())
    grids = {}
    for node in reference.graph.nodes():
        if node.kind() == "jit_passes::quantize":
            scale, zero_point = (node.inputsAt(i).toIValue() for i in (1, 2))
            grids[node.inputsAt(0).node().kind()] = (scale, zero_point)
    assert grids["aten::sigmoid"] == (1 / 256, 0)
    assert grids["aten::tanh"] == (1 / 128, 128)
    table = Reference().capability.operators
    assert table["aten::sigmoid"].role is Role.FIXED and table["aten::gelu"].role is Role.OWN


def test_a_spelled_out_function_is_one_table() -> None:
    """Spelled-out hardswish between two convolutions: one table, no float operator of it left."""
    torch.manual_seed(0)

    class Swish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return self.b(y * F.relu6(y + 3) / 6)

    data = batches(2, 4, 12, 12)
    reference = reference_of(Swish(), data, Reference())
    lowered = jit_passes.lower(reference)
    assert kinds(lowered).count("jit_passes::lookup_table") == 1
    assert not {"aten::mul", "aten::add", "aten::clamp", "aten::div"} & set(kinds(lowered))
    with torch.no_grad():
        assert torch.equal(lowered(data[0]), reference(data[0]))


class OneFunction(nn.Module):
    """A function of functions between two convolutions."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.function = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.function(self.a(x)))


@pytest.mark.parametrize(
    "function",
    [
        torch.sigmoid,
        torch.tanh,
        lambda x: torch.tanh(torch.exp(x)),
        lambda x: x * torch.sigmoid(1.7 * x),
        lambda x: torch.sigmoid(x) * torch.tanh(x) + x,
        lambda x: x * F.relu6(x + 3) / 6,
        lambda x: torch.relu(torch.sin(x) - 0.25),
    ],
)
def test_a_function_of_functions_is_rounded_once(function: Callable[[Tensor], Tensor]) -> None:
    """One table, each of whose entries is within half a step of the function, or at its end."""
    torch.manual_seed(0)
    data = batches(2, 4, 12, 12)
    model = torch.jit.trace(OneFunction(function).eval(), data[0])
    lowered = jit_passes.quantize_script(model, data, target="reference", progress=False)
    assert kinds(lowered).count("jit_passes::lookup_table") == 1
    nodes = list(lowered.graph.nodes())
    at = next(i for i, node in enumerate(nodes) if node.kind() == "jit_passes::lookup_table")
    table, first = (list(nodes[at].inputs())[i].toIValue() for i in (1, 2))
    quantize = nodes[at].inputsAt(0).node()
    dequantize = nodes[at].output().uses()[0].user
    scale, zero = (list(quantize.inputs())[i].toIValue() for i in (1, 2))
    codes = torch.arange(first, first + len(table))
    wanted = function((codes - zero).double() * scale)
    scale, zero = (list(dequantize.inputs())[i].toIValue() for i in (1, 2))
    found = (table.double() - zero) * scale
    limits = torch.iinfo(table.dtype)
    clipped = wanted.clamp((limits.min - zero) * scale, (limits.max - zero) * scale)
    assert (found - clipped).abs().max() <= scale / 2 + 1e-6


def test_operands_of_flat_functions() -> None:
    """No code is spent where tanh or sigmoid is flat, and none on what never occurs."""
    torch.manual_seed(0)
    for function, end in ((torch.tanh, 3.0), (torch.sigmoid, 6.0)):
        for gain in (100.0, 1.0):
            net = OneFunction(function)
            with torch.no_grad():
                net.a.weight.mul_(gain)
            data = batches(2, 4, 12, 12)
            reference = reference_of(net, data, Reference())
            quantizes = [n for n in reference.graph.nodes() if n.kind() == "jit_passes::quantize"]
            scale = list(quantizes[1].inputs())[1].toIValue()
            with torch.no_grad():
                seen = torch.cat([net.a(x) for x in data])
            low, high = seen.min().clamp_min(-end), seen.max().clamp_max(end)
            torch.testing.assert_close(scale, float(high - low) / 255, rtol=1e-6, atol=0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_weighted(dims: int, transposed: bool, groups: int, batched: bool) -> None:
    """All ranks, with a scale for each output channel."""
    torch.manual_seed(0)
    model = (TRANSPOSED if transposed else CONVOLUTIONS)[dims](4, 6, 3, groups=groups)
    with torch.no_grad():  # of very different channels
        axis = 1 if transposed else 0
        model.weight.mul_(
            torch.logspace(-2, 0, model.weight.shape[axis]).view(
                *[1] * axis, -1, *[1] * (dims + 1 - axis)
            )
        )
    data = batches(*([2] if batched else []), 4, *[6] * dims)
    lowered = jit_passes.lower(reference_of(model, data, Reference()))
    assert len(coverage(lowered).int8) == 1
    per_channel = kinds(lowered).count("jit_passes::dequantize_per_channel")
    assert per_channel == (0 if transposed and groups == 2 else 2), "weight and bias"
    with torch.no_grad():
        exact, found = model(data[0]), lowered(data[0])
    assert 20 * torch.log10(exact.norm() / (exact - found).norm()) > 30


def test_linear_and_matrix_products() -> None:
    torch.manual_seed(0)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.out = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            q, k = self.q(x), self.k(x)
            return self.out(torch.cat([torch.matmul(torch.matmul(q, k.transpose(1, 2)), q), k], 1))

    data = batches(2, 5, 8)
    model = Attention()
    lowered = jit_passes.lower(reference_of(model, data, Reference()))
    assert kinds(lowered).count("jit_passes::quantize") == 7  # input, 5 results between, the last
    with torch.no_grad():
        exact, found = model(data[0]), lowered(data[0])
    assert 20 * torch.log10(exact.norm() / (exact - found).norm()) > 25


def test_as_a_target() -> None:
    assert isinstance(resolve_target("reference"), Reference)
    target = Reference(lookup_tables=False)
    assert repr(target) == "Reference(lookup_tables=False)"
    assert Target.make(target.name, **target.options).options == target.options


def test_prepared_for_another_target(net: Net) -> None:
    reference = reference_of(net, batches(2, 4, 12, 12), Reference())
    for wanted in (Stock(), Reference(lookup_tables=False)):
        message = r"prepared for Reference\(lookup_tables=True\)"
        with pytest.raises(JitPassesError, match=message):
            jit_passes.lower(reference, wanted)
