"""The state of a plan, and the end of bad ones: files are not trusted."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from tests.plans import Called, Grid, plan_of, reference, traced


class Net(nn.Module):
    """Most kinds of operators of a plan."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, 2, 1)
        self.two = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2)
        self.gate = nn.Conv2d(8, 8, 1)
        self.short, self.long = nn.BatchNorm2d(16), nn.BatchNorm2d(32)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        y = F.max_pool2d(F.hardswish(self.two(x)) + x, 2)
        y = y * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(y, 1)))
        y = F.interpolate(F.pad(y, (1, 0, 0, 1)), scale_factor=2.0)
        a, b = F.avg_pool2d(y, 3, 2, 1), F.max_pool2d(y, 2)
        y = F.relu(self.short(torch.cat([a, b], 1)))
        y = torch.cat([y, self.long(torch.cat([a, b, y], 1))], 1)
        return self.head(y.mean((2, 3)).flatten(1))


class Attention(nn.Module):
    """The operators of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(12), nn.Linear(12, 36), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, 2)
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)), 2)
        return self.out(self.norm(weights @ v))


class Windows(nn.Module):
    """Six axes, axes that go round, and values that are repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = Grid(0.03, 131)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.roll(self.grid(x), (-1, 1), (1, 2)).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
        x = x.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(0, 2)
        return x.unsqueeze(1).expand(-1, 3, -1, -1).flatten(1, 2)


@pytest.fixture(scope="module")
def plan() -> Any:
    torch.manual_seed(0)
    prepared = jit_passes.prepare(torch.jit.trace(Net().eval(), X), target="x86")
    jit_passes.calibrate(prepared, [torch.randn(2, 3, 16, 12) for _ in range(3)])
    plan = plan_of(jit_passes.convert(prepared))
    assert sum(kind[0] == "affine" for kind, _, _ in plan.__getstate__()[0][2]) == 2
    return plan


X = torch.linspace(-3, 3, 2 * 3 * 16 * 12).reshape(2, 3, 16, 12).sin()


def restored(state: Any) -> Any:
    """Return the plan of a state, the way a file is loaded."""
    plan = torch.ScriptObject.__new__(torch.ScriptObject)
    plan.__setstate__((state, "__torch__.torch.classes.jit_passes.Plan"))
    return plan


def test_copies_and_files(plan: Any) -> None:
    (expected,) = plan.run([X])
    for other in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert torch.equal(other.run([X])[0], expected)
    model = torch.jit.script(Called(plan)).eval()
    for module in (model, torch.jit.freeze(model), copy.deepcopy(model)):
        buffer = io.BytesIO()
        torch.jit.save(module, buffer)
        buffer.seek(0)
        loaded = torch.jit.load(buffer)
        assert torch.equal(loaded(X), expected)
        again = io.BytesIO()
        torch.jit.save(loaded, again)
        again.seek(0)
        assert torch.equal(torch.jit.load(again)(X), expected)


def test_the_state_is_plain(plan: Any) -> None:
    """Nothing that was prepared is in the state, so nothing of the machine."""
    before = plan.__getstate__()[0]
    plan.run([X])
    after = plan.__getstate__()[0]
    assert before[:2] == after[:2]
    plain = (int, float, str, Tensor)

    def check(state: Any) -> None:
        if isinstance(state, list | tuple):
            for part in state:
                check(part)
        else:
            assert isinstance(state, plain), type(state)

    check(after)


def test_nobody_else_holds_the_weights(plan: Any) -> None:
    """A checked state stays as it is, whatever becomes of the tensors of a state."""
    state = plan.__getstate__()[0]
    other = restored(state)
    (expected,) = plan.run([X])
    tensors = [tensor for _, _, tensors in state[2] for tensor in tensors]
    for tensor in (*tensors, *(t for _, _, ts in plan.__getstate__()[0][2] for t in ts)):
        tensor.resize_(0)
    assert torch.equal(other.run([X])[0], expected)
    assert torch.equal(restored(plan.__getstate__()[0]).run([X])[0], expected)


def test_a_padding_beyond_all_memory(plan: Any) -> None:
    """Sizes multiply to more than 64 bits hold."""
    state = plan.__getstate__()[0]
    taken, first, (kind, numbers, tensors) = state[2][:3]
    assert [taken[0][0], first[0][0], kind[0]] == ["input", "quantize", "convolution"]
    huge = [numbers[0], numbers[1], [3, 1, *[1 << 15] * 3, *[1 << 15] * 6, 1, 1, 1]]
    weight = torch.ones(8, 3, 1, 3, 3, dtype=torch.int8)
    padded = (kind, huge, [weight, *tensors[1:]])
    lists = [*state[0][:2], numbers[1]]
    damaged = restored((lists, state[1], [taken, first, padded]))
    x = torch.zeros(4096, 3, 4, 4, 4)
    with pytest.raises(RuntimeError, match=r"with its padding takes \S+ bytes"):
        damaged.run([x])


def leaves(state: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Return the path of each number, text, tensor and list of a state."""
    found = [path] if path else []
    if isinstance(state, list | tuple):
        for i, part in enumerate(state):
            found += leaves(part, (*path, i))
    return found


NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    256,
    1 << 15,
    1 << 30,
    1 << 31,
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
]
# `make asan` asks for 10,000.
MUTATIONS = int(os.environ.get("JIT_PASSES_MUTATIONS", "1500"))
REALS = [0.0, -1.0, 1e-40, 1e300, float("inf"), float("nan"), 0.5]


def mutated(value: Any, draw: random.Random) -> Any:
    """Return something else of the same type."""
    if isinstance(value, int):
        return draw.choice([value + 1, value - 1, *NUMBERS])
    if isinstance(value, float):
        return draw.choice(REALS)
    if isinstance(value, str):
        return draw.choice(["", "convolution", "add", "concat", "reshape", "mean", "no such thing"])
    if isinstance(value, Tensor):
        return draw.choice(
            [
                value[:-1] if value.dim() else value,
                value.float() * 1e30,
                value.to(torch.int8),
                torch.zeros(0, dtype=value.dtype),
                value.unsqueeze(0),
                value.expand(2, *value.shape),
                torch.full_like(value, float("nan"))
                if value.is_floating_point()
                else value * 0 - 128,
                value.t() if value.dim() == 2 else value.to(torch.float64),
                value.to_sparse(),
                torch.empty(value.shape, dtype=value.dtype, device="meta"),
            ]
        )
    changes = [value[:-1], [*value, *value[-1:]], value[::-1], []]
    return draw.choice(changes) if isinstance(value, list) else value


def replaced(state: Any, path: tuple[int, ...], draw: random.Random) -> Any:
    """Return a state with another value at the path."""
    if not path:
        return mutated(state, draw)
    parts = list(state)
    parts[path[0]] = replaced(parts[path[0]], path[1:], draw)
    return type(state)(parts)


def test_mutated_states(plan: Any) -> None:
    """Each is an error when it is restored or run, or a plan that runs; none is a crash."""
    refused, ran = mutate(plan, X, MUTATIONS)
    assert refused > 500 and ran > 50


def test_mutated_states_of_attention() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, 12)
    refused, ran = mutate(plan_of(reference(Attention(), [x, -x])), x, MUTATIONS)
    assert refused > 300 and ran > 30


def test_mutated_states_of_windows() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 5)
    plan = plan_of(traced(Windows(), x))
    kinds = {operator[0][0] for operator in plan.__getstate__()[0][2]}
    assert {"roll", "unsqueeze", "expand", "permute"} <= kinds
    refused, ran = mutate(plan, x, MUTATIONS)
    assert refused > 300 and ran > 30


WRONG = [
    ("roll", [1], "1 attributes, and it has 2 to 10"),
    ("roll", [1, 2, 3], "as far as 1 numbers say"),
    ("roll", [1 << 40, 1], "a distance of"),
    ("roll", [1, 9], "an axis of 9"),
    ("unsqueeze", [9], "an axis of 9"),
    ("expand", [-2], "a size of -2"),
    ("expand", [1] * 7, "7 attributes, and it has 0 to 6"),
    ("permute", [0, 1, 2, 3, 4, 5, 6], "7 attributes, and it has 1 to 6"),
]


@pytest.mark.parametrize(("kind", "numbers", "message"), WRONG)
def test_wrong_moves(kind: str, numbers: list[int], message: str) -> None:
    lists, scales, operators = plan_of(traced(Windows(), torch.randn(2, 4, 6, 5))).__getstate__()[0]
    others = [
        (texts, [*parts[:2], numbers] if texts[0] == kind else parts, tensors)
        for texts, parts, tensors in operators
    ]
    with pytest.raises(RuntimeError, match=message):
        restored((lists, scales, others))


def mutate(plan: Any, x: Tensor | list[Tensor], times: int) -> tuple[int, int]:
    """Return how many changed states are refused, and how many run."""
    inputs = x if isinstance(x, list) else [x]
    draw = random.Random(0)
    state = plan.__getstate__()[0]
    paths = leaves(state)
    refused = ran = 0
    for _ in range(times):
        other = state
        for _ in range(draw.choice([1, 1, 1, 2, 4])):
            try:
                other = replaced(other, draw.choice(paths), draw)
            except (IndexError, TypeError, NotImplementedError):
                continue  # an earlier change took it away, or made it sparse
        try:
            damaged = restored(other)
        except RuntimeError:
            refused += 1
            continue
        try:
            damaged.run(inputs)
            ran += 1
        except RuntimeError as error:
            assert "INTERNAL ASSERT" not in str(error), error
    return refused, ran


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((0, 0, 0), 4, "has the format 4"),
        ((0, 0, 1), 0, "0 inputs"),
        ((0, 2), [99], "returns value 99"),
        ((1, 0), float("nan"), "value 0 is float32, and has a grid"),
        ((1, 1), float("nan"), "value 1 has the scale nan"),
        ((0, 1, 7), 2, "value 1 has the type 2"),
        ((0, 1, 7), 1, "value 1 is float32, and has a grid"),
        ((0, 1, 3), 0, r"x \(input\): it does not have operands and a result of these types"),
        ((2, 2, 0, 0), "conv9d", "no operator is called 'conv9d'"),
        ((2, 2, 1, 0), [5], r"one:conv2d \(convolution\): its operand, value 5, is not computed"),
        ((2, 2, 1, 1), [0], "has been computed already"),
        ((2, 2, 2), [], "0 tensors"),
    ],
)
def test_messages(plan: Any, path: tuple[int, ...], value: Any, message: str) -> None:
    def put(state: Any, path: tuple[int, ...]) -> Any:
        if not path:
            return value
        parts = list(state)
        parts[path[0]] = put(parts[path[0]], path[1:])
        return type(state)(parts)

    with pytest.raises(RuntimeError, match=message):
        restored(put(plan.__getstate__()[0], path))
