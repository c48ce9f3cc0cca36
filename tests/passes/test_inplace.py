"""In-place operators in their functional form: the same results, dtypes and gradients."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from tests.compare import sqnr


def sixteenths(*shape: int) -> Tensor:
    """Return numbers whose products and sums are exact, in whatever order a processor adds them."""
    return torch.randint(1, 16, shape, generator=torch.Generator().manual_seed(0)) / 16


# Operands by name, where the type alone does not say what is right; all others go by type.
BY_NAME: dict[str, Any] = {
    "index": torch.tensor([[0, 1, 0], [1, 0, 1]]),
    "mask": torch.tensor([[True, False, True], [False, True, False]]),
    "dim": 0,
    "min": 0.3,
    "max": 0.7,
    "reduce": "add",
    "rounding_mode": None,
}
# And by operator.
BY_OPERATOR: dict[str, dict[str, Any]] = {
    "clamp_.Tensor": {"min": torch.full((2, 3), 0.3), "max": torch.full((2, 3), 0.7)},
    "clip_.Tensor": {"min": torch.full((2, 3), 0.3), "max": torch.full((2, 3), 0.7)},
    "clamp_min_.Tensor": {"min": torch.full((2, 3), 0.3)},
    "clamp_max_.Tensor": {"max": torch.full((2, 3), 0.3)},
    "addr_": {"vec1": sixteenths(2), "vec2": sixteenths(3)},
    "addmv_": {"mat": sixteenths(2, 4), "vec": sixteenths(4)},
    "baddbmm_": {"batch1": sixteenths(2, 2, 4), "batch2": sixteenths(2, 4, 3)},
    "as_strided_": {"size": [3, 2], "stride": [1, 3]},
    "embedding_renorm_": {"indices": torch.tensor([0, 1])},
    "addmm_": {"mat1": sixteenths(2, 4), "mat2": sixteenths(4, 3)},
    "addbmm_": {"batch1": sixteenths(2, 2, 4), "batch2": sixteenths(2, 4, 3)},
    "index_add_": {"index": torch.tensor([1, 0])},
    "index_copy_": {"index": torch.tensor([1, 0])},
    "index_reduce_": {"index": torch.tensor([1, 0]), "reduce": "mean"},
    "index_fill_.int_Tensor": {"index": torch.tensor([1]), "value": torch.tensor(0.4)},
    "index_fill_.int_Scalar": {"index": torch.tensor([1])},
    "index_put_": {"indices": [torch.tensor([0])], "values": sixteenths(3)},
    "masked_fill_.Tensor": {"value": torch.tensor(0.4)},
    "fill_.Tensor": {"value": torch.tensor(0.4)},
    "scatter_reduce_.two": {"reduce": "sum"},
    "put_": {"index": torch.tensor([0, 4]), "source": sixteenths(2)},
    "random_.from": {"from": 0, "to": 3},
    "squeeze_.dims": {"dim": [0]},
    "swapaxes_": {"axis0": 0, "axis1": 1},
    "swapdims_": {"dim0": 0, "dim1": 1},
    "transpose_": {"dim0": 0, "dim1": 1},
    "unsqueeze_": {"dim": 1},
    "t_": {},
}
# The tensor that is written, of other dtypes and shapes than float32 of [2, 3].
WHOLE = re.compile("bitwise_.*|gcd_|lcm_")
DOUBLE = re.compile("float_power_.*")
FROM_ONE = re.compile("a(rc)?cosh_")  # NaN below
SHAPES = {"addmv_": (2,), "baddbmm_": (2, 2, 3)}
# PyTorch has no derivative of these.
WITHOUT_GRADIENT = re.compile(
    "(a|arc)(cos|sin|tan)h_|floor_divide_.*|heaviside_|igammac?_"
    r"|scatter_\.(value_)?reduce|embedding_renorm_"
)
# Memory itself is given and taken, which is no result; and a form that no script can call.
LEFT_OUT = re.compile(r"set_.*|resize_(as_)?|.*\.hacked_twin")
BY_TYPE: dict[str, Any] = {"int": 1, "float": 0.4, "number": 0.4, "bool": False}


def schemas() -> list[Any]:
    """Return the public operators that write to their first operand and have a functional form."""
    known = torch._C._jit_get_all_schemas()
    names = {schema.name for schema in known}
    return sorted(
        (
            schema
            for schema in known
            if re.fullmatch(r"aten::(?!_|.*sparse).*[^_]_", schema.name)
            and schema.name[:-1] in names
            and str(schema.arguments[0].type) == "Tensor"
            and not LEFT_OUT.fullmatch(title(schema))
        ),
        key=lambda schema: (schema.name, schema.overload_name),
    )


def title(schema: Any) -> str:
    """Return the name as PyTorch's own files write it, `add_.Tensor`."""
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    return f"{schema.name.removeprefix('aten::')}{overload}"


def operand(schema: Any, argument: Any) -> Any:
    """Return a value for an operand: by operator, by name, or by type."""
    chosen = BY_OPERATOR.get(title(schema), {})
    if argument.name in chosen:
        return chosen[argument.name]
    if argument.name in BY_NAME:
        return BY_NAME[argument.name]
    kind = str(argument.type)
    if WHOLE.fullmatch(title(schema)):
        return torch.full((2, 3), 2) if kind == "Tensor" else 2
    if kind == "Tensor":
        return torch.full((2, 3), 0.4)
    if argument.has_default_value():
        return argument.default_value
    return BY_TYPE.get(kind)


class Case:
    """A module with an operator in place, on `1.5 * x`; its other tensors are arguments too."""

    def __init__(self, schema: Any) -> None:
        name = title(schema)
        self.shape = SHAPES.get(name, (2, 3))
        self.has_gradient = not WITHOUT_GRADIENT.fullmatch(name)
        written = "1.5 * x"
        if WHOLE.fullmatch(name):
            written = "(16 * x).long()"
        elif DOUBLE.fullmatch(name):
            written = "1.5 * x.double()"
        elif FROM_ONE.fullmatch(name):
            written = "1.5 * x + 1.0"
        given, calls = ["x: Tensor"], []
        self.tensors = []
        for i, argument in enumerate(schema.arguments[1:]):
            value = operand(schema, argument)
            text = repr(value)
            if isinstance(value, Tensor) or str(argument.type).startswith("List[Optional[Tensor"):
                self.tensors += value if isinstance(value, list) else [value]
                given.append(f"a{i}: Tensor")
                text = f"[a{i}]" if isinstance(value, list) else f"a{i}"
            calls.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        self.module = type(
            "Case", (torch.jit.ScriptModule,), {}
        )()  # its TorchScript type is its own
        self.module.define(
            f"def forward(self, {', '.join(given)}) -> Tensor:\n"
            f"    y = {written}\n"
            f"    return torch.ops.{schema.name.replace('::', '.')}({', '.join(['y', *calls])})\n"
        )

    def run(self, module: torch.jit.ScriptModule) -> tuple[Tensor, Tensor]:
        """Return the result and the gradient for x, zeros where nothing leads back to it."""
        torch.manual_seed(0)
        numbers = torch.tensor([2.0, 3, 4, 6, 7, 9, 11, 12, 13, 14, 15, 16]) / 16
        x = numbers[: math.prod(self.shape)].reshape(self.shape).requires_grad_(self.has_gradient)
        y = module(x, *(tensor.clone() for tensor in self.tensors))
        if y.requires_grad:
            y.sum().backward()
        grad = torch.zeros_like(x) if x.grad is None else x.grad
        return y.detach(), grad


@pytest.mark.filterwarnings("ignore:index_reduce\\(\\) is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize("schema", schemas(), ids=title)
def test_functional_forms(schema: Any) -> None:
    """The operator that the pass makes has the result, the dtype and the gradient.

    PyTorch's functional `lt` changes the dtype, its `copy` has no derivative.
    """
    case = Case(schema)
    result, grad = case.run(case.module)
    replaced, replaced_grad = case.run(jit_passes.run_pass("replace_inplace", case.module))
    assert replaced.dtype == result.dtype
    assert torch.equal(replaced, result)
    assert torch.equal(replaced_grad, grad)


class Copies(nn.Module):
    """Fill a tensor from another one, of other shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        copied = torch.zeros(2, hidden.size(0), hidden.size(1))
        copied.copy_(hidden)
        return self.second(copied)


def test_training() -> None:
    """A prepared model trains through copy_; unquantized, with the float model's gradients."""
    torch.manual_seed(0)
    model = Copies()
    x = torch.randn(3, 4)
    prepared = jit_passes.prepare_qat(torch.jit.script(model))
    jit_passes.disable_fake_quantize(prepared)
    for module in (model, prepared):
        module(x).square().sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = {name: parameter.grad for name, parameter in prepared.named_parameters()}
    for name, grad in expected.items():
        assert torch.allclose(found[name], grad, rtol=1e-6, atol=1e-7), name


class Residual(nn.Module):
    """A convolution and a shortcut that is added in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y += x
        return y


class Features(nn.ModuleDict):
    """Layers some of whose results are kept in a dict, as backbones of detectors do."""

    def __init__(self) -> None:
        super().__init__({name: Residual() for name in ("stem", "low", "high")})
        self.kept = {"low": "0", "high": "1"}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, layer in self.items():
            x = layer(x)
            if name in self.kept:
                found[self.kept[name]] = x
        return found


@pytest.mark.parametrize("target", ["stock", "reference", "x86"])
def test_results_in_a_dict(target: str) -> None:
    """Results in a dict are no reason to leave the sums that make them in float."""
    torch.manual_seed(0)
    model = torch.jit.script(Features().eval())
    data = [torch.randn(2, 3, 9, 7) for _ in range(2)]
    kinds = {node.kind for node in jit_passes.normalized_graph(model).nodes}
    assert "aten::add" in kinds and "aten::add_" not in kinds
    quantized = jit_passes.quantize_script(model, data, target=target)
    with torch.no_grad():
        found, expected = quantized(data[0]), model(data[0])
    for name in ("0", "1"):
        error = (found[name] - expected[name]).square().sum()
        assert error < 1e-3 * expected[name].square().sum()
    if target == "x86":
        assert sum(hasattr(module, "compiled") for module in quantized.modules()) == 1


class NoBiasOfKeys(nn.Module):
    """Attention as Swin V2 of torchvision has it: each call takes a part of the bias away."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias.clone()
        length = bias.numel() // 3
        bias[length : 2 * length].zero_()
        q, k, v = F.linear(x, self.qkv.weight, bias).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


@pytest.mark.parametrize("form", ["scripted", "traced"])
def test_writes_into_a_copy_of_a_constant(form: str) -> None:
    """The layer is on integers, and the weights of the model are what they were."""
    torch.manual_seed(0)
    model, x = NoBiasOfKeys().eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        script = torch.jit.script(model) if form == "scripted" else torch.jit.trace(model, x)
        before = model.qkv.bias.clone()
        quantized = jit_passes.quantize_script(script, [x], target="x86", progress=False)
        rows = [row.kind for row in jit_passes.coverage(quantized).int8]
        assert "linear" in rows
        assert torch.equal(model.qkv.bias, before)
        torch.testing.assert_close(quantized(x), model(x), rtol=0, atol=0.05)


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_a_wider_operand(target: str) -> None:
    """A sum keeps the dtype of its first operand beside float64, in float; others are int8."""

    class Wider(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            a = self.conv(x)
            b = a * 2
            b += a.double() * 0.5
            c = self.conv(x)
            c += y
            return b, self.other(F.relu(c))

    x, y = sixteenths(1, 3, 6, 6), sixteenths(1, 4, 4, 4)
    model = torch.jit.script(Wider().eval())
    quantized = jit_passes.quantize_script(model, [(x, y)], target=target, mode="static")
    for found, expected in zip(quantized(x, y), model(x, y), strict=True):
        assert found.dtype == expected.dtype == torch.float32
        assert (found - expected).abs().max() < 0.03 * expected.abs().max()
    floats = jit_passes.format_graph(quantized)
    assert "aten::add_(" in floats
    assert target != "x86" or "aten::add(" not in floats, "the sum with an argument is in the plan"


class Written(nn.Module):
    """Writes to a part of a convolution's result, and gives all of it to another one."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.form == "pooled ahead":
            y = F.max_pool2d(y, 2)
        if self.form == "by an input":
            y[:, 1:3] *= x[:, 1:3, 1:-1, 1:-1]
        elif self.form == "assigned":
            y[:, 1:3] = y[:, 1:3] * 2
        else:
            y[:, 1:3] *= 2
        if self.form == "pooled":
            return self.last(F.max_pool2d(y, 2))
        if self.form == "moved":
            return self.last(y.permute(0, 1, 3, 2))
        return self.last(F.relu(y))


@pytest.mark.parametrize(
    "form", ["scaled", "assigned", "by an input", "pooled", "pooled ahead", "moved"]
)
def test_writes_to_a_part(form: str) -> None:
    """A plan quantizes the value after the write; with the grid from before, it is cut off."""
    torch.manual_seed(0)
    data = [torch.randn(2, 3, 12, 12) for _ in range(4)]
    model = torch.jit.script(Written(form).eval())
    quantized = {
        target: jit_passes.quantize_script(model, data, target=target, mode="static")(data[0])
        for target in ("reference", "x86")
    }
    assert sqnr(quantized["reference"], quantized["x86"]) > 50
