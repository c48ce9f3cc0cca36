"""Running plans: threads, many callers, sizes that change, and inputs of all sorts."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets.x86 import X86
from tests.compare import sqnr
from tests.plans import Grid, Weighted, plan_of, plans_in, reference, traced
from tests.x86.kernels.calls import Crowd


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 20, 3, padding=1)
        self.two = nn.Conv2d(20, 20, 3, padding=1, groups=20)
        self.head = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        x = F.max_pool2d(F.relu(self.two(x) + x), 3, 2)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


@pytest.fixture(scope="module")
def region() -> Any:
    torch.manual_seed(0)
    return reference(Net(), [torch.randn(2, 3, 19, 23) for _ in range(3)])


@pytest.fixture(scope="module")
def plan(region: Any) -> Any:
    return plan_of(region)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_any_number_of_threads_gives_the_same_bits(plan: Any, two_threads: None) -> None:
    x = torch.randn(3, 3, 37, 41)
    (two,) = plan.run([x])
    for threads in (1, 3, 4, 7):
        torch.set_num_threads(threads)
        assert torch.equal(plan.run([x])[0], two)


class Deep(nn.Module):
    """Many short steps, some of which add to a value in its own memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        layers = [nn.Conv2d(32, 32, 1 + 2 * (i % 2), padding=i % 2) for i in range(24)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for layer in self.layers:
            x = F.relu(layer(x) + x)
        return x


@pytest.fixture
def busy_processors() -> Iterator[None]:
    """Processes beside that take half of what there is: threads stop in the middle of a step."""
    code = "from time import time; end = time() + 120\nwhile time() < end: pass"
    command = [sys.executable, "-c", code]
    spinning = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    yield
    for process in spinning:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("two_threads", "busy_processors")
def test_threads_that_come_late() -> None:
    """Others have gone on by then: what is done must not be done again, nor be left out."""
    torch.manual_seed(0)
    plan = plan_of(reference(Deep(), [torch.randn(2, 3, 20, 20) for _ in range(2)]))
    inputs = [torch.randn(1 + i, 3, 20, 20) for i in range(3)]
    torch.set_num_threads(1)
    expected = [plan.run([x])[0] for x in inputs]
    steps = len(plan.profile([inputs[0]]))
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        for i in range(100):
            assert torch.equal(plan.run([inputs[i % 3]])[0], expected[i % 3])
        assert len(plan.profile([inputs[0]])) == steps


def test_fewer_threads_on_a_busy_machine() -> None:
    """Late twice in eight calls, one is left out for 10 ms; twice as long if soon late again."""
    crowd = Crowd()
    assert crowd.threads(2, 0) == 2
    for was_late in (True, *[False] * 7) * 2:
        crowd.finished(0, was_late, 0)
        assert crowd.threads(2, 0) == 2
    for was_late in (True, *[False] * 6):
        crowd.finished(0, was_late, 0)
        assert crowd.threads(2, 0) == 2
    crowd.finished(0, True, 0)
    assert [crowd.threads(2, now) for now in (0, 9.9, 10)] == [1, 1, 2]
    crowd.finished(0, True, 10)
    assert [crowd.threads(2, now) for now in (10, 29.9, 30)] == [1, 1, 2]
    crowd.finished(0, False, 30)
    assert crowd.threads(2, 31) == 2
    crowd.finished(0, True, 40)
    assert [crowd.threads(2, now) for now in (40, 79.9, 80)] == [1, 1, 2]
    crowd.finished(0, False, 80)
    crowd.finished(0, True, 200)  # no longer soon
    assert [crowd.threads(2, now) for now in (200, 209.9, 210)] == [1, 1, 2]
    crowd.finished(0, True, 1000)  # no call was in time meanwhile
    assert [crowd.threads(2, now) for now in (1000, 1019.9, 1020)] == [1, 1, 2]


def test_a_thread_that_was_asleep_is_not_left_out() -> None:
    """The first of a few calls finds it so, again and again."""
    crowd = Crowd()
    for now in range(0, 1000, 60):
        crowd.finished(0, True, now + 3, begun=now)
        assert crowd.threads(2, now + 3) == 2
        crowd.finished(0, False, now + 4, begun=now + 3)
    crowd.finished(0, True, 1005, begun=1000)
    crowd.finished(0, True, 1010, begun=1006)
    assert crowd.threads(2, 1010) == 2
    crowd.finished(0, True, 1015, begun=1011)
    assert crowd.threads(2, 1015) == 1


def test_threads_are_left_out_one_by_one() -> None:
    crowd = Crowd()
    crowd.finished(0, True, 0)
    crowd.finished(0, True, 0)
    assert crowd.threads(8, 1) == 7
    crowd.finished(1, True, 1)
    assert [crowd.threads(8, now) for now in (1, 20.9, 21)] == [6, 6, 7]
    crowd.finished(1, False, 21)
    assert crowd.threads(8, 21) == 8
    for now in range(100, 100 + 640 * 20, 640):
        crowd.finished(7, True, now)
    assert [crowd.threads(8, now + wait) for wait in (0, 639, 640)] == [1, 1, 1]
    assert crowd.threads(1, 0) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_threads_may_go_where_they_might_before(plan: Any, two_threads: None) -> None:
    """Within a call one may be sent to another processor, most often behind a pause."""

    def allowed() -> dict[str, set[int]]:
        return {task: os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}

    x = torch.randn(8, 3, 101, 103)
    expected, before = plan.run([x])[0], allowed()
    for _ in range(20):
        time.sleep(0.05)
        assert torch.equal(plan.run([x])[0], expected)
    after = allowed()
    assert all(after[task] == processors for task, processors in before.items() if task in after)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_caller_that_is_kept_on_one_processor(plan: Any, two_threads: None) -> None:
    before = os.sched_getaffinity(0)
    x = torch.randn(8, 3, 101, 103)
    expected = plan.run([x])[0]
    try:
        os.sched_setaffinity(0, {min(before)})
        for _ in range(5):
            time.sleep(0.02)
            assert torch.equal(plan.run([x])[0], expected)
            assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_many_callers_and_sizes(plan: Any, two_threads: None) -> None:
    """More sizes than the plan keeps prepared, in turn and at once."""
    torch.manual_seed(0)
    inputs = [torch.randn(1 + i % 3, 3, 8 + i, 30 - i) for i in range(20)]
    expected = [plan.run([x])[0] for x in inputs]

    def call(i: int) -> bool:
        return torch.equal(plan.run([inputs[i]])[0], expected[i])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, [i * 7 % 20 for i in range(600)]))


def test_a_forked_process_has_its_own_threads(plan: Any, two_threads: None) -> None:
    """OpenMP's threads do not come along."""
    x = torch.randn(2, 3, 19, 23)
    (expected,) = plan.run([x])
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that waits for threads would wait for good
        os._exit(0 if torch.equal(plan.run([x])[0], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(plan.run([x])[0], expected)


def test_a_fork_before_the_first_call(plan: Any, two_threads: None) -> None:
    """Threads that torch has begun do not come along either."""
    torch.randn(1000, 1000).matmul(torch.randn(1000, 1000)).sin()
    x = torch.randn(2, 3, 19, 23)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if plan.run([x])[0].isfinite().all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_negated_view(plan: Any) -> None:
    x = torch.randn(2, 3, 19, 23, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert torch.equal(plan.run([x])[0], plan.run([x.clone().resolve_neg()])[0])


def test_results_are_not_overwritten(plan: Any) -> None:
    x = torch.randn(2, 3, 19, 23)
    (first,) = plan.run([x])
    kept = first.clone()
    plan.run([x + 1])
    assert torch.equal(first, kept)


def test_layouts_and_dtypes(plan: Any, region: Any) -> None:
    x = torch.randn(4, 3, 19, 23)
    (expected,) = plan.run([x])
    same = [
        x.to(memory_format=torch.channels_last),
        x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        torch.stack([x, x], -1)[..., 0],
        torch.cat([x, x])[4:],
        x.double(),
    ]
    for other in same:
        assert torch.equal(plan.run([other])[0], expected)
    one = x[:1].expand(4, -1, -1, -1)
    assert torch.equal(plan.run([one])[0], plan.run([one.clone()])[0])
    with torch.no_grad():
        assert torch.equal(plan.run([x.half()])[0], plan.run([x.half().float()])[0])


def test_modes(plan: Any) -> None:
    """Like quantized operators, a plan has no gradient."""
    x = torch.randn(2, 3, 19, 23)
    (expected,) = plan.run([x])
    (result,) = plan.run([x.clone().requires_grad_()])
    assert not result.requires_grad and torch.equal(result, expected)
    with torch.inference_mode():
        assert torch.equal(plan.run([x])[0], expected)
    with torch.autocast("cpu"):
        assert torch.equal(plan.run([x])[0], expected)


def test_empty_batches(plan: Any) -> None:
    (result,) = plan.run([torch.zeros(0, 3, 19, 23)])
    assert result.shape == (0, 5)


class Attention(nn.Module):
    """Heads over a cache and new tokens, and attention over another memory."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor, cache: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = [x.shape[0], x.shape[1], 4, 8]
        q = self.q(x).view(heads).transpose(1, 2)
        keys = torch.cat([cache, self.k(x).view(heads).transpose(1, 2)], 2)
        far = F.scaled_dot_product_attention(self.q(x), self.k(memory), memory)
        return (q @ keys.transpose(2, 3)).softmax(-1), keys, far


@pytest.mark.parametrize("mode", ["dynamic", "weight_only", "auto"])
def test_empty_axes_of_products(mode: str) -> None:
    """No new tokens, no cached ones, no memory: results are empty, or 0 as sums of nothing."""
    torch.manual_seed(0)
    model = torch.jit.script(Attention().eval())
    made = jit_passes.quantize_script(model, mode=mode, target="x86")
    for batch, tokens, cached, remembered in itertools.product((0, 2), (0, 1, 3), (0, 3), (0, 5)):
        arguments = (
            torch.randn(batch, tokens, 32), torch.randn(batch, 4, cached, 8),
            torch.randn(batch, remembered, 32),
        )  # fmt: skip
        with torch.no_grad():
            for wanted, found in zip(model(*arguments), made(*arguments), strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=0.05)


def test_infinite_inputs_are_clipped(plan: Any) -> None:
    x = torch.randn(1, 3, 19, 23)
    ends = x.clone()
    ends[0, 0, 0, 0], ends[0, 0, 0, 1] = float("inf"), float("-inf")
    large = x.clone()
    large[0, 0, 0, 0], large[0, 0, 0, 1] = 1e30, -1e30
    assert torch.equal(plan.run([ends])[0], plan.run([large])[0])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "the plan takes 1 tensors, got 0"),
        ([torch.zeros(1, 3, 9, 9)] * 2, "the plan takes 1 tensors, got 2"),
        ([torch.zeros(1, 4, 9, 9)], "one:conv2d (convolution) takes 3 channels"),
        ([torch.zeros(3, 9)], "one:conv2d (convolution) takes 3 or 4 axes"),
        ([torch.zeros(1, 3, 9, 9, 1, 1)], "takes 5 axes at most, and got the shape 1 3 9 9 1 1"),
        ([torch.zeros(1, 3, 9, 9, 1, 1, 1)], "x (input) takes 6 axes at most"),
        ([torch.zeros(1, 3, 2, 9)], "has a window larger than its padded input"),
        ([torch.zeros(1, 3, 0, 9)], "takes no empty axes"),
        ([torch.zeros(1, 3, 9, 9, dtype=torch.int64)], "call x.float()"),
        ([torch.zeros(1, 3, 9, 9, device="meta")], "call x.cpu()"),
        ([torch.zeros(1, 3, 9, 9).to_sparse()], "call x.cpu() or x.to_dense()"),
        ([torch.zeros(1, 3, 9, 9, dtype=torch.complex64)], "call x.float()"),
    ],
)
def test_bad_inputs(plan: Any, inputs: list[Tensor], message: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(message)):
        plan.run(inputs)


class Between(nn.Module):
    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.x, self.operator, self.y = Grid(0.1, 100), operator, Grid(0.1, 90)

    def forward(self, x: Tensor) -> Tensor:
        return self.y(self.operator(self.x(x)))


class Float(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cummax(x, 1)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Between(Float()), "aten::cummax .*cannot be part of a plan: a plan"),
        (
            lambda: Between(nn.Conv2d(3, 4, 3)),
            "aten::conv2d.*part of a plan: no dequantize makes its weight",
        ),
        (
            lambda: nn.Sequential(Grid(0.1, 100), Weighted(nn.ConvTranspose2d(3, 4, 3))),
            "its result is read in float",
        ),
        (lambda: nn.Sequential(Grid(0.1, 100, torch.int16)), "its codes are not of 8 bits"),
        (nn.Identity, "a region returns the result of"),
    ],
)
def test_refusals_name_the_operator(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        plan_of(traced(make(), torch.randn(1, 3, 8, 8)))


class TwoEnds(nn.Module):
    """Two inputs and two results. With powers of two as scales, ties are exact in float32 too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Grid(1 / 16, 100), Grid(1 / 32, -7, torch.int8)
        self.sum, self.product = Grid(1 / 16, 120), Grid(1 / 64, 9)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.a(a), self.b(b)
        total = self.sum(a + b)
        return total, self.product(total * b)


def test_several_inputs_and_results() -> None:
    a, b = torch.randn(3, 4), torch.randn(4)
    region = traced(TwoEnds(), a, b)
    got, expected = plan_of(region).run([a, b]), region(a, b)
    assert all(torch.equal(g, e) for g, e in zip(got, expected, strict=True))


class Lines(nn.Module):
    """Rows of an image are averaged, columns stay, as nets that read lines of text have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 5)
        self.rows = nn.AdaptiveAvgPool2d((1, None))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(torch.relu(self.conv(x))).squeeze(2).permute(0, 2, 1))


def test_pools_that_leave_an_axis() -> None:
    """One plan for lines of any length, which a trace does not fix."""
    torch.manual_seed(0)
    model = Lines().eval()
    batches = [torch.randn(2, 1, 8, 24) for _ in range(4)]
    traced_model = torch.jit.trace(model, batches[0])
    lowered = jit_passes.quantize_script(
        traced_model, batches, mode="static", target=X86(), progress=False
    )
    assert len(plans_in(lowered)) == 1 and not jit_passes.coverage(lowered).float
    for width in (24, 7, 1, 60):
        x = torch.randn(3, 1, 8, width)
        with torch.no_grad():
            assert sqnr(lowered(x), model(x)) > 25
