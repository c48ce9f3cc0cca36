"""Handles, blocks and threads of schedules."""

from __future__ import annotations

import contextvars
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import (
    GraphEditor,
    JitPassesError,
    Pipeline,
    RewriteRule,
    Stage,
    schedule,
    scheduled,
    scheduled_passes,
)
from tests.passes.scheduling import EMPTY, F, X, fresh, is_restored, relu_to_gelu, swap
from tests.passes.scheduling import nothing_is_left as nothing_is_left

# Handles.


def test_schedule_for_the_process() -> None:
    """From any thread, until it is removed."""
    found: list[Tensor] = []
    handle = schedule(relu_to_gelu)
    try:
        thread = threading.Thread(target=lambda: found.append(torch.jit.script(fresh())(X)))
        thread.start()
        thread.join()
        assert not is_restored()
    finally:
        handle.remove()
    assert torch.equal(found[0], F.gelu(X))
    assert torch.equal(torch.jit.script(fresh())(X), torch.relu(X))


def test_enable_and_disable() -> None:
    """PyTorch's functions are replaced only while a pass is on."""
    with scheduled(relu_to_gelu) as handle:
        for _ in range(2):
            handle.disable()
            assert not handle.enabled and is_restored()
            assert torch.equal(torch.jit.script(fresh())(X), torch.relu(X))
            handle.enable()
            handle.enable()
            assert handle.enabled and not is_restored()
            assert torch.equal(torch.jit.script(fresh())(X), F.gelu(X))
        assert handle.runs == handle.changed == 2


def test_order() -> None:
    """Lower first; ties as they were scheduled; settable."""
    with (
        scheduled(swap("relu", "exp"), order=1) as first,
        scheduled(swap("relu", "cos"), order=1) as second,
        scheduled(swap("exp", "sin"), order=0) as third,
    ):
        assert [handle.order for handle in scheduled_passes()] == [0, 1, 1]
        assert torch.equal(torch.jit.script(fresh())(X), torch.exp(X))
        third.order = 2
        assert scheduled_passes() == (first, second, third)
        assert torch.equal(torch.jit.script(fresh())(X), torch.sin(X))
        second.order = -1
        assert torch.equal(torch.jit.script(fresh())(X), torch.cos(X))


def test_removed_handle() -> None:
    """A removed handle keeps its counts, and nothing else."""
    handle = schedule(relu_to_gelu)
    torch.jit.script(fresh())
    handle.remove()
    assert (handle.runs, handle.changed, handle.enabled) == (1, 1, False)
    assert repr(handle).endswith("order 0, removed, runs 1, changed 1>")

    def set_order() -> None:
        handle.order = 1

    for use in (handle.remove, handle.enable, handle.disable, set_order):
        with pytest.raises(JitPassesError, match=r"'relu_to_gelu' was removed.*schedule it"):
            use()
    with scheduled(relu_to_gelu) as handle:
        handle.remove()
        assert is_restored()
    with pytest.raises(JitPassesError, match="was removed"):
        handle.enable()


def test_table() -> None:
    """A header and a line for each, in order."""
    assert str(scheduled_passes()).split() == ["stage", "order", "pass", "state", "runs", "changed"]
    with (
        scheduled(relu_to_gelu, stage=Stage.AFTER_FUSION),
        scheduled("remove_dropout", order=5) as handle,
    ):
        torch.jit.script(fresh())
        handle.disable()
        lines = [re.split(r"\s{2,}", line) for line in str(scheduled_passes()).splitlines()]
        assert lines[1:] == [
            ["before autograd", "5", "remove_dropout", "off", "1", "0"],
            ["after fusion", "0", "relu_to_gelu", "on", "0", "0"],
        ]
        assert repr(handle) == (
            "<ScheduledPass 'remove_dropout' before autograd, order 5, off, runs 1, changed 0>"
        )


def test_kinds_of_passes() -> None:
    """Names, pipelines, rules and functions, with options."""

    def pattern(x: Tensor) -> Tensor:
        return torch.relu(x)

    def replacement(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def repeat(graph: GraphEditor, kind: str) -> None:
        node = next(node for node in graph.nodes if node.kind == "aten::sigmoid")
        after = graph.insert(kind, [node.inputs[0]], before=node)
        graph.set_input(node, 0, after.output)

    model = nn.Sequential(nn.ReLU6(), nn.ReLU())
    with (
        scheduled("canonicalize_synonyms") as by_name,
        scheduled(Pipeline("clean", ("remove_dead_code", "pool_constants"))) as pipeline,
        scheduled(RewriteRule("to_sigmoid", pattern, replacement)) as rule,
        scheduled(repeat, options={"kind": "aten::exp"}) as function,
    ):
        scripted = torch.jit.script(model)
    assert [h.name for h in (by_name, pipeline, rule, function)] == [
        "canonicalize_synonyms",
        "clean",
        "to_sigmoid",
        "repeat",
    ]
    assert all(handle.runs == 1 for handle in (by_name, pipeline, rule, function))
    assert torch.equal(scripted(X), torch.sigmoid(torch.exp(X.clamp(0, 6))))
    assert "aten::clamp" in str(scripted.graph) and "aten::hardtanh" not in str(scripted.graph)


def test_names_of_functions() -> None:
    """Two of one name are two passes; a lambda has one too; the registry knows none of them."""
    with (
        scheduled(swap("relu", "exp")) as one,
        scheduled(swap("exp", "cos")) as two,
        scheduled(lambda graph: None) as three,
    ):
        assert [h.name for h in (one, two, three)] == [
            "swap_operator",
            "swap_operator",
            "lambda",
        ]
        assert not {"swap_operator", "lambda"} & set(jit_passes.passes)
        assert torch.equal(torch.jit.script(fresh())(X), torch.cos(X))


def test_rules_compile_their_patterns_in_peace() -> None:
    """A scheduled pass does not touch the pattern of a rule that is compiled meanwhile."""

    def pattern(x: Tensor) -> Tensor:
        return torch.relu(x)

    def replacement(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    module = torch.jit.script(nn.ReLU())
    with scheduled(relu_to_gelu) as handle:
        rule = RewriteRule("to_sigmoid", pattern, replacement)
        assert torch.equal(rule.apply(module).module(X), torch.sigmoid(X))
    assert handle.runs == 0


@pytest.mark.parametrize(
    ("pass_", "options", "message"),
    [
        ("nonsense", {}, "'nonsense', which is not registered"),
        (Pipeline("mine", ("nonsense",)), {}, "'mine' names the pass 'nonsense'"),
        (RewriteRule("bad", "nonsense", "nonsense"), {}, "rule 'bad'"),
        (
            RewriteRule("rule", EMPTY, EMPTY),
            {"a": 1},
            "rule set 'rule' of pipeline 'rule' has no option 'a'",
        ),
        (3, {}, "a function that takes a GraphEditor, not 3"),
    ],
)
def test_bad_passes(pass_: object, options: dict[str, int], message: str) -> None:
    """Refused when they are scheduled, with nothing left behind."""
    with pytest.raises(JitPassesError, match=message):
        schedule(pass_, options=options)  # type: ignore[arg-type]
    with pytest.raises(JitPassesError, match=r"Stage\.AFTER_FUSION, not 'late'"):
        schedule("remove_dropout", stage="late")  # type: ignore[arg-type]


# Blocks and threads.


def test_nested_blocks() -> None:
    """Each ends what it began, the same pass twice as well, exceptions included."""

    def compiled() -> Tensor:
        result: Tensor = torch.jit.script(fresh())(X)
        return result

    outer, inner = swap("relu", "exp"), swap("exp", "cos")
    for _ in range(2):
        with scheduled(outer):
            assert torch.equal(compiled(), torch.exp(X))
            with pytest.raises(ZeroDivisionError), scheduled(inner):
                assert torch.equal(compiled(), torch.cos(X))
                with scheduled(inner) as again:
                    compiled()
                    assert again.runs == 1 and again.changed == 0
                assert len(scheduled_passes()) == 2
                raise ZeroDivisionError
            assert torch.equal(compiled(), torch.exp(X))
        assert torch.equal(compiled(), torch.relu(X))
        assert is_restored()


def test_blocks_that_end_in_another_order() -> None:
    """The pass ends with its block, whatever else is open."""
    one, two = ExitStack(), ExitStack()
    one.enter_context(scheduled(swap("relu", "exp")))
    two.enter_context(scheduled(swap("relu", "cos")))
    assert torch.equal(torch.jit.script(fresh())(X), torch.exp(X))
    one.close()
    assert torch.equal(torch.jit.script(fresh())(X), torch.cos(X))
    two.close()
    assert torch.equal(torch.jit.script(fresh())(X), torch.relu(X))


def test_copied_contexts() -> None:
    """A task that was begun inside has the pass, until the block ends."""
    with scheduled(relu_to_gelu):
        context = contextvars.copy_context()
        assert torch.equal(context.run(lambda: torch.jit.script(fresh())(X)), F.gelu(X))
    assert torch.equal(context.run(lambda: torch.jit.script(fresh())(X)), torch.relu(X))


@pytest.mark.parametrize("stage", list(Stage))
def test_threads_see_their_own(stage: Stage) -> None:
    """Two threads compile and run at the same time, each with its own pass."""
    barrier = threading.Barrier(2)
    problems: list[str] = []

    def work(name: str, function: Callable[[Tensor], Tensor]) -> None:
        try:
            with scheduled(swap("relu", name), stage=stage) as handle:
                barrier.wait(timeout=60)
                assert scheduled_passes() == (handle,)
                for _ in range(20):
                    compiled = torch.jit.script(fresh())
                    for _ in range(3):
                        found = compiled(X)
                    assert torch.equal(found, function(X)), name
                assert handle.runs == handle.changed == 20
                barrier.wait(timeout=60)
        except Exception as error:
            problems.append(repr(error))

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in (("exp", torch.exp), ("cos", torch.cos))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_scheduling_while_others_compile() -> None:
    """Each compilation has the pass or has it not, and PyTorch is restored at the end."""
    problems: list[str] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                found = torch.jit.script(fresh())(X)
                assert torch.equal(found, torch.relu(X)) or torch.equal(found, F.gelu(X))
        except Exception as error:
            problems.append(repr(error))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(100):
        handle = schedule(relu_to_gelu)
        handle.disable()
        handle.enable()
        assert torch.equal(torch.jit.script(fresh())(X), F.gelu(X))
        handle.remove()
    stop.set()
    thread.join()
    assert problems == []
