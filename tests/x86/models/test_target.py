"""The target x86: models become plans, which compute what the reference model does."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, JitPassesError, PassError
from jit_passes.targets import X86
from tests.advice import even_kernels
from tests.processes import run_code

Function = Callable[[Tensor], Tensor]


class Around(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Function | nn.Module, channels: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(channels, 5, 1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def images(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 3, 12, 10)), generator=torch.Generator().manual_seed(2))


def stages(model: nn.Module, *inputs: Tensor) -> tuple[torch.jit.ScriptModule, ...]:
    """The reference model, and the lowered one."""
    torch.manual_seed(0)
    script = torch.jit.trace(model.eval(), inputs, check_trace=False)
    prepared = jit_passes.prepare(script, target="x86")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [inputs], progress=False))
    return reference, jit_passes.lower(reference)


def kinds_of(model: torch.jit.ScriptModule) -> set[str]:
    kinds = {node.kind for node in jit_passes.GraphView.of(model).nodes}
    return kinds - {"prim::Constant", "prim::GetAttr", "prim::CallMethod"}


def steps_apart(
    reference: torch.jit.ScriptModule, lowered: torch.jit.ScriptModule, x: Tensor
) -> float:
    *_, last = jit_passes.encodings_of(reference).activations
    apart = (reference(x) - lowered(x)).abs().max() / last.scale[0]
    return float(apart)


def shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


LAYERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "conv, dilated": (lambda: nn.Conv2d(8, 6, 3, padding=2, dilation=2), 6),
    "conv, groups": (lambda: nn.Conv2d(8, 12, 3, stride=2, groups=4), 12),
    "conv, depthwise": (lambda: nn.Conv2d(8, 8, 5, padding=2, groups=8), 8),
    "conv, same": (lambda: nn.Conv2d(8, 6, (2, 4), padding="same"), 6),
}
FUNCTIONS: dict[str, tuple[Function, int]] = {
    "relu": (torch.relu, 8),
    "relu6": (F.relu6, 8),
    "hardswish": (F.hardswish, 8),
    "silu": (F.silu, 8),
    "x sigmoid(x)": (lambda x: x * torch.sigmoid(x), 8),
    "gelu and tanh": (lambda x: torch.tanh(F.gelu(x)), 8),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), 8),
    "sum": (lambda x: x + F.hardtanh(x), 8),
    "difference": (lambda x: F.max_pool2d(x, 3, 1, 1) - x, 8),
    "product": (lambda x: x * F.max_pool2d(x, 3, 1, 1), 8),
    "product with numbers": (lambda x: torch.relu(x * 0.5 + 1), 8),
    "gate": (lambda x: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1)), 8),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), 8),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), 8),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), 8),
    "mean": (lambda x: x.mean([2, 3], keepdim=True), 8),
    "cat": (lambda x: torch.cat([x, torch.relu(x), F.max_pool2d(x, 3, 1, 1)], 1), 24),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), 8),
    "nearest, rounded to twice": (lambda x: F.interpolate(x, scale_factor=2.01), 8),
    "nearest, rounded to the same": (lambda x: F.interpolate(x, scale_factor=1.05), 8),
    "conv, one weight": (lambda x: F.conv2d(x, torch.full((8, 1, 3, 3), 1 / 9), groups=8), 8),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), 8),
    "hardswish of a pool": (lambda x: F.hardswish(F.max_pool2d(x, 3, 2, 1)), 8),
    "relu6 of a view": (lambda x: F.relu6(x.flatten(2)).unflatten(2, (-1, 3)), 8),
    "clip of a padding": (lambda x: F.hardtanh(F.pad(F.relu6(x), (1, 1)), 0.5, 2.0), 8),
    "table of a padding": (lambda x: F.hardswish(F.pad(F.relu(x), (1, 1))), 8),
    "function of parts": (
        lambda x: torch.cat(
            [
                f(p)
                for f, p in zip(
                    (torch.sigmoid, F.silu, torch.relu, torch.abs), x.chunk(4, 1), strict=True
                )
            ],
            1,
        ),
        8,
    ),
    "chunk": (lambda x: torch.cat([*x.chunk(3, 1), torch.relu(x)], 1), 16),
    "split": (lambda x: x.split([2, 6], 1)[1] + 1, 6),
    "slice": (lambda x: x[:, 1::2, 1:-1, -3:] * x[:, :4, :-2, :3], 4),
    "select": (lambda x: x + x.select(3, -1).unflatten(2, (-1, 1)), 8),
    "shuffle": (shuffled, 8),
    "flattened": (lambda x: x.view(x.size(0), -1).unflatten(1, (8, -1, 3)), 8),
}


@even_kernels
@pytest.mark.parametrize("name", [*LAYERS, *FUNCTIONS])
def test_operators(name: str) -> None:
    """All of the model is one plan; few values are a step from the reference model's."""
    function: Function | nn.Module
    if name in LAYERS:
        make, channels = LAYERS[name]
        function = make()
    else:
        function, channels = FUNCTIONS[name]
    x = images()
    reference, lowered = stages(Around(function, channels), x)
    assert not kinds_of(lowered), str(jit_passes.partition(reference, "x86"))
    for inputs in (x, images(1, 3, 12, 10), images(5, 3, 9, 17) * 3):
        assert lowered(inputs).shape == reference(inputs).shape
        assert steps_apart(reference, lowered, inputs) <= 2.01
        different = (reference(inputs) != lowered(inputs)).float().mean()
        assert different < 0.2
    assert all(row.dtype == "int8" for row in jit_passes.coverage(lowered))


class Read(nn.Module):
    """A result of a function that a linear layer reads too."""

    def __init__(self, function: Function, features: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 1), nn.Linear(features, 2)
        self.function = function

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.function(self.first(x))
        return x, self.last(x)


READ: dict[str, tuple[Function, int]] = {
    "nothing": (lambda x: x, 10),
    "permutation": (lambda x: x.permute(0, 2, 3, 1), 8),
    "three axes around": (lambda x: x.permute(0, 3, 1, 2), 12),
    "two permutations": (lambda x: x.permute(2, 0, 3, 1).transpose(0, 3), 12),
    "table of a permutation": (lambda x: F.hardswish(x.permute(0, 2, 3, 1)), 8),
    "sum of permutations": (lambda x: x.transpose(1, 3) + torch.relu(x).transpose(1, 3), 8),
    "sum with another order": (
        lambda x: x.transpose(2, 3) + F.conv2d(x, torch.ones(8, 1, 3, 1), groups=8)[..., :1], 12
    ),
    "gate": (lambda x: F.adaptive_avg_pool2d(x, 1).transpose(1, 3) * x.transpose(1, 3), 8),
    "product with a gate": (lambda x: x.transpose(1, 2) * x.mean([1, 2], keepdim=True), 10),
    "convolution": (lambda x: F.conv2d(x.transpose(1, 2), torch.ones(4, 12, 1, 1)), 10),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_results_lie_in_memory_as_in_float(name: str) -> None:
    """Float operators behind see it: whether `contiguous` gives another name, or a copy."""
    function, features = READ[name]
    model, x = Read(function, features), images()
    reference, lowered = stages(model, x)
    kinds = kinds_of(lowered)
    assert kinds <= {"prim::TupleConstruct", "prim::TupleIndex"}
    for inputs in (x, images(3, 3, 12, 10)):
        results = lowered(inputs), reference(inputs), model(inputs)
        for found, expected, of_float in zip(*results, strict=True):
            assert found.stride() == expected.stride() == of_float.stride()
            assert (found - expected).abs().max() < 0.1


def windows(x: Tensor) -> Tensor:
    """In seven axes: of windows of an image, and of its channels."""
    n, c, h, w = x.shape
    x = x.reshape(n, 2, c // 2, h // 2, 2, w // 2, 2)
    return x.permute(0, 1, 2, 3, 5, 4, 6).reshape(n, c, h, w)


def split(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, 1, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w)


def joined(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    x = x.reshape(n, 2, c // 2, h // 2, 2, w // 2, 2).permute(0, 1, 2, 3, 5, 4, 6)
    return x.transpose(5, 6).flatten(5).flatten(3, 4).flatten(1, 2)


REFUSED: dict[str, tuple[Function, str]] = {
    "seven axes": (windows, "more than 6 axes"),
    "split to seven axes": (split, "it gives more than 6 axes"),
    "joined of seven axes": (joined, "it reads more than 6 axes"),
    "padding of five axes": (lambda x: F.pad(x[None], (1, 0) * 5)[1, 1:, 1:], ""),
}


@pytest.mark.filterwarnings("ignore:a region")
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_plan_has(name: str) -> None:
    """The model computes what the reference model does, at the same sizes and at others."""
    function, reason = REFUSED[name]
    reference, lowered = stages(Around(function), images())
    assert reason in str(jit_passes.partition(reference, "x86"))
    for x in (images(), images() * 3):
        assert steps_apart(reference, lowered, x) <= 1.01


class Wide(nn.Module):
    """A linear in the middle that no plan has, for its sums may not fit in int32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.last = (
            nn.Linear(4, 70_000),
            nn.Linear(70_000, 3),
            nn.Linear(3, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.wide(torch.relu(self.first(x)))))


def test_an_operator_that_a_plan_refuses() -> None:
    """The operator stays as it is, with the reason; operators before and behind it are compiled."""
    x = images(5, 4)
    reference, lowered = stages(Wide(), x)
    rows = {row.name: row for row in jit_passes.coverage(lowered)}
    assert "too many or too large" in rows["wide:linear"].reason
    assert [rows[f"{name}:linear"].dtype for name in ("first", "wide", "last")] == [
        "int8", "float", "int8"
    ]  # fmt: skip
    calls = [n for n in jit_passes.GraphView.of(lowered).nodes if n.kind == "prim::CallMethod"]
    assert len(calls) == 2
    assert steps_apart(reference, lowered, images(3, 4)) <= 1.01


class Sequence(nn.Module):
    """Convolutions in one dimension, and linears over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 8, 3), nn.Conv1d(8, 8, 5, groups=8, padding=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(F.relu6(self.first(x))))
        return self.head(F.max_pool1d(x, 2).mean(2))


def test_sequences() -> None:
    x = images(2, 3, 31)
    reference, lowered = stages(Sequence(), x)
    assert not kinds_of(lowered), str(jit_passes.partition(reference, "x86"))
    assert steps_apart(reference, lowered, images(3, 3, 40)) <= 3


class Classifier(nn.Module):
    """A residual network with an operator in float in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(c, 8, 3, padding=1) for c in (3, 8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.a(x) + x)
        x = self.b(x.cummax(3)[0] * 0.1)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def test_a_model_with_an_operator_in_float() -> None:
    """Two plans around it; the report, the file, copies and parity know of both."""
    x = images()
    torch.manual_seed(0)
    script = torch.jit.script(Classifier().eval())
    lowered = jit_passes.quantize_script(script, [x], target=X86(), progress=False)
    calls = [n for n in jit_passes.GraphView.of(lowered).nodes if n.kind == "prim::CallMethod"]
    assert [node.name for node in calls] == ["region_0", "region_1"]
    assert isinstance(lowered.region_0.compiled, torch.ScriptObject)
    assert len(jit_passes.coverage(lowered).int8) == 4
    inspected = jit_passes.inspect(script, target="x86")
    assert [len(names) for names in inspected.regions] == [3, 3]
    file = io.BytesIO()
    torch.jit.save(lowered, file)
    expected = lowered(x)
    for model in (torch.jit.load(io.BytesIO(file.getvalue())), copy.deepcopy(lowered)):
        assert torch.equal(model(x), expected)
        assert jit_passes.coverage(model) == jit_passes.coverage(lowered)
    assert torch.equal(torch.jit.freeze(lowered)(x), expected)
    qat = jit_passes.prepare_qat(script, target="x86").train()
    qat(x)
    found = jit_passes.parity(qat, jit_passes.lower(jit_passes.convert(qat.eval())), [x])
    assert found.largest_own_steps <= 4, str(found)
    assert {"a:relu#1", "relu#1"} & {row.name for row in found.rows}, str(found)


def test_a_file_says_what_it_needs(tmp_path: Path) -> None:
    """Without this package, loading it fails with a message that names it."""
    _, lowered = stages(Around(torch.relu), images())
    path = tmp_path / "model.pt"
    torch.jit.save(lowered, path)
    code = "import sys, torch; {} print(torch.jit.load(sys.argv[1])(torch.ones(1, 3, 8, 8)).sum())"
    for first in ("", "import jit_passes;"):
        found = run_code(code.format(first), path, cwd=tmp_path)
        if first:
            assert found.stdout.strip() == str(lowered(torch.ones(1, 3, 8, 8)).sum()), found.stderr
        else:
            assert found.returncode != 0 and "jit_passes" in found.stderr


REMOVED = """
import torch
import jit_passes
jit_passes.passes.remove("fold_lookup_tables")
model = torch.jit.load("model.pt")
x = torch.load("x.pt")
lowered = jit_passes.quantize_script(model, [x], target="x86", mode="static", progress=False)
print(float(lowered(x).double().sum()))
"""


def test_a_pass_that_was_removed(tmp_path: Path) -> None:
    """Plans have tables, whether or not the registry still has the pass that makes these."""
    x = images()
    model = torch.jit.trace(Around(F.hardswish).eval(), x)
    lowered = jit_passes.quantize_script(model, [x], target="x86", mode="static", progress=False)
    torch.jit.save(model, tmp_path / "model.pt")
    torch.save(x, tmp_path / "x.pt")
    found = run_code(REMOVED, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) == float(lowered(x).double().sum())


class Refused(nn.Module):
    """Operators that no plan has, among others that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=128)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tril(self.a(x))
        return self.up(self.b(x))


def test_what_stays_in_float() -> None:
    x = images()
    torch.manual_seed(0)
    script = torch.jit.script(Refused().eval())
    prepared = jit_passes.calibrate(jit_passes.prepare(script, target="x86"), [x], progress=False)
    reference = jit_passes.convert(prepared)
    found = jit_passes.partition(reference, "x86")
    reasons = {refusal.name: refusal.reason for refusal in found.refused}
    assert "no int8 form" in reasons["tril"]
    lowered = jit_passes.lower(reference)
    assert steps_apart(reference, lowered, x) <= 3
    rows = {row.name: row for row in jit_passes.coverage(lowered)}
    assert "falls into more than 4096 parts" in rows["up:conv_transpose2d"].reason


FLOAT_FORMS: dict[str, tuple[Function, str, str, str]] = {
    "sums in float64": (
        lambda x: x.cumsum(1, dtype=torch.float64).float(),
        "cumsum",
        "the target 'x86' has no int8 form of it",
        "it changes the dtype",
    ),
    "beta 0": (
        lambda x: F.softplus(x, 0.0, -1.0),
        "softplus",
        "its operand 'first:linear' is in float",
        "its beta is 0",
    ),
}


class BetweenLinears(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("name", FLOAT_FORMS)
def test_reasons_in_float(name: str) -> None:
    """An operator that plans have in float has two reasons: against integers, and against float."""
    function, operator, reason, outside = FLOAT_FORMS[name]
    model = torch.jit.trace(BetweenLinears(function).eval(), torch.randn(2, 4))
    inspected = jit_passes.inspect(model, target="x86", mode="dynamic")
    row = next(row for row in inspected if row.name == operator)
    assert (row.dtype, row.region, row.reason, row.outside) == ("float", None, reason, outside)
    both = f"{reason}, and no region has it in float: {outside}"
    assert both in str(inspected)
    reference = jit_passes.convert(jit_passes.prepare(model, target="x86", mode="dynamic"))
    found = jit_passes.partition(reference, "x86")
    assert {r.name: r.reason for r in found.refused}[operator].startswith(both)


class Halves(nn.Module):
    """Parts of one value: a convolution reads one, and an operator in float the other."""

    def __init__(self, list_in_float: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(n, 4, 3, padding=1) for n in (3, 2, 4))
        self.list_in_float = list_in_float

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        parts = x.tensor_split(2, dim=1) if self.list_in_float else x.chunk(2, dim=1)
        return self.c(self.b(parts[0])) + torch.roll(parts[1], 1, 2).sum(1, keepdim=True)


@pytest.mark.parametrize("list_in_float", [False, True])
def test_regions_take_and_give_tensors(list_in_float: bool) -> None:
    """Where a list is made on one side of a region's border, and its parts are read on both."""
    x = images()
    reference, lowered = stages(Halves(list_in_float), x)
    found = jit_passes.partition(reference, "x86")
    for region in found.regions:
        graph = region.module.graph
        assert {str(value.type()) for value in list(graph.inputs())[1:]} == {"Tensor"}
        assert "[]" not in str(next(graph.outputs()).type())
    assert torch.equal(found.model(x), reference(x))
    calls = [n for n in jit_passes.GraphView.of(lowered).nodes if n.kind == "prim::CallMethod"]
    assert len(calls) == len(found.regions)
    assert steps_apart(reference, lowered, images(4, 3, 9, 7)) <= 2.01


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_weights_of_one_sign(sign: int) -> None:
    """Heads start at 0 in many vision transformers; codes that do not reach 0 have a grid too."""
    x = images()
    model = Around(nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()))
    for weight in model.parameters():
        weight.data = sign * (weight.data.abs() + 0.1)
    reference, lowered = stages(model, x)
    assert not kinds_of(lowered)
    assert steps_apart(reference, lowered, x) <= 1.01


def test_a_region_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The region stays where the target gives no plan. A plan that cannot be built is an error."""
    x = images()
    reference, _ = stages(Around(torch.relu), x)
    with monkeypatch.context() as patch:
        patch.setattr(X86, "compile", lambda target, region: None)
        lowered = jit_passes.lower(reference)
    assert torch.equal(lowered(x), reference(x))
    assert all("not compiled its region" in row.reason for row in jit_passes.coverage(lowered))

    def fail(region: object) -> None:
        raise RuntimeError("aten::conv2d of first cannot be part of a plan: its weight is odd")

    monkeypatch.setattr(_C, "build_plan", fail)
    with pytest.raises(PassError, match=r"'compile_regions' .* aten::conv2d .* is odd"):
        jit_passes.lower(reference)


def test_bad_input() -> None:
    """Of a lowered model: an error that says what is wrong, and the model goes on."""
    x = images()
    _, lowered = stages(Around(torch.relu), x)
    expected = lowered(x)
    for wrong in (x[:, :2], x[0, 0], x.int(), torch.ones(2, 3, 0, 4)):
        with pytest.raises((RuntimeError, JitPassesError)):
            lowered(wrong)
    assert torch.equal(lowered(x), expected)
    assert torch.equal(lowered(x.transpose(2, 3).contiguous().transpose(2, 3)), expected)


class Residuals(nn.Module):
    """Layers of which each adds to what the ones before gave: 2^40 ways lead through 40."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(layers)])
        self.linears = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])
        self.scales = nn.ParameterList([torch.full((8,), 0.2) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear, scale in zip(self.norms, self.linears, self.scales, strict=True):
            x = x + scale * F.gelu(linear(norm(x)))
        return x


def test_each_value_is_looked_at_once() -> None:
    """A transformer of many layers is a plan too, and not after all ways through its sums."""
    model = Residuals(40).eval()
    x = torch.randn(2, 5, 8)
    traced = torch.jit.trace(model, x)
    for mode in ("static", "dynamic"):
        quantized = jit_passes.quantize_script(
            traced, [x, x.flip(1)], target="x86", mode=mode, progress=False
        )
        assert len(jit_passes.coverage(quantized).int8) == 40
        noise = (quantized(x) - model(x)).square().sum()
        assert 10 * (model(x).square().sum() / noise).log10() > 25
