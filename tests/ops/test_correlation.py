"""The operators correlation and add_bias against PyTorch's convolutions and linear."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.library import opcheck

import jit_passes  # noqa: F401  registers the operators
from tests.advice import even_kernels

pytestmark = even_kernels

correlation = torch.ops.jit_passes.correlation
add_bias = torch.ops.jit_passes.add_bias

CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@dataclass(frozen=True)
class Case:
    """A convolution or linear: its tensors' shapes and its geometry."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] | str = (0,)
    dilation: tuple[int, ...] = (1,)
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)
    groups: int = 1

    @property
    def dims(self) -> int:
        return len(self.weight) - 2

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Input and weight, always the same."""
        generator = torch.Generator().manual_seed(0)
        random = [
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in (self.input, self.weight)
        ]
        if dtype.is_complex:
            random = [torch.complex(part, part.flip(-1)) for part in random]
        x, weight = (part.to(dtype) for part in random)
        return x, weight

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of correlation behind the tensors."""
        if isinstance(self.padding, str):
            return (self.stride, self.padding, self.dilation, self.groups)
        tail = (self.transposed, self.output_padding, self.groups)
        return (self.stride, self.padding, self.dilation, *tail)

    def overload(self) -> Any:
        return correlation.mode if isinstance(self.padding, str) else correlation.default

    def found(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.overload()(x, weight, *self.arguments())

    def expected(self, x: Tensor, weight: Tensor) -> Tensor:
        if not self.dims:
            return F.linear(x, weight)
        if self.transposed:
            extra: dict[str, Any] = {"output_padding": self.output_padding}
            function = TRANSPOSED[self.dims]
        else:
            extra, function = {}, CONV[self.dims]
        geometry = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return function(x, weight, None, groups=self.groups, **geometry, **extra)


CASES = {
    "1d": Case((2, 3, 7), (4, 3, 3)),
    "1d_geometry": Case((2, 4, 9), (6, 2, 2), (2,), (1,), (3,), groups=2),
    "1d_same_even": Case((2, 3, 7), (4, 3, 4), padding="same"),
    "1d_valid": Case((2, 3, 7), (4, 3, 3), (2,), "valid"),
    "1d_unbatched": Case((3, 7), (4, 3, 3), (2,), (1,)),
    "1d_transposed": Case((2, 3, 5), (3, 2, 3), (2,), (1,), (1,), True, (1,)),
    "2d": Case((2, 3, 6, 5), (4, 3, 3, 2)),
    "2d_lists": Case((2, 3, 7, 8), (4, 3, 3, 2), (2, 1), (1, 2), (1, 3)),
    "2d_broadcast": Case((2, 3, 7, 8), (4, 3, 3, 2), (2,), (1,), (2,)),
    "2d_groups": Case((2, 4, 6, 5), (6, 2, 3, 3), padding=(1, 1), groups=2),
    "2d_depthwise": Case((2, 4, 6, 5), (4, 1, 3, 3), padding=(1, 1), groups=4),
    "2d_same": Case((2, 3, 6, 5), (4, 3, 3, 5), padding="same"),
    "2d_same_even": Case((2, 3, 6, 5), (4, 3, 2, 3), padding="same", dilation=(1, 2)),
    "2d_same_even_dilated": Case((1, 2, 6, 7), (3, 2, 4, 2), padding="same", dilation=(3,)),
    "2d_same_unbatched": Case((3, 6, 5), (4, 3, 2, 2), padding="same"),
    "2d_valid_groups": Case((2, 4, 6, 5), (6, 2, 3, 3), (2, 1), "valid", groups=2),
    "2d_unbatched": Case((3, 6, 5), (4, 3, 3, 3), padding=(1, 1)),
    "2d_empty_batch": Case((0, 3, 6, 5), (4, 3, 3, 3)),
    "2d_transposed": Case((2, 3, 4, 3), (3, 2, 3, 2), (2, 2), (1, 0), (1, 1), True, (1, 0)),
    "2d_transposed_groups": Case(
        (2, 4, 4, 3), (4, 3, 3, 2), (2,), (0,), (2,), transposed=True, groups=2
    ),
    "2d_transposed_unbatched": Case((3, 4, 3), (3, 2, 2, 2), transposed=True),
    "3d": Case((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), (1, 2, 1), (1, 0, 1)),
    "3d_groups_dilation": Case((1, 4, 4, 5, 4), (2, 2, 2, 2, 2), dilation=(1, 2, 1), groups=2),
    "3d_same_even": Case((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), padding="same"),
    "3d_unbatched": Case((2, 4, 4, 4), (3, 2, 2, 2, 2)),
    "3d_transposed": Case((1, 2, 2, 3, 2), (2, 3, 2, 2, 2), (2,), transposed=True),
    "linear": Case((2, 3, 6, 5), (4, 5), (), (), (), False, ()),
    "linear_unbatched": Case((5,), (4, 5), (), (), (), False, ()),
}


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """In a thread where no function transform has run: after one, others take PyTorch's way."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(test, *args, **named).result()

    return run


each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
WITH_NUMBERS = {name: case for name, case in CASES.items() if 0 not in case.input}


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_forward(case: Case, dtype: torch.dtype) -> None:
    """Results are equal to the bit: the kernels are PyTorch's."""
    x, weight = case.tensors(dtype)
    expected, found = case.expected(x, weight), case.found(x, weight)
    assert found.dtype == dtype and found.stride() == expected.stride()
    assert torch.equal(found, expected)
    assert found.numel() == 0 or found.any()


@each
def test_complex(case: Case) -> None:
    """PyTorch makes these of real convolutions, and so does this; derivatives too."""
    x, weight = (part.requires_grad_() for part in case.tensors(torch.complex128))
    expected, found = case.expected(x, weight), case.found(x, weight)
    assert torch.equal(found, expected)
    seed = torch.ones_like(found)
    gradients = (torch.autograd.grad(y, (x, weight), seed) for y in (found, expected))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("name", ["2d", "2d_groups", "2d_same_even", "2d_transposed", "3d"])
def test_channels_last(name: str) -> None:
    """A layout that comes in goes out, as from PyTorch's convolution."""
    case = CASES[name]
    layout = torch.channels_last if case.dims == 2 else torch.channels_last_3d
    x, weight = (part.to(memory_format=layout) for part in case.tensors())
    expected, found = case.expected(x, weight), case.found(x, weight)
    assert torch.equal(found, expected) and found.stride() == expected.stride()
    assert found.is_contiguous(memory_format=layout) == expected.is_contiguous(memory_format=layout)


@each
@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)], ids=str)
@apart
def test_gradients(case: Case, needed: tuple[bool, bool]) -> None:
    """Gradients are PyTorch's to the bit, and none is computed that nobody asked for."""
    results = []
    for function in (case.found, case.expected):
        x, weight = case.tensors()
        x.requires_grad_(needed[0])
        weight.requires_grad_(needed[1])
        y = function(x, weight)
        (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum().backward()
        results.append((x.grad, weight.grad))
    for found, expected, asked in zip(*results, needed, strict=True):
        assert (found is not None) == (expected is not None) == asked
        if asked:
            assert torch.equal(found, expected)


@pytest.mark.parametrize("case", WITH_NUMBERS.values(), ids=WITH_NUMBERS)
@apart
def test_gradcheck(case: Case) -> None:
    """First and second derivatives in double against differences, at gradcheck's own tolerances."""
    tensors = tuple(part.requires_grad_() for part in case.tensors(torch.float64))
    assert torch.autograd.gradcheck(case.found, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(case.found, tensors, fast_mode=True)


@apart
def test_derivative_is_its_own() -> None:
    """Not that of the convolution inside, which complex numbers take; none where none is asked."""
    x, weight = CASES["2d"].tensors()
    weight.requires_grad_()
    assert "Correlation" in CASES["2d"].found(x, weight).grad_fn.name()
    numbers = (part.to(torch.complex64) for part in (x, weight))
    assert "Correlation" not in CASES["2d"].found(*numbers).grad_fn.name()
    with torch.no_grad():
        assert CASES["2d"].found(x, weight).grad_fn is None


@each
def test_forward_mode(case: Case) -> None:
    """Tangents of both operands: PyTorch's own way, so to the bit."""
    tensors = case.tensors(torch.float64)
    tangents = tuple(part.cos() for part in tensors)
    expected = torch.func.jvp(case.expected, tensors, tangents)
    found = torch.func.jvp(case.found, tensors, tangents)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensors[0], tangents[0])
        primal, tangent = torch.autograd.forward_ad.unpack_dual(case.found(dual, tensors[1]))
        assert torch.equal(primal, expected[0])
        assert tangent is not None and torch.equal(tangent, case.expected(tangents[0], tensors[1]))


@pytest.mark.parametrize("name", ["1d", "2d_groups", "2d_same_even", "2d_transposed"])
def test_function_transforms(name: str) -> None:
    """vmap, grad and their compositions; a batched convolution may sum in another order.

    float64, of at most 100 products: 1e-13.
    """
    case = CASES[name]
    x, weight = case.tensors(torch.float64)
    stack = torch.stack([x, x.sin(), x.cos()])
    found = torch.func.vmap(case.found, (0, None))(stack, weight)
    expected = torch.stack([case.expected(part, weight) for part in stack])
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)

    def loss(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda weight, x: function(x, weight).square().sum()

    per_sample = [
        torch.func.vmap(torch.func.grad(loss(f)), (None, 0))(weight, stack)
        for f in (case.found, case.expected)
    ]
    torch.testing.assert_close(*per_sample, rtol=1e-13, atol=1e-11)


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_autocast(case: Case, dtype: torch.dtype, given: torch.dtype) -> None:
    """Dtype and numbers of PyTorch's convolution, which autocasts float32 and not float64."""
    x, weight = (part.requires_grad_() for part in case.tensors(given))
    results = []
    for function in (case.found, case.expected):
        with torch.autocast("cpu", dtype=dtype):
            y = function(x, weight)
        results.append((y, *torch.autograd.grad(y.sum(), (x, weight))))
    assert results[1][0].dtype == (dtype if given == torch.float32 else given)
    for found, expected in zip(*results, strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize(
    "name", ["1d", "2d_lists", "2d_groups", "2d_same_even", "2d_unbatched", "2d_transposed", "3d"]
)
def test_opcheck(name: str) -> None:
    """Schema, autograd, fake tensors and tracing, as PyTorch wants them of an operator."""
    case = CASES[name]
    x, weight = (part.requires_grad_() for part in case.tensors())
    result = opcheck(case.overload(), (x, weight, *case.arguments()))
    assert set(result.values()) == {"SUCCESS"} and len(result) >= 4


@each
def test_meta(case: Case) -> None:
    """Shape and dtype without numbers."""
    x, weight = case.tensors()
    found = case.found(x.to("meta"), weight.to("meta"))
    assert found.device.type == "meta" and found.shape == case.expected(x, weight).shape


class Scripted(nn.Module):
    """Both overloads and the bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 3, 2, 2))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.jit_passes.correlation(
            x, self.weight, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        )
        y = torch.ops.jit_passes.add_bias(y, self.bias, 2)
        return torch.ops.jit_passes.correlation(y, self.weight, [1, 1], "same", [1, 1], 1)


def test_script_save_load(tmp_path: Path) -> None:
    """Gradients through the JIT's executor, and the same numbers from a file, to the bit."""
    module = Scripted()
    script = torch.jit.script(module)
    torch.jit.save(script, str(tmp_path / "model.pt"))
    loaded = torch.jit.load(str(tmp_path / "model.pt"))
    x = torch.randn(2, 3, 5, 6)
    expected = F.conv2d(
        F.conv2d(x, module.weight, module.bias, padding=1), module.weight, padding="same"
    )
    wanted = torch.autograd.grad(expected.sum(), list(module.parameters()))
    for model in (script, loaded):
        for _ in range(3):  # the executor specializes after some runs
            y = model(x)
            # Adding the bias rounds once more than a convolution that starts from it.
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
            found = torch.autograd.grad(y.sum(), list(model.parameters()))
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    assert torch.equal(loaded(x), script(x))


X, WEIGHT = torch.zeros(2, 3, 5, 5), torch.zeros(4, 3, 3, 3)
GEOMETRY = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: correlation(X, WEIGHT[0, 0, 0], *GEOMETRY), "2 to 5 dimensions.*got 1"),
        (
            lambda: correlation(X, WEIGHT[0, 0], [], [], [], True, [], 1),
            "1 group, got 1 groups, tr",
        ),
        (
            lambda: correlation(X, WEIGHT[0, 0], [], [], [], False, [], 3),
            "and 1 group, got 3 groups",
        ),
        (lambda: correlation(X, WEIGHT[0, 0], [], [], [], False, [], 1), "3 numbers.*2, 3, 5, 5"),
        (
            lambda: correlation(X[..., :3], WEIGHT[0, 0], [1, 1], *GEOMETRY[1:]),
            "stride must hold 1 or",
        ),
        (lambda: correlation(X[0, 0], WEIGHT, *GEOMETRY), "must have 4 dimensions, or 3.*got 2"),
        (lambda: correlation(X[None], WEIGHT, *GEOMETRY), "must have 4 dimensions, or 3.*got 5"),
        (lambda: correlation(X[:, :2], WEIGHT, *GEOMETRY), "3 channels.*got 2.*change weight"),
        (lambda: correlation(X, WEIGHT, *GEOMETRY[:5], 3), "multiple of groups, got 4 in 3"),
        (lambda: correlation(X, WEIGHT, *GEOMETRY[:5], 2), "6 channels.*2 groups, got 3"),
        (lambda: correlation(X, WEIGHT, *GEOMETRY[:5], 0), "groups must be above 0, got 0"),
        (lambda: correlation(X, WEIGHT, [1, 1], [0, 0], [1, 1], True, [0], 1), "4 channels.*got 3"),
        (lambda: correlation(X, WEIGHT, [1, 1, 1], *GEOMETRY[1:]), "stride must hold 1 or 2 numb"),
        (lambda: correlation(X, WEIGHT, [1], [0, 0, 0], *GEOMETRY[2:]), "padding must hold 1 or 2"),
        (lambda: correlation(X, WEIGHT, [1], "full", [1], 1), "'same' or 'valid', got 'full'"),
        (lambda: correlation(X, WEIGHT, [2], "same", [1], 1), "stride of 1, got .2.: give the pad"),
        (lambda: correlation(X, WEIGHT, [1, 2], "same", [1], 1), "stride of 1"),
        (lambda: correlation(X, WEIGHT, [1], "same", [1, 1, 1], 1), "dilation must hold 1 or 2"),
        (lambda: add_bias(X, torch.zeros(4), 2), r"shape \[3\].*got \[4\]: check which axis"),
        (lambda: add_bias(X, torch.zeros(3, 1), 2), r"shape \[3\].*got \[3, 1\]"),
        (lambda: add_bias(X, torch.zeros(3), 1), "3 dimensions, or 2.*spatial_dims=1, got 4"),
        (lambda: add_bias(X, torch.zeros(3), -1), "0 or more, got -1"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_errors(call: Callable[[], Tensor], message: str, grad: bool) -> None:
    """Errors say what was expected, what came, and what to do."""
    WEIGHT.requires_grad_(grad)
    try:
        with pytest.raises(RuntimeError, match=message):
            call()
    finally:
        WEIGHT.requires_grad_(False)


@pytest.mark.parametrize("shape", [(2, 3), (3,), (2, 3, 4), (3, 4, 5), (0, 3, 4, 4), (2, 0, 4, 4)])
def test_add_bias(shape: tuple[int, ...]) -> None:
    """A number for each channel, with and without a batch axis."""
    axis = 1 if len(shape) in (2, 4) or shape == (2, 3, 4) else 0
    x, bias = torch.randn(shape), torch.randn(shape[axis])
    dims = len(shape) - axis - 1
    expected = (x.movedim(axis, -1) + bias).movedim(-1, axis)
    found = add_bias(x, bias, dims)
    assert torch.equal(found, expected)
    assert x.numel() == 0 or found.data_ptr() != x.data_ptr()


def test_add_bias_keeps_dtype_and_layout() -> None:
    """The dtype of x, under autocast too; the bias' gradient has the bias' dtype."""
    bias = torch.randn(3, requires_grad=True)
    x = torch.randn(2, 3, 5, 5).to(torch.bfloat16, memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = add_bias(x, bias, 2)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)
    y.sum().backward()
    assert bias.grad is not None and bias.grad.dtype == torch.float32
    assert torch.equal(bias.grad, torch.full((3,), 50.0))


def test_add_bias_opcheck_and_gradcheck() -> None:
    """As for the correlation, forward mode included."""
    x, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 4), (3,)))
    assert set(opcheck(add_bias.default, (x, bias, 1)).values()) == {"SUCCESS"}
    assert torch.autograd.gradcheck(add_bias, (x, bias, 1), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(add_bias, (x, bias, 1))
