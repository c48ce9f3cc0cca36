"""Scores that other processes measure, against those of this one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import jit_passes
from jit_passes.tuning.measuring import measure
from jit_passes.workers import Workers
from tests.command_line.running import Net, Run, run_fixture  # noqa: F401  fixtures
from tests.planted import PLANTED

# Steps that change these options are not tried.
SOME_STEPS = {
    "version": 1,
    "global": {"input": {"calibration": "histogram"}, "output": {"calibration": "histogram"}},
    "stages": {"weight_rounding": "gptq", "bias_correction": "fast"},
}
KILLED = "killed"  # the file that the worker leaves that ends itself


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


def failing(*_: Any) -> None:
    raise ValueError("no memory")


def killed_once(folder: str, choices: Any) -> Any:
    """Measure, but end the process in the midst of the first variant with two layers otherwise."""
    mark = Path(folder) / KILLED
    if len(choices) > 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(folder, choices)


class Through(Executor):
    """Sends another function, first so often as is said, to an executor."""

    def __init__(self, pool: Executor, function: Any, count: int) -> None:
        self.pool, self.function, self.count, self.tasks = pool, function, count, 0
        self.sent: list[Future[Any]] = []

    @property
    def died(self) -> bool:
        """Whether a task has died with its worker."""
        done = [future for future in self.sent if future.done() and not future.cancelled()]
        return any(isinstance(future.exception(), BrokenExecutor) for future in done)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks += 1
        function = self.function if self.tasks <= self.count else fn
        self.sent.append(self.pool.submit(function, *args, **kwargs))
        return self.sent[-1]


@pytest.mark.parametrize("name", ["scaled channel", "attention"])
def test_two_workers_find_the_configuration_of_one(
    pool: Workers, tmp_path: Path, name: str
) -> None:
    """The configuration, the counts and the file of scores are equal, whatever ends first."""
    case = PLANTED[name]
    how = {"target": "reference", "config": case.config, "budget": case.budget}
    files = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one = jit_passes.tune(case.model(), case.data(), resume=files[0], **how)
    two = jit_passes.tune(case.model(), case.data(), resume=files[1], executor=pool, **how)
    assert one.layers  # the search went through all its steps
    assert str(two) == str(one)
    assert two.evaluations == one.evaluations
    assert files[1].read_text() == files[0].read_text()


def test_sensitivity_of_two_workers(pool: Workers) -> None:
    case = PLANTED["scaled channel"]
    one = jit_passes.sensitivity(case.model(), case.data(), target="reference")
    through = Through(pool, None, 0)
    two = jit_passes.sensitivity(case.model(), case.data(), target="reference", executor=through)
    assert two.to_dict() == one.to_dict()
    assert through.tasks == 2 * len(one.rows)


def test_a_killed_worker_is_replaced(pool: Workers, tmp_path: Path) -> None:
    """`tune` runs tasks that died with it again in a new pool, to the same result."""
    case = PLANTED["scaled channel"]
    how: dict[str, Any] = {"target": "reference", "config": case.config, "budget": case.budget}
    files = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one = jit_passes.tune(case.model(), case.data(), resume=files[0], **how)
    dying = Through(pool, killed_once, 10**6)
    found = jit_passes.tune(case.model(), case.data(), resume=files[1], executor=dying, **how)
    assert dying.died
    assert str(found) == str(one)
    assert files[1].read_text() == files[0].read_text()


def test_a_task_that_fails_once_and_twice() -> None:
    case = PLANTED["scaled channel"]
    how: dict[str, Any] = {"target": "reference", "layers": ("head:linear",)}
    one = jit_passes.sensitivity(case.model(), case.data(), **how)
    with ThreadPoolExecutor(1) as threads:
        found = jit_passes.sensitivity(
            case.model(), case.data(), executor=Through(threads, failing, 1), **how
        )
        assert found.to_dict() == one.to_dict()
        with pytest.raises(jit_passes.JitPassesError, match=r"failed twice .*no memory"):
            jit_passes.sensitivity(
                case.model(), case.data(), executor=Through(threads, failing, 9), **how
            )


def test_what_cannot_be_sent(pool: Workers) -> None:
    case = PLANTED["scaled channel"]

    def own(_: torch.jit.ScriptModule) -> float:
        return 1.0

    with pytest.raises(jit_passes.JitPassesError, match="the metric cannot be sent to a worker"):
        jit_passes.sensitivity(case.model(), case.data(), own, target="reference", executor=pool)
    with pytest.raises(jit_passes.JitPassesError, match="an executor is one of"):
        jit_passes.sensitivity(case.model(), case.data(), executor=2)  # type: ignore[arg-type]


def test_an_executor_that_was_shut_down() -> None:
    case = PLANTED["scaled channel"]
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    with pytest.raises(jit_passes.JitPassesError, match="the executor takes no task"):
        jit_passes.sensitivity(case.model(), case.data(), target="reference", executor=threads)


def test_improve_with_two_workers(pool: Workers, tmp_path: Path) -> None:
    """Steps, recipe and file of scores are equal; single layers change too, for the budget."""
    case = PLANTED["scaled channel"]
    data = [x + 0.1 * n for n, x in enumerate(case.data() * 2)]
    how: dict[str, Any] = {"target": "reference", "budget": 40.0, "config": SOME_STEPS}
    how["alternatives"] = ()
    files = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    through = Through(pool, None, 0)
    one = jit_passes.improve(case.model(), data, resume=files[0], **how)
    two = jit_passes.improve(case.model(), data, resume=files[1], executor=through, **how)
    assert through.tasks >= 6
    assert any(step.kept for step in one.steps)
    assert any(step.name.startswith("layers") for step in one.steps)
    assert str(two) == str(one)
    assert files[1].read_text() == files[0].read_text()
    assert all(torch.equal(one.model(x), two.model(x)) for x in data)


def off_by_one(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """An engine of one's own, whose second batch is wrong, and whose last one fails."""
    if float(x.mean()) > 2.5:
        raise ValueError("too bright")
    return {"output": torch.full((4, 5), int(x.mean() > 0.5), dtype=torch.int64)}


def test_conformance_of_two_workers(pool: Workers) -> None:
    """Rows, divergences and engines that stop are those of one process."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    data = [torch.randn(4, 3, 8, 8) + n for n in range(4)]
    how: dict[str, Any] = {"target": "reference", "mode": "static"}
    model = jit_passes.quantize_script(torch.jit.script(net.eval()), data, **how)
    for engines in (["fixed_point", "stock"], ["fixed_point", off_by_one]):
        one = jit_passes.conformance(model, data, engines)
        two = jit_passes.conformance(model, data, engines, executor=pool)
        assert two.as_data() == one.as_data()
        assert str(two) == str(one)
    assert "off_by_one" in one.missing
    with pytest.raises(jit_passes.JitPassesError, match="the engines cannot be sent to a worker"):
        jit_passes.conformance(model, data, [lambda x: {}], executor=pool)


def test_the_command(
    run: Run, pool: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--workers` gives the numbers of one process, also of a metric from a file."""
    asked: list[int] = []

    def workers(count: int) -> contextlib.nullcontext[Through]:
        asked.append(count)
        return contextlib.nullcontext(through)

    through = Through(pool, None, 0)
    monkeypatch.setattr("jit_passes.command_line.pools.Workers", workers)
    torch.manual_seed(0)
    torch.jit.script(Net().eval()).save(str(tmp_path / "model.pt"))
    (tmp_path / "metrics.py").write_text(
        "import torch\nX = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)\n"
        "def mean(model):\n    return float(model(X, 1.0).mean())\n"
    )
    how = ("sensitivity", str(tmp_path / "model.pt"), "--random", "1x3x8x8", "--json",
           "--metric", f"{tmp_path}/metrics.py:mean", "--target", "reference")  # fmt: skip
    one, two = run(*how), run(*how, "--workers", "2")
    assert one.code == two.code == 0, two.err
    assert two.json == one.json
    assert asked == [2] and through.tasks > 0
