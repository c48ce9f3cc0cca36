"""Passes written in Python: the editor's operations, and what happens where they are misused."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import (
    _C,
    GraphEditor,
    GraphView,
    JitPassesError,
    NodeView,
    PassError,
    Pipeline,
    register_pass,
    run_pass,
)

NAME = "test_editor_pass"
Body = Callable[[GraphEditor], Any]


class Net(nn.Module):
    """Layers, a branch and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.linear(x))
        z = torch.neg(y)
        if flag:
            z = torch.sin(z) + y
        for _ in range(3):
            y = torch.cos(y)
        return y * z, torch.exp(z)


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    """No test leaves a pass."""
    yield
    if NAME in jit_passes.passes:
        jit_passes.passes.remove(NAME)


@pytest.fixture
def module() -> torch.jit.ScriptModule:
    """A scripted model."""
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


def run(module: torch.jit.ScriptModule, body: Body, **more: Any) -> torch.jit.ScriptModule:
    """Run a function as a pass."""
    register_pass(NAME, summary="A test.", replace=True)(body)
    return run_pass(NAME, module, **more)


def find(graph: GraphEditor | GraphView, kind: str) -> NodeView:
    """The first node of a kind."""
    return next(node for node in graph.nodes if node.kind == kind)


def described(nodes: list[NodeView], outputs: Any) -> Any:
    """The contents of a view, by the numbers of values."""
    rows = {
        tuple(v.id for v in node.outputs) or ("", node.kind, tuple(v.id for v in node.inputs)): (
            node.kind,
            [v.id for v in node.inputs],
            node.module,
            node.source,
        )
        for node in nodes
    }
    uses = {
        value.id: (sorted((user.kind, operand) for user, operand in value.uses), value.is_result)
        for node in nodes
        for value in node.outputs
    }
    return rows, uses, [value.id for value in outputs]


def check_view(graph: GraphEditor) -> None:
    """The editor's view says what a fresh one of the same graph says."""
    nodes, _, _, outputs = jit_passes.graph.view.read_snapshot(graph._editor.fresh())
    known = {n for node in graph.nodes for n in (v.id for v in node.outputs)}
    found, expected = described(graph.nodes, graph.outputs), described(nodes, outputs)
    # Modules on the path of an attribute that was inserted are not shown.
    shown = {
        key: row for key, row in expected[0].items() if set(key) <= known or not key or key[0] == ""
    }
    assert found[0] == shown
    assert found[1] == {key: value for key, value in expected[1].items() if key in known}
    assert found[2] == expected[2]


def test_view_follows_every_edit(module: torch.jit.ScriptModule) -> None:
    """After each operation it is that of a fresh snapshot."""

    def body(graph: GraphEditor) -> None:
        check_view(graph)
        neg = find(graph, "aten::neg")
        gelu = graph.insert("aten::gelu", [neg.inputs[0], "tanh"], before=neg)
        check_view(graph)
        graph.replace(neg.output, gelu.output)
        check_view(graph)
        graph.remove(neg)
        check_view(graph)
        exp = find(graph, "aten::exp")
        graph.set_input(exp, 0, gelu.output)
        check_view(graph)
        weight = graph.attribute("linear.weight", before=exp)
        check_view(graph)
        pair = graph.insert("prim::ListConstruct", [weight, weight], before=exp)
        cat = graph.insert("aten::cat", [pair.output, 0], before=exp, like=gelu)
        check_view(graph)
        path = graph.add_tensor("scale", torch.full((1,), 2.0), like=exp)
        scale = graph.attribute(path, before=exp)
        scaled = graph.insert("aten::mul", [gelu.output, scale], before=exp)
        graph.set_input(exp, 0, scaled.output)
        check_view(graph)
        result = find(graph, "prim::TupleConstruct")
        swapped = graph.insert("prim::TupleConstruct", result.inputs[::-1], before=result)
        graph.replace(result.output, swapped.output)
        check_view(graph)
        graph.remove(result)
        check_view(graph)
        graph.remove(cat)
        graph.remove(pair)
        check_view(graph)

    result = run(module, body)
    exp, product = result(X, False)
    y = torch.relu(module.linear(X))
    z = nn.functional.gelu(y, approximate="tanh")
    assert torch.equal(exp, torch.exp(z * 2)) and torch.equal(product, y.cos().cos().cos() * z)


def test_type_variables(module: torch.jit.ScriptModule) -> None:
    """An element popped from a list of tensors is a tensor."""

    def body(graph: GraphEditor) -> None:
        exp = find(graph, "aten::exp")
        twice = graph.insert("prim::ListConstruct", [exp.inputs[0]] * 2, before=exp).output
        element = graph.insert("aten::pop", [twice, -1], before=exp).output
        assert element.is_tensor and not twice.is_tensor
        graph.set_input(exp, 0, element)

    assert torch.equal(run(module, body)(X, False)[0], module(X, False)[0])


def test_removing_a_branch(module: torch.jit.ScriptModule) -> None:
    """With all that is in it; handles of what was in it are stale."""

    def body(graph: GraphEditor) -> None:
        branch = find(graph, "prim::If")
        inner = find(graph, "aten::sin")
        neg = find(graph, "aten::neg")
        graph.replace(branch.output, neg.output)
        check_view(graph)
        graph.remove(branch)
        assert inner not in graph.nodes
        check_view(graph)
        with pytest.raises(JitPassesError, match="not in the graph any more"):
            graph.remove(inner)
        with pytest.raises(JitPassesError, match="not in the graph any more"):
            graph.set_input(neg, 0, inner.output)
        loop = find(graph, "prim::Loop")
        graph.replace(loop.output, neg.inputs[0])
        graph.remove(loop)
        check_view(graph)

    result = run(module, body)
    y = torch.relu(module.linear(X))
    assert torch.equal(result(X, True)[0], -y * y)


def test_editing_in_a_branch(module: torch.jit.ScriptModule) -> None:
    """Nodes of nested blocks, and what blocks return."""

    def body(graph: GraphEditor) -> None:
        sin = find(graph, "aten::sin")
        add = next(u for u, _ in sin.output.uses)
        tan = graph.insert("aten::tan", [sin.output], before=add)
        graph.replace(add.output, tan.output)
        check_view(graph)
        graph.remove(add)
        check_view(graph)
        cos = find(graph, "aten::cos")
        graph.replace(cos.output, cos.inputs[0])
        check_view(graph)
        graph.remove(cos)
        check_view(graph)

    result = run(module, body)
    y = torch.relu(module.linear(X))
    assert torch.equal(result(X, True)[0], y * torch.tan(torch.sin(-y)))


def test_replacing_a_value_by_itself(module: torch.jit.ScriptModule) -> None:
    """Is nothing."""

    def body(graph: GraphEditor) -> None:
        neg = find(graph, "aten::neg")
        graph.replace(neg.output, neg.output)
        check_view(graph)

    assert torch.equal(run(module, body)(X, True)[0], module(X, True)[0])


def test_a_stale_value(module: torch.jit.ScriptModule) -> None:
    """Of a node that was removed: each operation says so."""

    def body(graph: GraphEditor) -> None:
        neg, exp = find(graph, "aten::neg"), find(graph, "aten::exp")
        graph.replace(neg.output, neg.inputs[0])
        graph.remove(neg)
        stale = pytest.raises(JitPassesError, match="not in the graph any more")
        with stale:
            graph.remove(neg)
        with stale:
            graph.insert("aten::relu", [exp.inputs[0]], before=neg)
        with stale:
            graph.insert("aten::relu", [exp.inputs[0]], before=exp, like=neg)
        with stale:
            graph.insert("prim::ListConstruct", [exp.inputs[0]], before=exp, like=neg)
        with stale:
            graph.insert("aten::relu", [neg.output], before=exp)
        with stale:
            graph.set_input(neg, 0, exp.output)
        with stale:
            graph.set_input(exp, 0, neg.output)
        with stale:
            graph.replace(neg.output, exp.output)
        with stale:
            graph.replace(exp.output, neg.output)
        with stale:
            graph.constant(1, before=neg)
        with stale:
            graph.attribute("linear.weight", before=neg)
        with stale:
            graph.add_tensor("w", torch.ones(1), like=neg)
        check_view(graph)

    run(module, body)


def test_the_editor_is_closed_when_the_pass_is_over(module: torch.jit.ScriptModule) -> None:
    """A handle that was kept raises errors, also when the graph is gone."""
    kept: list[GraphEditor] = []
    run(module, kept.append)
    (graph,) = kept
    jit_passes.passes.remove(NAME)
    del module
    gc.collect()
    relu = find(graph, "aten::relu")
    over = pytest.raises(JitPassesError, match="the pass is over")
    with over:
        graph.insert("aten::relu", [relu.output], before=relu)
    with over:
        graph.constant(1, before=relu)
    with over:
        graph.attribute("linear.weight", before=relu)
    with over:
        graph.add_tensor("w", torch.ones(1), like=relu)
    with over:
        graph.set_input(relu, 0, relu.output)
    with over:
        graph.replace(relu.output, relu.inputs[0])
    with over:
        graph.remove(relu)
    with pytest.raises(RuntimeError, match="the pass is over"):
        _ = graph._editor.has_module
    with pytest.raises(RuntimeError, match="the pass is over"):
        graph._editor.fresh()


WRONG: dict[str, tuple[Callable[[GraphEditor, NodeView], Any], str]] = {
    "unknown": (
        lambda g, n: g.insert("aten::reluu", [n.output], before=n),
        "no operator aten::reluu",
    ),
    "operands": (
        lambda g, n: g.insert("aten::relu", [n.inputs[0], 1], before=n),
        r"aten::relu does not take \(Tensor, int\); it is\s+aten::relu\(Tensor self\)",
    ),
    "types": (lambda g, n: g.insert("aten::relu", ["text"], before=n), r"does not take \(str\)"),
    "no_namespace": (lambda g, n: g.insert("relu", [n.inputs[0]], before=n), "relu"),
    "empty_kind": (lambda g, n: g.insert("", [n.inputs[0]], before=n), "."),
    "branch": (
        lambda g, n: g.insert("prim::If", [n.inputs[0]], before=n),
        "prim::If cannot be inserted",
    ),
    "constant": (lambda g, n: g.insert("prim::Constant", [], before=n), "cannot be inserted"),
    "empty_list": (
        lambda g, n: g.insert("prim::ListConstruct", [], before=n),
        "a list needs an element",
    ),
    "mixed_list": (
        lambda g, n: g.insert("prim::ListConstruct", [n.inputs[0], 1], before=n),
        "elements of one type, not Tensor and int",
    ),
    "object": (lambda g, n: g.constant(object(), before=n), "None, a bool, number, string"),
    "dict": (lambda g, n: g.constant({}, before=n), "None, a bool, number, string"),
    "huge": (lambda g, n: g.constant(2**70, before=n), "."),
    "attribute": (lambda g, n: g.attribute("linear.wait", before=n), "no attribute 'linear.wait'"),
    "attribute_below": (
        lambda g, n: g.attribute("linear.weight.data", before=n),
        "no attribute 'linear.weight.data'",
    ),
    "no_attribute": (lambda g, n: g.attribute("", before=n), "no attribute ''"),
    "dots": (lambda g, n: g.attribute("..", before=n), "no attribute"),
    "name": (lambda g, n: g.add_tensor("a.b", torch.ones(1), like=n), "has no dots"),
    "empty_name": (lambda g, n: g.add_tensor("", torch.ones(1), like=n), "has no dots"),
    "not_a_tensor": (lambda g, n: g.add_tensor("w", 3, like=n), "."),  # type: ignore[arg-type]
    "used": (lambda g, n: g.remove(n), "cannot be removed: .* uses its result"),
    "operand": (lambda g, n: g.set_input(n, 1, n.inputs[0]), "has 1 operands, and none at 1"),
    "negative": (lambda g, n: g.set_input(n, -1, n.inputs[0]), "none at -1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(module: torch.jit.ScriptModule, name: str) -> None:
    """An error, and the graph is what it was: the pass may go on."""
    action, message = WRONG[name]

    def body(graph: GraphEditor) -> None:
        with pytest.raises(JitPassesError, match=message) as caught:
            action(graph, find(graph, "aten::neg"))
        assert "INTERNAL ASSERT" not in str(caught.value)
        assert "Exception raised from" not in str(caught.value)
        check_view(graph)
        graph.changed = True  # so that the graph is linted

    result = run(module, body)
    assert torch.equal(result(X, True)[0], module(X, True)[0])


def test_a_value_that_is_computed_later(module: torch.jit.ScriptModule) -> None:
    """Found when the pass returns; the module is as it was."""
    before = str(module.graph)

    def body(graph: GraphEditor) -> None:
        graph.set_input(find(graph, "aten::relu"), 0, find(graph, "aten::exp").output)

    with pytest.raises(PassError, match="is not defined before"):
        run(module, body, inplace=True)
    assert str(module.graph) == before


@pytest.mark.parametrize("error", [ValueError("oh no"), RuntimeError("oh no"), KeyError("oh no")])
def test_exceptions(module: torch.jit.ScriptModule, error: Exception) -> None:
    """Become a PassError that names the pass; the module is as it was."""
    before, state = str(module.graph), list(module.state_dict())

    def body(graph: GraphEditor) -> None:
        neg = find(graph, "aten::neg")
        graph.replace(neg.output, neg.inputs[0])
        graph.remove(neg)
        graph.add_tensor("w", torch.ones(1), like=find(graph, "aten::relu"))
        raise error

    with pytest.raises(PassError, match="oh no") as caught:
        run(module, body, inplace=True)
    assert caught.value.name == NAME and f"'{NAME}'" in str(caught.value)
    assert str(module.graph) == before and list(module.state_dict()) == state


@pytest.mark.parametrize("value", [1, "yes", [], 0.0, torch.ones(1)], ids=repr)
def test_wrong_return_values(module: torch.jit.ScriptModule, value: Any) -> None:
    """A pass returns True, False or None."""
    with pytest.raises(PassError, match="True, False or None"):
        run(module, lambda graph: value)


def test_return_values(module: torch.jit.ScriptModule) -> None:
    """None stands for what the editor knows."""
    for body, changed in [
        (lambda graph: None, False),
        (lambda graph: False, False),
        (lambda graph: True, True),
        (lambda graph: graph.constant(1, before=graph.nodes[0]) and None, True),
    ]:
        register_pass(NAME, summary="A test.", replace=True)(body)
        assert Pipeline("mine", (NAME,)).run(module).records[0].changed == changed


def test_options(module: torch.jit.ScriptModule) -> None:
    """Are keyword arguments."""
    seen: dict[str, Any] = {}

    @register_pass(NAME, summary="A test.")
    def body(graph: GraphEditor, *, count: int, names: list[str], ratio: float = 0.5) -> None:
        seen.update(count=count, names=names, ratio=ratio)

    run_pass(NAME, module, options={"count": 3, "names": ["a", "b"]})
    assert seen == {"count": 3, "names": ["a", "b"], "ratio": 0.5}
    with pytest.raises(JitPassesError, match="needs the option 'count'"):
        run_pass(NAME, module)
    with pytest.raises(JitPassesError, match="has no option 'wrong'"):
        run_pass(NAME, module, options={"count": 1, "names": [], "wrong": 1})


def test_registering(module: torch.jit.ScriptModule) -> None:
    """A name once, unless it is to be replaced; names and summaries are not empty."""
    register_pass(NAME, summary="First.")(lambda graph: None)
    with pytest.raises(JitPassesError, match="already; replace=True"):
        register_pass(NAME, summary="Second.")(lambda graph: None)
    assert jit_passes.passes[NAME].summary == "First."
    register_pass(NAME, summary="Third.", replace=True)(lambda graph: None)
    assert jit_passes.passes[NAME].summary == "Third."
    with pytest.raises(JitPassesError, match="name"):
        register_pass("", summary="A test.")(lambda graph: None)
    with pytest.raises(JitPassesError, match="summary"):
        register_pass("test_other", summary="")(lambda graph: None)
    jit_passes.passes.remove(NAME)
    with pytest.raises(KeyError):
        jit_passes.passes.remove(NAME)
    with pytest.raises(JitPassesError, match="not registered"):
        run_pass(NAME, module)


def test_replacing_by_what_is_not_valid() -> None:
    """Leaves the pass that was there."""
    register_pass(NAME, summary="First.")(lambda graph: None)
    with pytest.raises(JitPassesError, match="summary"):
        register_pass(NAME, summary="", replace=True)(lambda graph: None)
    assert jit_passes.passes[NAME].summary == "First."


def test_bare_graphs() -> None:
    """A graph without a module has no attributes."""

    def function(x: Tensor) -> Tensor:
        return torch.relu(x)

    graph = torch.jit.script(function).graph.copy()

    @register_pass(NAME, summary="A test.")
    def body(editor: GraphEditor) -> None:
        assert len(editor.inputs) == 1
        relu = find(editor, "aten::relu")
        with pytest.raises(JitPassesError, match="no module to read 'w' from"):
            editor.attribute("w", before=relu)
        with pytest.raises(JitPassesError, match="a graph alone"):
            editor.add_tensor("w", torch.ones(1), like=relu)
        gelu = editor.insert("aten::gelu", [relu.inputs[0], "none"], before=relu)
        editor.replace(relu.output, gelu.output)
        editor.remove(relu)

    assert _C.run_pass(NAME, graph, "", {})[1]
    assert "aten::gelu" in str(graph) and "aten::relu" not in str(graph)


def test_a_pass_that_runs_a_pass(module: torch.jit.ScriptModule) -> None:
    """On another module."""
    register_pass("test_inner", summary="A test.", replace=True)(lambda graph: True)
    try:
        run(module, lambda graph: run_pass("test_inner", module) and None)
    finally:
        jit_passes.passes.remove("test_inner")


def test_a_pass_that_removes_itself(module: torch.jit.ScriptModule) -> None:
    """While it runs."""
    run(module, lambda graph: jit_passes.passes.remove(NAME))
    assert NAME not in jit_passes.passes


def test_threads(module: torch.jit.ScriptModule) -> None:
    """Registering, listing, running and removing at the same time."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                name = f"test_thread_{number}_{i}"
                register_pass(name, summary="A test.")(lambda graph: None)
                assert name in jit_passes.passes and str(jit_passes.passes)
                run_pass(name, module)
                jit_passes.passes.remove(name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not any(name.startswith("test_thread") for name in jit_passes.passes)


def test_nothing_leaks(module: torch.jit.ScriptModule) -> None:
    """A pass that was removed is gone, and so is the module that it worked on."""

    class Body:
        def __call__(self, graph: GraphEditor) -> None:
            node = find(graph, "aten::neg")
            graph.replace(node.output, node.inputs[0])

    body = Body()
    result = run(module, body)
    watched = weakref.ref(body)
    jit_passes.passes.remove(NAME)
    del body
    gc.collect()
    assert watched() is None
    extra = weakref.ref(next(result.parameters()))
    del result, module
    gc.collect()
    assert extra() is None or extra().shape == (4, 4)


def test_putting_an_operator_behind_another(module: torch.jit.ScriptModule) -> None:
    """At the end of the method, behind its result too; what is put there keeps its operand."""

    def body(graph: GraphEditor) -> None:
        value = graph.outputs[0].producer.inputs[0]
        made = graph.insert("aten::tanh", [value], before=value.producer)
        graph.remove(made)  # in front of what makes it, it would not be valid
        last = graph.insert("aten::neg", [value], before=None)
        result = graph.outputs[0].producer
        graph.set_input(result, 0, value)
        check_view(graph)
        graph.remove(last)
        scaled = graph.insert("aten::mul", [value, 2.0], before=result)
        graph.replace(value, scaled.output)
        check_view(graph)
        assert scaled.inputs[0] is value and result.inputs[0] is scaled.output

    changed = run(module, body)
    expected, found = module(X, True), changed(X, True)
    assert torch.equal(found[0], 2 * expected[0])


def test_an_operator_at_the_end() -> None:
    """Of a graph whose result is the last operator's."""

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    def body(graph: GraphEditor) -> None:
        result = graph.outputs[0]
        graph.replace(result, graph.insert("aten::neg", [result], before=None).output)
        check_view(graph)

    changed = run(torch.jit.script(Last()), body)
    assert torch.equal(changed(X), -torch.relu(X))
