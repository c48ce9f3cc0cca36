"""Regions: what they hold, that models with them compute the same bits, and what refuses them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import _C, GraphView, JitPassesError, PassCall, PassError, Pipeline
from jit_passes.graph.verify import compare, observe
from jit_passes.passes.pipeline import own
from jit_passes.passes.subject import wrap
from jit_passes.testing import check_change
from tests.compare import assert_close, call
from tests.models import BASIC
from tests.third_party.kiln import Kiln

QUANTIZES = "jit_passes::quantize"


def conv(channels: int = 4, **options: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, padding=options.pop("padding", 1), **options)


def reference_of(
    model: nn.Module, *inputs: Tensor, target: str | Kiln = "kiln"
) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    script = torch.jit.script(model.eval())
    prepared = jit_passes.prepare(script, target=target)
    return jit_passes.convert(jit_passes.calibrate(prepared, [inputs], progress=False))


def images(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 4, 8, 8)), generator=torch.Generator().manual_seed(3))


def check_regions(
    reference: torch.jit.ScriptModule, expected: list[set[str]], *inputs: Tensor
) -> jit_passes.Partition:
    """The regions hold these operators, and the model computes the same bits, saved too."""
    before, text = reference(*inputs), jit_passes.format_graph(reference)
    found = jit_passes.partition(reference, "kiln")
    assert [set(region.operators) for region in found.regions] == expected, str(found)
    assert jit_passes.format_graph(reference) == text
    for model in (found.model, saved(found.model)):
        assert torch.equal(model(*inputs), before)
    for region in found.regions:
        graph = GraphView.of(region.module)
        names = {node.name for node in graph.nodes if node.name}
        assert set(region.operators) <= names | {f"{n}#{k}" for n in names for k in range(1, 9)}
        assert len(region.inputs) == len(graph.inputs)
        assert all(value.parameters is not None for value in (*region.inputs, *region.outputs))
        assert getattr(found.model, region.name)._c == region.module._c
        for value in graph.inputs:
            assert {user.kind for user, _ in value.uses} == {QUANTIZES}
    return found


def saved(model: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The model from its file."""
    file = io.BytesIO()
    torch.jit.save(model, file)
    return torch.jit.load(io.BytesIO(file.getvalue()))


# -------------------------------------------------------------------------------------- what


class Residual(nn.Module):
    """Two blocks around a function that the target does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(), conv(), conv()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        x = torch.relu(self.b(x) + x)
        x = torch.cos(self.c(x))
        return self.head(x.mean([2, 3]))


def test_a_residual_block() -> None:
    x = images()
    reference = reference_of(Residual(), x)
    body = {"a:conv2d", "relu", "b:conv2d", "add", "relu#1", "c:conv2d"}
    found = check_regions(reference, [body, {"head:linear"}], x)
    first, last = found.regions
    (entry,) = jit_passes.encodings_of(reference).activations[:1]
    assert first.inputs[0].name == "x"
    assert first.inputs[0].parameters.scale == entry.scale[0]
    assert (first.outputs[0].name, last.inputs[0].name) == ("c:conv2d", "mean")
    assert {row.name: row.reason for row in found.refused} == {
        "cos": "the target 'kiln' has no int8 form of it",
        "mean": "the target 'kiln' has no int8 form of it",
    }
    assert all("test_partition.py" in row.source for row in found.refused)
    lines = str(found).splitlines()
    assert lines[0] == "7 of 9 operators in 2 regions of the target 'kiln'"
    assert lines[1] == "region_0: 6 operators, a:conv2d to c:conv2d"
    assert lines[2].startswith("  takes x (uint8, scale 0.0")
    # Looked through, it is the reference model.
    flat = wrap(_C.clone(found.model._c, "forward"))
    assert jit_passes.format_graph(flat) == jit_passes.format_graph(reference)
    assert jit_passes.coverage(found.model) == jit_passes.coverage(reference)
    assert jit_passes.encodings_of(found.model) == jit_passes.encodings_of(reference)
    from_file = jit_passes.encodings_of(saved(found.model))
    assert from_file == jit_passes.encodings_of(saved(reference))


def test_regions_are_those_that_inspect_foretells() -> None:
    x = images()
    found = jit_passes.partition(reference_of(Residual(), x), "kiln")
    foretold = jit_passes.inspect(torch.jit.script(Residual().eval()), target="kiln").regions
    assert [set(names) for names in foretold] == [
        {name for name in region.operators if not name.startswith("relu")}
        for region in found.regions
    ]


class Around(nn.Module):
    """A path out of the first operators, through a cosine, and back to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(), conv(), conv()

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(x) + self.c(torch.cos(x))


def test_no_path_leaves_a_region_and_comes_back() -> None:
    """The sum belongs to one of its operands; what it reads of the other is quantized anew."""
    x = images()
    found = check_regions(
        reference_of(Around(), x), [{"a:conv2d", "b:conv2d"}, {"c:conv2d", "add"}], x
    )
    assert len(found.regions[0].outputs) == len(found.regions[1].inputs) == 2
    grids = {value.name: value.parameters for value in found.regions[0].outputs}
    handed = {value.name: value.parameters for value in found.regions[1].inputs}
    assert handed["b:conv2d"] == grids["b:conv2d"]


class Several(nn.Module):
    """Results of one region for the caller and for two others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(), conv(), conv()

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y, z = self.b(x), self.c(x)
        return torch.cat([x.flatten(), torch.sin(y).flatten(), z.flatten(), torch.cos(z).flatten()])


def test_several_results() -> None:
    x = images()
    found = check_regions(reference_of(Several(), x), [{"a:conv2d", "b:conv2d", "c:conv2d"}], x)
    (region,) = found.regions
    assert [value.name for value in region.outputs] == ["a:conv2d", "b:conv2d", "c:conv2d"]
    assert isinstance(region.module(x), tuple)


class Blocks(nn.Module):
    """Operators in a branch, in a loop, and around them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(), conv(), conv(), conv()

    def forward(self, x: Tensor, rounds: int) -> Tensor:
        x = torch.relu(self.a(x))
        if rounds > 1:
            x = torch.relu(self.b(x)) + x
        for _ in range(rounds):
            x = self.c(x) + x
        return self.d(x)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_branches_and_loops(rounds: int) -> None:
    """Each block has its regions; none crosses."""
    torch.manual_seed(0)
    model, x = Blocks(), images()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    script = torch.jit.script(model.eval())
    data = [(x, 0), (x, 3)]
    prepared = jit_passes.calibrate(jit_passes.prepare(script, target="kiln"), data, progress=False)
    reference = jit_passes.convert(prepared)
    found = jit_passes.partition(reference, "kiln")
    operators = [set(region.operators) for region in found.regions]
    for name in ("a:conv2d", "b:conv2d", "c:conv2d", "d:conv2d"):
        assert sum(name in names for names in operators) == 1
    assert all(len(names & {f"{m}:conv2d" for m in "abcd"}) == 1 for names in operators)
    for model in (found.model, saved(found.model)):
        assert torch.equal(model(x, rounds), reference(x, rounds))


class Written(nn.Module):
    """A sum that is overwritten in part before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(), conv(), conv()

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        x[:, 0] = x[:, 0].mul(2.0)
        return self.c(x)


def test_never_across_a_written_value() -> None:
    x = images()
    reference = reference_of(Written(), x)
    found = jit_passes.partition(reference, "kiln")
    assert torch.equal(found.model(x), reference(x))
    assert {"a:conv2d"} in [
        set(region.operators) & {"a:conv2d", "c:conv2d"} for region in found.regions
    ]
    assert not any({"a:conv2d", "c:conv2d"} <= set(region.operators) for region in found.regions)


class Recounted(nn.Module):
    """Asks for sizes of a tensor whose memory may be written to in between."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(1))
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        if scale is not None:
            x = x * scale
        self.state.copy_(x.detach().mean())
        rows = self.linear(x.reshape(-1, x.size(-1)))
        return rows.reshape(x.size(0), x.size(1), -1)


def test_sizes_of_what_is_written_to() -> None:
    """A region takes tensors, so an operator that takes such a size stands outside."""
    x = images(3, 3, 5)
    reference = reference_of(Recounted(), x, target="x86")
    found = jit_passes.partition(reference, "x86")
    for region in found.regions:
        assert all(value.is_tensor for value in GraphView.of(region.module).inputs)
    why = {refusal.name: refusal.reason for refusal in found.refused}["reshape#1"]
    assert why == "it takes a size of a value that is written in place"
    assert torch.equal(found.model(x), reference(x))
    lowered = jit_passes.lower(reference)
    assert jit_passes.coverage(lowered).int8
    assert (lowered(x) - reference(x)).abs().max() <= 0.1 * reference(x).abs().max()


class Moved(nn.Module):
    """Rearrangements that the target has on integers, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(), conv(), conv()

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.a(x), 2)
        x = self.b(x).transpose(2, 3)
        return self.c(x)


def test_rearrangements() -> None:
    """Values on a grid are quantized again behind one that stays outside: the same codes."""
    x = images()
    found = check_regions(
        reference_of(Moved(), x), [{"a:conv2d", "max_pool2d", "b:conv2d"}, {"c:conv2d"}], x
    )
    assert found.regions[1].inputs[0].parameters == found.regions[0].outputs[0].parameters
    (row,) = found.refused
    assert (row.name, row.reason) == ("transpose", "the target 'kiln' does not do it on integers")


class MovedTwice(Moved):
    """The first region ends with what moves codes, and something outside moves them on."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.b(self.a(x)), 2).transpose(2, 3)
        return self.c(x)


def test_rearrangements_at_both_ends() -> None:
    x = images()
    found = check_regions(
        reference_of(MovedTwice(), x), [{"a:conv2d", "b:conv2d", "max_pool2d"}, {"c:conv2d"}], x
    )
    assert found.regions[1].inputs[0].parameters == found.regions[0].outputs[0].parameters


def test_tables() -> None:
    """A function of functions is one operator, for a target that computes them by tables."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = conv(), conv()

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.b(x * torch.sigmoid(x))

    x = images()
    reference = reference_of(Net(), x, target="reference")
    found = jit_passes.partition(reference, "reference")
    (region,) = found.regions
    assert set(region.operators) == {"a:conv2d", "sigmoid", "mul", "b:conv2d"}
    assert torch.equal(found.model(x), reference(x))
    found = jit_passes.partition(reference, "kiln")
    assert [set(region.operators) for region in found.regions] == [{"a:conv2d"}, {"b:conv2d"}]
    assert torch.equal(found.model(x), reference(x))


@pytest.mark.parametrize(
    ("weight", "activation", "reason"),
    [
        ({"dtype": "int8", "bits": 8}, {"dtype": "int8", "bits": 8}, r"int8 \[-128, 127\]"),
        ({"dtype": "int8", "bits": 8}, {"dtype": "uint8", "bits": 4}, r"uint8 \[0, 15\]"),
    ],
)
def test_codes_that_a_target_does_not_have(
    weight: dict[str, object], activation: dict[str, object], reason: str
) -> None:
    """A model that was prepared for another target."""
    config = {"version": 1, "global": {"weight": weight, "input": activation, "output": activation}}
    x = images()
    script = torch.jit.script(nn.Sequential(conv(), nn.ReLU()).eval())
    prepared = jit_passes.prepare(script, target="reference", config=config)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x], progress=False))
    found = jit_passes.partition(reference, "kiln")
    assert not found.regions
    row = next(row for row in found.refused if row.kind == "aten::conv2d")
    assert row.reason.startswith("its operand 'input' is " + reason.replace("\\", ""))


# ---------------------------------------------------------------------------- the search itself


def graph_of(function: Callable[..., object]) -> tuple[object, dict[str, int]]:
    class Net(nn.Module):
        pass

    script = torch.jit.script(Net())
    script.define(function.__doc__ or "")
    module = own(script, "forward").module
    return module, {n.name: n.index for n in GraphView.of(module).nodes if n.name}


def crossed() -> None:
    """
    def forward(self, x: Tensor):
        a = torch.sin(x)
        b = torch.cos(a)
        d = torch.tan(x)
        c = torch.exp(d)
        return a + c, b * d
    """


def test_two_regions_do_not_read_each_other() -> None:
    """Each could be computed as one by itself, but not both."""
    module, index = graph_of(crossed)
    units = [[index[name]] for name in ("sin", "exp", "cos", "tan")]
    assert _C.find_regions(module, "forward", units, [(0, 1)])[:2] == [0, 0]
    assert _C.find_regions(module, "forward", units, [(2, 3)])[2:] == [1, 1]
    numbers = _C.find_regions(module, "forward", units, [(0, 1), (2, 3)])
    assert (numbers[0] == numbers[1]) != (numbers[2] == numbers[3])
    with pytest.raises(PassError, match="cannot be computed as one"):
        outlined(module, [units[0] + units[1], units[2] + units[3]])


def ordered() -> None:
    """
    def forward(self, x: Tensor):
        a = torch.sin(x)
        b = torch.rand_like(a)
        c = torch.rand(2)
        d = torch.cos(c)
        return b + a, d
    """


def test_what_has_an_order_keeps_it() -> None:
    """The second random number waits for the first, which waits for the sine."""
    module, index = graph_of(ordered)
    units = [[index["sin"]], [index["cos"]], [index["rand"]]]
    assert _C.find_regions(module, "forward", units, [(0, 1)]) == [0, 1, -1]
    with pytest.raises(PassError, match="cannot be computed as one"):
        outlined(module, [[index["sin"], index["cos"]]])
    result = wrap(outlined(module, [[index["sin"]], [index["cos"], index["add"]]]))
    torch.manual_seed(5)
    expected = wrap(module)(torch.ones(2))
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(result(torch.ones(2)), expected, strict=True))


def outlined(module: object, regions: list[list[int]]) -> object:
    call = PassCall("outline_regions", regions=regions)
    return Pipeline("outline", (call,)).run(_C.clone(module), "forward").module


def branched() -> None:
    """
    def forward(self, x: Tensor, y: Tensor):
        a = torch.sin(x)
        if bool(x.sum() > 0):
            b = torch.cos(a)
        else:
            b = a
        return b, torch.tan(y), a
    """


def writing() -> None:
    """
    def forward(self, y: Tensor):
        a = torch.sin(y)
        y.mul_(2)
        return torch.tan(y), a
    """


@pytest.mark.parametrize(
    ("function", "names", "message"),
    [
        (branched, ("sin", "cos"), "stand in different branches or loops"),
        (branched, ("sin", "sin"), "twice"),
        (branched, (), "names no node"),
        (writing, ("mul",), "writes, reads a value that is written to"),
        (writing, ("tan",), "writes, reads a value that is written to"),
    ],
)
def test_regions_that_are_none(
    function: Callable[[], None], names: tuple[str, ...], message: str
) -> None:
    module, index = graph_of(function)
    with pytest.raises(PassError, match=message):
        outlined(module, [[index[name] for name in names]])


def test_nodes_that_are_none() -> None:
    module, _ = graph_of(branched)
    with pytest.raises(PassError, match="names node 999, and the graph has"):
        outlined(module, [[999]])
    with pytest.raises(PassError, match="names node -1"):
        outlined(module, [[-1]])
    with pytest.raises(JitPassesError, match="regions"):
        jit_passes.run_pass("outline_regions", wrap(module))


def outline_at_random(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Put about half of all operators into regions, linked at random."""
    subject = own(script, "forward")
    subject.run_pass("remove_dead_code", {})
    if "multi_head" in subject.text():
        return script  # regions of its branches on keys that may be None are refused, or fail
    nodes = [n for n in GraphView.of(subject.module).nodes if not n.kind.startswith("prim::")]
    draw = random.Random(len(nodes))
    chosen = [node for node in nodes if draw.random() < 0.6]
    number = {node.index: i for i, node in enumerate(chosen)}
    links = [
        (number[value.producer.index], number[node.index])
        for node in chosen
        for value in node.inputs
        if value.producer is not None and value.producer.index in number
    ]
    links += [(draw.randrange(len(chosen)), draw.randrange(len(chosen))) for _ in chosen]
    found = _C.find_regions(subject.module, "forward", [[n.index] for n in chosen], links)
    regions: dict[int, list[int]] = {}
    for node, region in zip(chosen, found, strict=True):
        if region >= 0:
            regions.setdefault(region, []).append(node.index)
    COUNTS.append(sum(len(region) > 1 for region in regions.values()))
    options = {"regions": list(regions.values())}
    return wrap(_C.run_pass("outline_regions", subject.module, "forward", options)[0])


COUNTS: list[int] = []


def test_random_modules_with_random_regions() -> None:
    """Results, gradients and writes stay, whichever regions are cut out."""
    COUNTS.clear()
    assert check_change(outline_at_random, count=12, frontends=("script",)) > 12
    assert sum(COUNTS) > 20


# ------------------------------------------------------------------------------------ bad input


def test_bad_input() -> None:
    script = torch.jit.script(Residual().eval())
    with pytest.raises(JitPassesError, match="reference module is needed"):
        jit_passes.partition(script, "kiln")
    x = images()
    reference = reference_of(Residual(), x)
    with pytest.raises(JitPassesError, match="no target 'kilnn'"):
        jit_passes.partition(reference, "kilnn")
    with pytest.raises(JitPassesError, match="reference module is needed"):
        jit_passes.partition(jit_passes.lower(reference), "kiln")


def test_the_model_is_not_touched(tmp_path: Path) -> None:
    """Nor its file: it is that of the model alone, whatever was partitioned."""
    x = images()
    reference = reference_of(Residual(), x)
    (tmp_path / "other").mkdir()
    torch.jit.save(reference, tmp_path / "model.pt")
    one, other = (jit_passes.partition(reference, "kiln").model for _ in range(2))
    torch.jit.save(reference, tmp_path / "other" / "model.pt")
    before, after = tmp_path / "model.pt", tmp_path / "other" / "model.pt"
    assert before.read_bytes() == after.read_bytes()
    assert one.code == other.code
    assert one.region_0.code == other.region_0.code


@torch.no_grad()
def test_parts_that_are_written_to_stay_outside() -> None:
    """A traced cell of an LSTM writes its gates into the parts of a list."""
    (case,) = (case for case in BASIC if case.name == "lstm_cell")
    model, inputs = case.build("trace"), case.arguments(16, 0)
    lowered = jit_passes.quantize_script(model, [inputs], target="x86", progress=False)
    assert jit_passes.coverage(lowered).int8
    assert_close(call(model, inputs, "forward"), call(lowered, inputs, "forward"), 25, case.name)


class EndsLate(nn.Module):
    """The first region ends behind the second one, whose result it reads by way of float."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Conv2d(3, 3, 1) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = self.first(x), self.second(y)
        return self.last(first + F.relu(torch.cummax(second, 1)[0]))


def test_a_region_that_is_called_behind_a_later_one() -> None:
    """Each has its own operators, under its own number."""
    x, y = images(2, 3, 8, 8), -images(2, 3, 8, 8)
    reference = reference_of(EndsLate(), x, y, target="x86")
    found = jit_passes.partition(reference, target="x86")
    assert [(r.name, r.operators) for r in found.regions] == [
        ("region_0", ("first:conv2d", "add", "last:conv2d")),
        ("region_1", ("second:conv2d",)),
    ]
    for region in found.regions:
        own = [node.kind for node in GraphView.of(region.module).nodes if node.kind[:4] == "aten"]
        assert len(own) == len(region.operators)
    assert torch.equal(found.model(x, y), reference(x, y))


class Twice(nn.Module):
    """Reads a parameter as it is and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.linear(x), self.linear.weight.t().to(x.dtype))


def test_a_transposed_parameter_keeps_its_gradient() -> None:
    script = torch.jit.script(Twice().double())
    inputs = (torch.randn(3, 5, dtype=torch.float64),)
    expected = observe(wrap(_C.clone(script._c)), "forward", inputs)
    subject = own(script, "forward")
    (cast,) = (n.index for n in GraphView.of(subject.module).nodes if n.kind == "aten::to")
    regions = {"regions": [[cast]]}
    outlined = _C.run_pass("outline_regions", subject.module, "forward", regions)[0]
    compare(expected, observe(wrap(_C.clone(outlined)), "forward", inputs), None)
