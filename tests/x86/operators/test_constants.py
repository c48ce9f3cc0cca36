"""Plans with constant tensors as operands of sums, differences and products."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.plans import Called, Grid, Q, plan_of, traced
from tests.x86.models.test_plan import assert_equal, assert_steps
from tests.x86.program.test_state import restored

Function = Callable[[Tensor, Tensor], Tensor]


class WithConstant(nn.Module):
    """Scales are powers of two: float32 has all numbers of the reference model exactly."""

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        draw = random.Random(str((shape, dtype)))
        self.function, ends = function, torch.iinfo(dtype)
        codes = torch.randint(ends.min, ends.max + 1, shape, dtype=dtype)
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.zero_point = draw.randint(ends.min, ends.max)
        self.x, self.y = Grid(0.25, draw.randint(0, 255)), Grid(2.0, draw.randint(60, 200))

    def forward(self, x: Tensor) -> Tensor:
        return self.y(self.function(self.x(x), Q.dequantize(self.codes, 0.5, self.zero_point)))


FUNCTIONS: dict[str, Function] = {
    "add": lambda x, c: x + c,
    "sub": lambda x, c: x - c,
    "from": lambda x, c: c - x,
    "alpha": lambda x, c: torch.add(x, c, alpha=-3),
    "mul": lambda x, c: x * c,
    "times": lambda x, c: c * x,
}
SHAPES = [
    ((2, 9, 40), (9, 40)),
    ((2, 9, 40), (1, 9, 40)),
    ((2, 9, 40), (40,)),
    ((3, 1, 40), (9, 1)),
    ((2, 5, 6, 7), (5, 1, 1)),
    ((2, 5, 6, 7), (1, 5, 6, 7)),
    ((2, 5, 6, 7), (6, 7)),
    ((4,), (2, 3, 4)),
    ((2, 3, 4, 5, 3), (3, 1, 5, 1)),
    ((17,), (17,)),
    ((1,), ()),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_constants_are_exact(
    function: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """All ways to broadcast, uint8 and int8."""
    torch.manual_seed(0)
    x = torch.randn(shapes[0]) * 20
    for dtype in (torch.uint8, torch.int8):
        assert_equal(traced(WithConstant(FUNCTIONS[function], shapes[1], dtype), x), x)


def test_other_sizes_and_files() -> None:
    """A constant broadcasts to whatever comes; a plan that is saved holds it."""
    torch.manual_seed(0)
    x = torch.randn(2, 9, 40) * 20
    region = traced(WithConstant(FUNCTIONS["add"], (1, 1, 40), torch.uint8), x)
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Called(plan_of(region))), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    for shape in ((2, 9, 40), (1, 3, 40), (5, 9, 1), (4, 2, 1, 40)):
        x = torch.randn(shape) * 20
        assert torch.equal(loaded(x), region(x))
    with pytest.raises(RuntimeError, match="do not broadcast"):
        loaded(torch.randn(2, 9, 41))


class Positions(nn.Module):
    """Embeddings of positions, and a factor for each feature that nothing can take in."""

    def __init__(self) -> None:
        super().__init__()
        self.pos = nn.Parameter(torch.randn(1, 9, 24) * 0.3)
        self.scale = nn.Parameter(torch.rand(24) + 0.5)
        self.mean, self.weight = torch.rand(24), torch.rand(24) + 1
        self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.a(x) + self.pos - self.mean) * self.weight
        return self.b(torch.sigmoid(x) * self.scale + x)


def test_model_is_one_region() -> None:
    """Constants are quantized when the model is prepared, in the file they are integers."""
    torch.manual_seed(0)
    net = Positions().eval()
    batches = [torch.randn(4, 9, 24) for _ in range(8)]
    model = torch.jit.trace(net, batches[0])
    lowered = jit_passes.quantize_script(model, batches, target="x86")
    assert str(lowered.graph).count("prim::CallMethod") == 1
    assert "aten::" not in str(lowered.graph)
    expected, actual = net(batches[0]), lowered(batches[0])
    assert 10 * torch.log10(expected.square().mean() / (expected - actual).square().mean()) > 30
    codes = {"version": 1, "rules": [{"module": "b", "output": {"dtype": "uint8"}}]}
    prepared = jit_passes.prepare(model, target="x86", config=codes)
    for batch in batches:
        prepared(batch)
    assert_steps(jit_passes.convert(prepared), [torch.randn(2, 9, 24)], 1)


REFUSED = {
    "float32, integers": torch.arange(24),
    "finite": torch.tensor([float("inf")] * 24),
    "float32": torch.rand(24, dtype=torch.float64),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals(kind: str) -> None:
    """Without codes it stays in float, with the reason; the model computes what it did."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 24)
            self.register_buffer("other", REFUSED[kind])

        def forward(self, x: Tensor) -> Tensor:
            return self.b((torch.sigmoid(self.a(x)) * self.other).float())

    model = torch.jit.trace(Net().eval(), torch.randn(2, 24))
    rows = {row.kind: row for row in jit_passes.inspect(model, target="x86")}
    assert f"its constant is not {kind.split(',')[0]}" in rows["aten::mul"].reason


BAD_CODES = {
    "floats": torch.zeros(9, 40),
    "signed": torch.zeros(9, 40, dtype=torch.int8),
    "empty": torch.zeros(0, 40, dtype=torch.uint8),
    "six axes": torch.zeros(1, 1, 1, 1, 1, 1, dtype=torch.uint8),
    "strided": torch.zeros(40, 9, dtype=torch.uint8).t(),
    "beyond": torch.full((9, 40), 201, dtype=torch.uint8),
}


@pytest.mark.parametrize("kind", [*BAD_CODES, "missing", "input"])
def test_hostile_states(kind: str) -> None:
    """Checks of a loaded plan, so that nothing is read that is not there."""
    torch.manual_seed(0)
    region = traced(WithConstant(FUNCTIONS["add"], (9, 40), torch.uint8), torch.randn(2, 9, 40))
    lists, scales, operators = plan_of(region).__getstate__()[0]
    lists, operators = copy.deepcopy(lists), copy.deepcopy(operators)
    names, numbers, tensors = next(op for op in operators if op[0][0] == "constant")
    if kind == "missing":
        tensors.clear()
    elif kind == "input":
        numbers[0].append(0)
    else:
        tensors[0] = BAD_CODES[kind]
        lists[1][4 * numbers[1][0] + 2] = 200  # the last code of its grid
    changed = [(names, numbers, tensors) if op[0][0] == "constant" else op for op in operators]
    with pytest.raises(RuntimeError, match="not a plan"):
        restored((lists, scales, changed))


def test_an_enormous_constant_of_a_file() -> None:
    """A file may say that a tensor is larger than what it holds."""
    torch.manual_seed(0)
    region = traced(WithConstant(FUNCTIONS["mul"], (9, 40), torch.uint8), torch.randn(2, 9, 40))
    lists, scales, operators = plan_of(region).__getstate__()[0]
    small = torch.zeros(1, dtype=torch.uint8)
    huge = small.as_strided((1 << 20,), (0,))
    changed = [(a, b, [huge] if a[0] == "constant" else c) for a, b, c in operators]
    with pytest.raises(RuntimeError, match="not a plan"):
        restored((lists, scales, changed))
