"""Steps of pipelines: what they can be, their options, and what they report."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import (
    GraphEditor,
    JitPassesError,
    Match,
    PassCall,
    PassError,
    Pipeline,
    Remark,
    RewriteRule,
    RuleSet,
    register_pass,
    run_pass,
)
from tests.passes.golden import module_of

NAME = "test_replace_unary"
X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Net(nn.Module):
    """Two activations, one of a layer of its own, and a batch norm that nothing folds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm1d(4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.relu(self.norm(x)))


@pytest.fixture
def script() -> torch.jit.ScriptModule:
    """A scripted model."""
    return torch.jit.script(Net().eval())


def replace(graph: GraphEditor, old: str, new: str = "aten::sin", times: int | None = None) -> None:
    """Put one operator of a single operand in another's place."""
    nodes = [node for node in graph.nodes if node.kind == old]
    for node in nodes[:times]:
        made = graph.insert(new, [node.inputs[0]], before=node)
        graph.replace(node.output, made.output)
        graph.remove(node)
    for node in nodes[len(nodes) if times is None else times :]:
        graph.remark(node, "there were enough")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_pass(NAME, summary="Put one operator in another's place.")(replace)
    yield
    jit_passes.passes.remove(NAME)


def relu(x: Tensor) -> Tensor:
    """A pattern."""
    return torch.relu(x)


def cos(x: Tensor) -> Tensor:
    """The replacement."""
    return torch.cos(x)


def tanh(x: Tensor) -> Tensor:
    """Another pattern."""
    return torch.tanh(x)


TO_COS = RewriteRule("relu_to_cos", relu, cos)


def mark(graph: GraphEditor) -> None:
    """Say something of each relu."""
    for node in graph.nodes:
        if node.kind == "aten::relu":
            graph.remark(node, "seen")


def test_options_of_a_python_pass() -> None:
    """Come from its keyword parameters and their annotations."""
    assert str(jit_passes.passes[NAME]).splitlines()[0] == (
        f"{NAME}(old: str, new: str = 'aten::sin', times: int | None = None)"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'old' \\(str\\)"),
        ({"old": "aten::relu", "nwe": "aten::cos"}, "no option 'nwe': did you mean 'new'"),
        ({"old": "aten::relu", "x": 1}, "no option 'x': there are 'new', 'old', 'times'"),
        ({"old": 1}, "'old' of .* is str, not 1 of type int"),
        ({"old": "aten::relu", "times": "2"}, r"is int \| None, not '2' of type str"),
        ({"old": "aten::relu", "times": True}, r"is int \| None, not True of type bool"),
        ({"old": "aten::relu", "new": object()}, "of type object"),
    ],
)
def test_wrong_options(
    script: torch.jit.ScriptModule, options: dict[str, Any], message: str
) -> None:
    """Refused before anything runs, wherever they are given."""
    for run in (
        lambda: run_pass(NAME, script, options=options),
        lambda: Pipeline("mine", (PassCall(NAME, **options),)).run(script),
        lambda: Pipeline("mine", (NAME,)).run(script, options={NAME: options}),
        lambda: Pipeline("mine", (replace,)).run(script, options={"replace": options}),
        lambda: jit_passes.schedule(NAME, options=options),
    ):
        with pytest.raises(JitPassesError, match=message) as caught:
            run()
        assert not isinstance(caught.value, PassError)


def test_partial_of_a_function(script: torch.jit.ScriptModule) -> None:
    """Its options are those of the function, whose annotations are text here."""
    step = functools.partial(replace, old="aten::tanh")
    result = Pipeline("mine", (step,)).run(script)
    assert [record.name for record in result.records] == ["replace"]
    assert "aten::sin" in result.after and "aten::tanh" not in result.after
    with pytest.raises(JitPassesError, match=r"the option 'times' .* is int"):
        Pipeline("mine", (step,)).run(script, options={"replace": {"times": "two"}})


def test_options_of_passes_in_c() -> None:
    """Are checked alike."""
    for options, message in (
        ({}, r"needs the option 'engine' \(str\)"),
        ({"engine": 3}, "is str, not 3 of type int"),
        ({"engin": "x86"}, "no option 'engin': did you mean 'engine'"),
    ):
        with pytest.raises(JitPassesError, match=message):
            Pipeline("mine", (PassCall("fold_prepack", **options),)).bind()


def test_options_for_nobody(script: torch.jit.ScriptModule) -> None:
    """For a pass that the pipeline does not hold, or for rules, which have none."""
    pipeline = Pipeline("mine", ("remove_dropout", TO_COS))
    with pytest.raises(JitPassesError, match="'fold_prepack', which pipeline 'mine' does not hold"):
        pipeline.run(script, options={"fold_prepack": {"engine": "x86"}})
    with pytest.raises(JitPassesError, match=r"rule set 'relu_to_cos'.*no option 'a'"):
        pipeline.run(script, options={"relu_to_cos": {"a": 1}})


def test_options_that_passes_cannot_have() -> None:
    """Are refused when the pass is registered."""

    def open_ended(graph: GraphEditor, **options: int) -> None: ...

    def of_modules(graph: GraphEditor, module: nn.Module) -> None: ...

    with pytest.raises(JitPassesError, match=r"\*\*options: name each option"):
        register_pass("test_open", summary="A test.")(open_ended)
    with pytest.raises(JitPassesError, match=r"'module' of pass 'test_of'.*lists and unions"):
        register_pass("test_of", summary="A test.")(of_modules)
    assert not {"test_open", "test_of"} & set(jit_passes.passes)


def test_lists_and_numbers() -> None:
    """A tuple is a list, an int is a float, and a bool is neither."""
    seen: list[Any] = []

    @register_pass("test_types", summary="A test.", requires=())
    def types(graph: GraphEditor, sizes: list[int], low: float = 0.0, flag: bool = False) -> bool:
        seen.append((list(sizes), low, flag))
        return False

    try:
        model = torch.jit.script(nn.ReLU())
        run_pass("test_types", model, options={"sizes": (1, 2), "low": 3, "flag": True})
        assert seen == [([1, 2], 3, True)]
        for options in ({"sizes": [1, "a"]}, {"sizes": 3}, {"sizes": [], "low": True}):
            with pytest.raises(JitPassesError, match="of type"):
                run_pass("test_types", model, options=options)
    finally:
        jit_passes.passes.remove("test_types")


def test_every_kind_of_step(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Runs, is recorded, dumped and printed alike, and leaves nothing in the registry."""
    before = set(jit_passes.passes)
    pipeline = Pipeline(
        "mine",
        (
            mark,
            RuleSet("to_cos", [TO_COS]),
            PassCall(NAME, old="aten::tanh", new="aten::exp"),
            TO_COS,
            "remove_dead_code",
        ),
        ensures=("inlined",),
    )
    call = f"{NAME}(old='aten::tanh', new='aten::exp')"
    rows = [
        ("mark", "Say something of each relu."),
        ("to_cos", "1 rewrite rule."),
        (call, "Put one operator in another's place."),
        ("relu_to_cos", "1 rewrite rule."),
        ("remove_dead_code", "Remove nodes on which no result depends."),
    ]
    lines = [f"  {name:<{len(call)}}  {summary}" for name, summary in rows]
    assert str(pipeline).splitlines() == ["pipeline 'mine'", *lines, "  ensures inlined"]
    result = pipeline.run(script, dump=tmp_path)
    names = ["mark", "to_cos", NAME, "relu_to_cos", "remove_dead_code"]
    assert [record.name for record in result.records] == names
    assert [record.changed for record in result.records[:4]] == [False, True, True, False]
    assert all(record.seconds > 0 and record.nodes > 0 for record in result.records)
    dumped = sorted(path.name for path in tmp_path.iterdir())
    assert dumped == [f"mine.{i:02d}.{name}.ir" for i, name in enumerate(["before", *names])]
    assert result.remarks == (Remark("relu:relu", "seen"),)
    assert result.records[0].remarks == result.remarks and "(1 remarks)" in str(result)
    y = torch.exp(torch.cos(X / (1 + 1e-5) ** 0.5))
    torch.testing.assert_close(result.module(X), y, rtol=1e-6, atol=1e-6)
    assert set(jit_passes.passes) == before


def test_one_step_of_each_kind_on_its_own(script: torch.jit.ScriptModule) -> None:
    """A function, a rule set and a pass do the same to a bare C++ module."""
    texts = set()
    for step in (
        PassCall(NAME, old="aten::relu", new="aten::cos"),
        TO_COS,
        RuleSet("to_cos", (TO_COS.compile(),)),
    ):
        module = jit_passes._C.clone(script._c)
        texts.add(str(Pipeline("mine", (step,)).run(module).module._get_method("forward").graph))
    assert all("aten::cos" in text and "aten::relu" not in text for text in texts)


def test_what_found_nothing_runs_again_once_something_has_changed(
    script: torch.jit.ScriptModule,
) -> None:
    seen: list[bool] = []

    @register_pass("test_look", summary="Look for a cosine.")
    def look(graph: GraphEditor) -> bool:
        seen.append(any(node.kind == "aten::cos" for node in graph.nodes))
        return False

    def turn(graph: GraphEditor) -> None:
        replace(graph, "aten::tanh", "aten::cos")

    try:
        steps = ("test_look", "propagate_constants", "test_look", turn, "test_look", "test_look")
        result = Pipeline("p", steps).run(script)
    finally:
        jit_passes.passes.remove("test_look")
    assert seen == [False, True]
    changed = [record.changed for record in result.records]
    assert changed == [False, False, False, True, False, False]


def test_steps_that_fail(script: torch.jit.ScriptModule) -> None:
    """Name themselves and what ran before; the module is as it was."""

    def fail(graph: GraphEditor) -> None:
        graph.remove(next(node for node in graph.nodes if node.kind == "aten::relu"))

    def asks(match: Match) -> bool:
        raise ZeroDivisionError("oh no")

    text = str(script.inlined_graph)
    for step, name in ((fail, "fail"), (RewriteRule("asks", relu, cos, check=asks), "asks")):
        with pytest.raises(PassError, match=f"pass '{name}' of pipeline 'mine'") as caught:
            Pipeline("mine", ("remove_dropout", step)).run(script)
        assert (caught.value.name, caught.value.done) == (name, ("remove_dropout",))
    assert str(script.inlined_graph) == text


def test_what_is_no_step() -> None:
    """Is refused, with what there is."""
    with pytest.raises(JitPassesError, match="a PassCall, a RuleSet, a RewriteRule, or a function"):
        Pipeline("mine", (3,)).bind()  # type: ignore[arg-type]
    with pytest.raises(JitPassesError, match="'mine' holds 'relu': no RewriteRule"):
        Pipeline("p", (RuleSet("mine", ["relu"]),)).bind()
    with pytest.raises(JitPassesError, match=r"ensures 'inlned'.*did you mean 'inlined'"):
        Pipeline("mine", (), ("inlned",)).bind()


def test_remarks_of_rules(script: torch.jit.ScriptModule) -> None:
    """Tell why a match was refused, unless another rule has rewritten the operator."""
    never = RewriteRule("never", relu, tanh, check=lambda match: "not today")
    refused = Pipeline("mine", (RuleSet("set", [never, never]),)).run(script)
    assert refused.remarks == (Remark("relu:relu", "not today"),)
    assert not refused.records[0].changed
    assert Pipeline("mine", (RuleSet("set", [never, TO_COS]),)).run(script).remarks == ()
    jit_passes.register_rules("test_rules", [never], summary="A test.")
    try:
        registered = Pipeline("mine", ("test_rules",)).run(script)
        assert registered.remarks == refused.remarks
    finally:
        jit_passes.passes.remove("test_rules")


def test_remarks_of_passes(script: torch.jit.ScriptModule) -> None:
    """In Python and in C++."""
    result = Pipeline("mine", (PassCall(NAME, old="aten::relu", times=0),)).run(script)
    assert result.remarks == (Remark("relu:relu", "there were enough"),)
    frozen = Pipeline("mine", ("freeze", "fold_batch_norm")).run(script._c)
    assert frozen.remarks == (
        Remark("norm:batch_norm", "no convolution or linear is in front of it"),
    )


class Shared(nn.Module):
    """A convolution whose result is used twice, so that its batch norm stays."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


def test_remark_on_a_batch_norm_that_stays() -> None:
    """The remark says why, and the stage that runs the pass hands it on."""
    result = jit_passes.stages.normalize.normalize(torch.jit.script(Shared().eval())._c)
    (remark,) = result.remarks
    assert str(remark).startswith("norm:batch_norm: the result in front of it has other users")


def test_remark_on_a_concatenation_that_stays() -> None:
    """One of its tensors is in float."""
    graph = """graph(%self, %a : Tensor, %b : Tensor):
  %s : float = prim::Constant[value=0.5]()
  %z : int = prim::Constant[value=0]()
  %h : int = prim::Constant[value=255]()
  %one : int = prim::Constant[value=1]()
  %q = jit_passes::quantize(%a, %s, %z, %z, %h, %z)
  %d = jit_passes::dequantize(%q, %s, %z)
  %l : Tensor[] = prim::ListConstruct(%d, %b)
  %y = aten::cat(%l, %one)
  %r = jit_passes::quantize(%y, %s, %z, %z, %h, %z)
  %e = jit_passes::dequantize(%r, %s, %z)
  return (%e)"""
    _, changed, remarks = jit_passes._C.run_pass("fuse_cat", module_of(graph), "forward", {})
    assert not changed and remarks == [("cat", "not all of its tensors are quantized")]


@pytest.mark.parametrize("verdict", [None, "", 0, [], 0.0])
def test_checks_that_do_not_say_yes(script: torch.jit.ScriptModule, verdict: Any) -> None:
    """Refuse: a check that forgets to return something does not accept all matches."""
    rule = RewriteRule("forgets", relu, cos, check=lambda match: verdict)
    if verdict is None or verdict == "":
        result = rule.apply(script)
        assert not result.rewritten and "aten::relu" in result.after
        assert f"returned {verdict!r}" in result.refused[0].refused
        assert rule.explain(script).places[0].reason != ""
    else:
        with pytest.raises(PassError, match="returns True, False or a reason"):
            rule.apply(script)
