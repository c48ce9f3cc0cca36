"""Programs of torch.export: the same numbers, names, open sizes, branches, and what is refused."""

from __future__ import annotations

import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import jit_passes
from benchmarks.models.resnet import BasicBlock, ResNet
from jit_passes import JitPassesError, to_exported_program
from jit_passes.errors import ArgumentError
from jit_passes.testing import random_modules
from tests.advice import decomposes
from tests.compare import call, clone, leaves
from tests.export.loops import LOOPS
from tests.models import CASES, Case
from tests.processes import run_python
from tests.seeds import seeds

# Of the table, the models that no program has, and a word of the reason.
REFUSED = {
    "state_rebinder": "changes its attribute 'calls'",
    "state_first_call": "changes its attribute 'ready'",
    "state_cache": "changes its attribute 'position'",
    "state_history": "changes its attribute 'history'",
    "data_loop": "a loop changes a list",
    "packed_tagger": "the data decide",
    "packed_speech": "the data decide",
    "list_of_tasks": "prim::fork",
    "early_returns": "different structures",
}
EVERY = 1 if os.environ.get("JIT_PASSES_SEEDS") == "all" else 8
TABLE = [(case, frontend) for case in CASES for frontend in case.frontends]
EXPORTED = [(case, how) for case, how in TABLE if case.name not in REFUSED][::EVERY]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Run these small models on one thread: most of the time is waiting otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(program: ExportedProgram, args: Any) -> Any:
    """Call a program with positional or keyword arguments, which it may change."""
    args = clone(args)
    with torch.no_grad():
        return program.module()(**args) if isinstance(args, dict) else program.module()(*args)


def assert_like(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Assert that results are equal but for the order of sums; a NamedTuple may become a tuple.

    Folding a batch norm rounds each weight anew, by 6e-8 of it; sums of a few hundred of them stay
    within the tolerance.
    """
    pairs = zip(leaves(found), leaves(expected), strict=True)
    for (_, a), (name, b) in pairs:
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance / 10, equal_nan=True)
        else:
            assert a == b, name


def nodes_of(program: ExportedProgram, word: str) -> list[torch.fx.Node]:
    """Return the calls of operators with that word in their name, those in branches included."""
    graphs = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    return [node for node in nodes if node.op == "call_function" and word in str(node.target)]


def script(model: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.script(model.eval())


@pytest.mark.parametrize(
    ("case", "frontend"), EXPORTED, ids=[f"{case.name}-{how}" for case, how in EXPORTED]
)
def test_float_models(case: Case, frontend: str) -> None:
    model = case.build(frontend)
    program = to_exported_program(model, case.arguments(2, seed=1), method=case.method)
    arguments = case.arguments(2, seed=1)
    with torch.no_grad():  # autograd refuses writes to one of several views
        expected = call(model, clone(arguments), case.method)
    assert_like(run(program, arguments), expected)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in REFUSED], ids=lambda case: case.name
)
def test_refused_models(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    """With one error, and nothing else from PyTorch."""
    model = case.build("script")
    capfd.readouterr()
    with pytest.raises(JitPassesError, match=REFUSED[case.name]):
        to_exported_program(model, case.arguments(2, seed=1), method=case.method)
    assert capfd.readouterr() == ("", "")


def test_most_models_export() -> None:
    assert len(REFUSED) < 0.05 * len(CASES)


def test_modules_drawn_at_random() -> None:
    exported = 0
    for module in random_modules(len(seeds(200)), seed=3):
        model = module.compile(training=False, dtype=torch.float32)
        arguments = module.arguments(torch.float32)
        try:
            program = to_exported_program(model, arguments)
        except JitPassesError as error:
            refused = re.search("the data decide|which is written to later", str(error))
            assert refused, f"{module.name}: {error}"
            continue
        exported += 1
        assert_like(run(program, arguments), model(*module.arguments(torch.float32)), 1e-4)
    assert exported >= 0.95 * len(seeds(200))


class Branches(nn.Module):
    """A branch by the data, of which one way gives its operand; and one by a size."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, int]:
        steps = 1
        if bool(x.mean() > 0):
            y = self.left(x)
            if bool(x.max() > 2):
                y = torch.relu(y)
                steps = 2
        else:
            y = x
        if x.size(0) > 8:
            y = self.right(y)
        return y * scale, steps


def test_branches_by_data_and_by_open_sizes() -> None:
    model = script(Branches())
    program = to_exported_program(model, torch.randn(4, 6), {"x": {0: Dim.DYNAMIC}})
    assert len(nodes_of(program, "cond")) == 3
    for rows in (3, 12):
        x = torch.rand(rows, 6)
        for given in (x, x - 1, x * 5):
            assert_like(run(program, (given,)), model(given))
    names = {node.meta["custom"]["name"] for node in nodes_of(program, "linear")}
    assert names == {"left:linear", "right:linear"}


class Checks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("roots of negative numbers")
        return x.sqrt()


def test_a_check_of_the_data_stays_a_check() -> None:
    program = to_exported_program(script(Checks()), torch.rand(3))
    x = torch.rand(3)
    assert torch.equal(run(program, (x,)), x.sqrt())
    with pytest.raises(RuntimeError, match="roots of negative numbers"):
        run(program, (-torch.rand(3),))


class Loops(nn.Module):
    """Rounds by a number of the model, by a size and by an argument, with a list that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(5, 5)

    def forward(self, x: Tensor, rounds: int) -> Tensor:
        found = [x]
        for k in range(rounds):
            found.append(torch.tanh(self.step(found[-1])) * (k + 1))
        while len(found) < x.size(1) + 2:
            found.append(found[0] + len(found))
        return torch.stack(found)


def test_loops_unroll() -> None:
    model = script(Loops())
    program = to_exported_program(model, (torch.randn(2, 5), 3), ({0: Dim.DYNAMIC}, None))
    assert len(nodes_of(program, "linear")) == 3
    x = torch.randn(7, 5)
    assert_like(run(program, (x, 3)), model(x, 3))


class PadsBySize(nn.Module):
    """Pads as convolutions with the padding "same" do: in a trace the sizes are tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h, w = (torch.clamp(((n / 2).ceil() - 1) * 2 + 3 - n, min=0) for n in x.shape[-2:])
        y = nn.functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))
        return self.conv(y), y * (w / 2.5), torch.stack([h, w]), w


def test_numbers_that_a_trace_has_as_tensors() -> None:
    """The numbers are known, so the padding is constant; results keep their dtypes."""
    x = torch.randn(2, 2, 8, 9)
    model: Any = torch.jit.trace(
        PadsBySize().eval(), x, check_trace=False
    )  # tensors in traces only
    program = to_exported_program(model, x, ({0: Dim("batch", min=2, max=8)},))
    assert [node.args[1] for node in nodes_of(program, "pad")] == [[1, 1, 0, 1]]
    x = torch.randn(5, 2, 8, 9)
    for found, expected in zip(run(program, (x,)), model(x), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", LOOPS)
def test_loops_by_data_and_by_open_sizes(name: str) -> None:
    """The rounds are those of each input, also where a round writes to a tensor from outside."""
    network, inputs, shapes = LOOPS[name]
    model = script(network())
    program = to_exported_program(model, inputs[0], shapes)
    assert len(nodes_of(program, "while_loop")) == 1
    for x in inputs:
        assert_like(run(program, (x,)), model(x))


class Sums(nn.Module):
    """Sums of lists of numbers, by which a branch goes and a result is scaled."""

    def forward(self, x: Tensor) -> Tensor:
        shifts = [x.shape[2] // 2, 1]
        if sum(shifts) > 3:
            x = torch.roll(x, shifts, (1, 2))
        return x * sum([0.5, 1.0])


@pytest.mark.parametrize("size", [2, 8])
def test_sums_of_lists(size: int) -> None:
    x = torch.randn(2, 3, size)
    program = to_exported_program(script(Sums()), x)
    expected = x.roll((size // 2, 1), (1, 2)) if size == 8 else x
    assert torch.equal(program.module()(x), 1.5 * expected)


class Growing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() < 9):
            x = torch.cat([x, x])
        return x


def test_a_loop_whose_rounds_change_shapes_is_refused() -> None:
    message = (
        r"'Loop' at .*test_exported_program.py:\d+: a round makes float32\[6\] of float32\[3\]"
    )
    with pytest.raises(JitPassesError, match=message):
        to_exported_program(script(Growing()), torch.ones(3))


class Rewrites(nn.Module):
    """A branch writes to a row of a tensor from outside."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if bool(x.sum() > 0):
            y[0] = 0.5
        else:
            y.relu_()
        return y


@decomposes
def test_branches_give_back_what_they_write_to() -> None:
    """No branch writes to its operands, which decompositions of torch 2.13 fail on."""
    model = script(Rewrites())
    program = to_exported_program(model, torch.randn(3, 4))
    for x in (torch.rand(3, 4), -torch.rand(3, 4)):
        assert torch.equal(run(program, (x,)), model(x))
        assert torch.equal(run(program.run_decompositions(), (x,)), model(x))


class Both(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        row = y[0]
        if bool(x.sum() > 0):
            row.zero_()
            y = y + row
        return y


def test_a_branch_that_writes_to_a_view_and_reads_the_whole_is_refused() -> None:
    with pytest.raises(JitPassesError, match="a view that is read too: take the view within"):
        to_exported_program(script(Both()), torch.randn(3, 4))


class Appends(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        found = [x]
        if bool(x.sum() > 0):
            found.append(x)
        return found


def test_a_branch_that_changes_a_list_is_refused() -> None:
    with pytest.raises(JitPassesError, match=r"'If' at .*:\d+: a branch changes a list"):
        to_exported_program(script(Appends()), torch.randn(3))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.total
        self.total = self.total + x
        return before, self.total


def test_state_is_the_programs_own() -> None:
    model = script(Counter())
    program = to_exported_program(model, torch.ones(3))
    module = program.module()
    assert [float(value[0]) for _ in range(2) for value in module(torch.ones(3))] == [0, 1, 1, 2]
    assert float(model.total.sum()) == 0
    assert list(program.state_dict) == ["total"]


class Data(nn.Module):
    """Reads `data`, as modules do that were written for early versions of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x.data + self.mean.data


def test_data_of_tensors() -> None:
    model, x = script(Data()), torch.randn(2, 3)
    assert torch.equal(run(to_exported_program(model, x), (x,)), model(x))


@torch.jit.script
class Recipe:
    """As layers of einops hold, which look sizes up by the name of an axis."""

    def __init__(self, axes: dict[str, int]) -> None:
        self.axes: dict[str, int] = axes
        self.calls: int = 0


class Holder(nn.Module):
    """Holds objects of a class of TorchScript."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.recipes, self.counts = {2: Recipe({"h": 2})}, counts

    def forward(self, x: Tensor) -> Tensor:
        recipe = self.recipes[x.dim()]
        if self.counts:
            recipe.calls += 1
        return x.reshape([recipe.axes["h"], -1])


Holder.__annotations__["recipes"] = dict[int, Recipe]  # which TorchScript wants as a type


@pytest.mark.parametrize("loaded", [False, True])
def test_objects_of_a_class(loaded: bool, tmp_path: Path) -> None:
    model, x = script(Holder()), torch.randn(4, 3)
    if loaded:  # where Python has no such class
        model.save(str(tmp_path / "model.pt"))
        model = torch.jit.load(str(tmp_path / "model.pt"))
    assert torch.equal(run(to_exported_program(model, x), (x,)), model(x))


def test_an_object_that_changes_is_refused() -> None:
    with pytest.raises(JitPassesError, match=r":\d+: the model changes 'calls' of an object"):
        to_exported_program(script(Holder(counts=True)), torch.randn(4, 3))


class Named(nn.Module):
    """Buffers with names that the module which runs a graph has for its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_state", torch.zeros(3))
        self.register_buffer("_block", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self._state = self._state + x
        self._block = self._block * self._state
        return self._block


def test_state_keeps_its_names() -> None:
    program = to_exported_program(script(Named()), torch.ones(3))
    assert sorted(program.state_dict) == ["_block", "_state"]
    module = program.module()
    assert [float(module(torch.ones(3))[0]) for _ in range(3)] == [1, 2, 6]


class Stream(nn.Module):
    """Makes its state in the first call, and remembers the rate of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0
        self.register_buffer("context", torch.zeros(0))

    def forward(self, x: Tensor, rate: int) -> Tensor:
        if self.rate != rate:
            self.context = torch.zeros_like(x)
        self.context = 0.5 * self.context + x
        self.rate = rate
        return self.context


def test_a_state_that_the_first_call_makes() -> None:
    """A number that stays as it is is no change."""
    model, args = script(Stream()), (torch.ones(2), 8000)
    with pytest.raises(
        JitPassesError, match=r"'context' from .*\[0\] to .*\[2\].*call the model once"
    ):
        to_exported_program(model, args)
    model(*args)
    module = to_exported_program(model, args).module()
    assert [float(module(*args)[0]) for _ in range(2)] == [1.5, 1.75]
    with pytest.raises(JitPassesError, match="'rate', which is no tensor"):
        to_exported_program(model, (torch.ones(2), 16000))


class Small(nn.Module):
    """A residual block, an attention-like product, a pool and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6())
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        y = torch.relu(y + self.deep(y))
        return self.head(torch.flatten(nn.functional.max_pool2d(y, 4), 2).transpose(1, 2))


def batches(count: int = 4) -> list[Tensor]:
    return [torch.randn(4, 3, 8, 8) for _ in range(count)]


@pytest.fixture(scope="module")
def small() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return script(Small())


@pytest.fixture(scope="module")
def reference(small: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    prepared = jit_passes.prepare(small, target="reference", mode="static")
    jit_passes.calibrate(prepared, batches(), progress=False)
    return jit_passes.convert(prepared)


BATCH = ({0: Dim("batch", min=2, max=64)},)


def assert_codes_of(model: torch.jit.ScriptModule, program: ExportedProgram) -> None:
    """Assert equal results: none of the numbers is a tie, which could round the other way."""
    for count in (2, 5):
        x = torch.randn(count, 3, 8, 8)
        expected = model(x)
        assert torch.equal(run(program, (x,)), expected)
        assert float(expected.abs().max()) > 0


def test_reference_models_have_the_same_codes(reference: torch.jit.ScriptModule) -> None:
    program = to_exported_program(reference, torch.randn(3, 3, 8, 8), BATCH)
    assert_codes_of(reference, program)
    quantizes = nodes_of(program, "quantize_per_tensor")
    weights = nodes_of(program, "dequantize_per_channel")
    assert len(weights) == 6 and len(quantizes) >= 8  # a weight and a bias each; q and dq of values
    state = program.state_dict
    assert {
        name: state[name].dtype for name in ("deep.weight", "deep.bias", "deep.weight_scale")
    } == {
        "deep.weight": torch.int8,
        "deep.bias": torch.int32,
        "deep.weight_scale": torch.float32,
    }


def test_names_modules_and_lines(reference: torch.jit.ScriptModule) -> None:
    program = to_exported_program(reference, torch.randn(3, 3, 8, 8))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    found = {node.meta["custom"]["name"]: node for node in nodes}
    assert {"x", "stem.0:conv2d", "deep:conv2d", "deep.weight", "head.bias"} <= set(found)
    deep = found["deep:conv2d"]
    assert deep.meta["nn_module_stack"] == {
        "L__self__": ("", ""),
        "L__self___deep": ("deep", "Conv2d"),
    }
    assert str(Path(__file__)) in found["relu"].meta["stack_trace"]
    encodings = jit_passes.encodings_of(reference)
    assert {encoding.name for encoding in encodings} <= set(found)


def test_file(reference: torch.jit.ScriptModule, tmp_path: Path) -> None:
    program = to_exported_program(reference, torch.randn(3, 3, 8, 8), BATCH)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    assert_codes_of(reference, loaded)
    names = [node.meta.get("custom") for node in program.graph.nodes]
    assert [node.meta.get("custom") for node in loaded.graph.nodes] == names


def test_a_lowered_model_of_the_target_reference(small: torch.jit.ScriptModule) -> None:
    """With lookup tables."""
    target = jit_passes.targets.Reference(lookup_tables=True)
    model = script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 4, 3)))
    lowered = jit_passes.quantize_script(model, batches(), target=target, mode="static")
    program = to_exported_program(lowered, torch.randn(3, 3, 8, 8), BATCH)
    assert nodes_of(program, "index")
    assert_codes_of(lowered, program)


@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
@pytest.mark.parametrize("tokenwise", [False, True])
def test_scales_that_the_model_chooses(scheme: str, tokenwise: bool) -> None:
    """Closer than the float model is: the largest number of a symmetric range is a tie."""
    model = script(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)))
    config = {"version": 1, "global": {"input": {"scheme": scheme, "tokenwise": tokenwise}}}
    quantized = jit_passes.quantize_script(model, target="reference", mode="dynamic", config=config)
    program = to_exported_program(quantized, torch.randn(3, 16), ({0: Dim.DYNAMIC},))
    assert len(nodes_of(program, "choose_qparams")) == (0 if tokenwise else 2)
    x = torch.randn(5, 16)
    with torch.no_grad():
        found, expected, apart = run(program, (x,)), quantized(x), model(x)
    assert (found - expected).norm() < 0.5 * (apart - expected).norm()


@pytest.mark.parametrize("axis", [0, 1])
def test_groups_of_weights(axis: int) -> None:
    """Of linears an operator of their own; of transposed convolutions each group is a channel."""
    kind = nn.Linear(32, 8) if axis == 0 else nn.ConvTranspose1d(32, 8, 3)
    config = {
        "version": 1,
        "global": {
            "input": {"dtype": "float"},
            "output": {"dtype": "float"},
            "weight": {"bits": 4, "group_size": 16},
        },
    }
    model = script(kind)
    quantized = jit_passes.quantize_script(model, target="reference", config=config)
    x = torch.randn(2, 32) if axis == 0 else torch.randn(2, 32, 5)
    program = to_exported_program(quantized, x)
    [node] = nodes_of(program, "dequantize_per_channel")
    assert ("group" in str(node.target)) == (axis == 0)
    assert {-7, 7} <= set(node.args) or {-8, 7} <= set(node.args)  # the codes of 4 bits
    assert_like(run(program, (x,)), quantized(x))


def test_ties_round_as_pytorchs_operators_do() -> None:
    """x / scale is rounded, then the zero point added: an odd one moves ties by a step."""
    from jit_passes.export.program.decomposed import decomposed

    x = (torch.arange(8) + 0.5) * 0.25
    ours = torch.ops.jit_passes.quantize(x, 0.25, 3, 0, 255, 0).int()
    theirs = decomposed().quantize_per_tensor(x, 0.25, 3, 0, 255, torch.uint8).int()
    assert theirs.tolist() == [3, 5, 5, 7, 7, 9, 9, 11]
    assert (ours - theirs).abs().tolist() in ([1, 1] * 4, [0] * 8)  # torch 2.13, and later ones


class Clamps(nn.Module):
    """Clamps between two numbers, and others."""

    def forward(self, x: Tensor, codes: Tensor, end: Tensor) -> list[Tensor]:
        clamped = [nn.functional.relu6(x), x.clamp(-1, 2.5), nn.functional.hardtanh(x)]
        clamped.extend([x.clamp(2, -1), x.clamp(max=2), x.clamp(end), codes.clamp(-3, 3)])
        return clamped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_clamps_between_two_numbers_are_hardtanh(dtype: torch.dtype) -> None:
    """Engines look for it behind a convolution; other clamps stay, and all values are equal."""
    x = torch.tensor([-torch.inf, -2.0, -0.0, 0.5, 2.25, 7.0, torch.inf, torch.nan], dtype=dtype)
    arguments = (x, torch.arange(-8, 8), torch.tensor(1.0, dtype=dtype))
    program = to_exported_program(script(Clamps()), arguments)
    assert len(nodes_of(program, "aten.hardtanh.")) == 3
    assert len(nodes_of(program, "aten.clamp.")) == 4
    for found, expected in zip(run(program, arguments), Clamps()(*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_keyword_arguments_and_other_methods() -> None:
    case = next(case for case in CASES if case.name == "keyword_inputs")
    model = case.build("script")
    given = case.arguments(2, seed=1)
    rows = {0: Dim("rows")}
    program = to_exported_program(model, given, {"x": rows, "shift": rows, "gain": None})
    assert program.graph_signature.user_inputs[:1] == ("x",)
    given = case.arguments(3, seed=2)
    assert_like(run(program, given), call(model, given))


def test_the_model_is_not_touched(small: torch.jit.ScriptModule) -> None:
    graph, state = str(small.inlined_graph), {k: v.clone() for k, v in small.state_dict().items()}
    to_exported_program(small, torch.randn(3, 3, 8, 8))
    with pytest.raises(JitPassesError):
        to_exported_program(small, torch.randn(3, 2, 8, 8))
    assert str(small.inlined_graph) == graph
    assert all(torch.equal(state[name], value) for name, value in small.state_dict().items())


class Tasks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        tasks = [torch.jit.fork(torch.relu, x)]
        return torch.jit.wait(tasks[0])


def bad_inputs() -> Iterator[Any]:
    x = torch.randn(3, 3, 8, 8)
    yield "eager", lambda model: Small(), x, None, "a ScriptModule is needed"
    yield "training", lambda model: torch.jit.script(Small()), x, None, r"call model.eval\(\)"
    prepare = jit_passes.prepare
    yield "prepared", lambda model: prepare(model, target="stock"), x, None, "jit_passes.convert"
    yield "qat", jit_passes.prepare_qat, x, None, "jit_passes.convert"
    stock = {"target": "stock", "mode": "static"}
    lowered = jit_passes.quantize_script
    yield "lowered", lambda m: lowered(m, batches(), **stock), x, None, "target='reference'"
    yield "channels", lambda model: model, x[:, :2], None, "stem.0:conv2d.*expected input"
    yield "number", lambda model: model, 3, None, "'x' is an int, and the model takes a tensor"
    parts = "example_inputs has 2 parts, and the model takes 1 argument: pass a tuple of 1$"
    yield "two", lambda model: model, (x, x), None, parts
    several = "'x' is a list, and the model takes a tensor: several arguments are a tuple"
    yield "list", lambda model: model, [x, x], None, several
    forms = "'x' is None.*: example_inputs is a tensor, a tuple of arguments, or a dict"
    yield "none", lambda model: model, None, None, forms
    yield "keyword", lambda model: model, {"y": x}, None, "the model has no argument 'y'"
    yield "sizes", lambda model: model, x, ({1: Dim.DYNAMIC},), r"'x.size\(\)\[1\]' is fixed at 3"
    yield "shapes", lambda model: model, x, {"z": None}, "dynamic_shapes"


@pytest.mark.parametrize(
    ("make", "given", "shapes", "message"),
    [pytest.param(*row[1:], id=row[0]) for row in bad_inputs()],
)
def test_bad_input(
    small: torch.jit.ScriptModule, make: Any, given: Any, shapes: Any, message: str
) -> None:
    model = make(small)
    with pytest.raises(JitPassesError, match=message):
        to_exported_program(model, given, shapes)


class Nests(nn.Module):
    def forward(self, x: Tensor, named: dict[str, Tensor], several: list[Tensor]) -> Tensor:
        return x + named["a"] + several[0]


OPEN = Dim("rows", min=2)
ROW = (torch.randn(3, 4), {"a": torch.randn(3, 4)}, [torch.randn(3, 4)])
BY_NAME = dict(zip(("x", "named", "several"), ROW, strict=True))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            {0: OPEN},
            r"a dict by names, not the axes of one alone: write \(\{0: Dim\('rows'.*\},\)$",
        ),
        ("rows", r"not 'rows': one tensor has \(\{0: torch.export.Dim\('batch'\)\},\)$"),
        (OPEN, "in a tuple or a dict by names, not Dim"),
        (("rows", None, None), r"dynamic_shapes\[0\] is 'rows', and open sizes of a tensor are"),
        ((OPEN, None, None), r"dynamic_shapes\[0\] is Dim.*, and open sizes of a tensor are"),
        (({2: OPEN}, None, None), r"\[0\] has the axis 2, and the tensor has the shape \[3, 4\]$"),
        (({-1: OPEN}, None, None), r"\[0\] has the axis -1, and the tensor"),
        (({"rows": OPEN}, None, None), r"\[0\] has the axis 'rows', and the tensor"),
        (((OPEN,), None, None), r"\[0\] has the length 1, and the tensor has the shape \[3, 4\]: "),
        (({0: "rows"}, None, None), r"\[0\] has 'rows' for axis 0, and a size is a torch"),
        ({"x": {2: OPEN}, "named": None, "several": None}, r"\['x'\] has the axis 2"),
        ((None, {"a": {2: OPEN}}, [None]), r"dynamic_shapes\[1\]\['a'\] has the axis 2"),
        ((None, {"a": None}, [{0: "rows"}]), r"dynamic_shapes\[2\]\[0\] has 'rows' for axis 0"),
    ],
)
@pytest.mark.parametrize("given", [ROW, BY_NAME], ids=["positions", "names"])
def test_open_sizes_of_another_form(given: Any, shapes: Any, message: str) -> None:
    """The error shows the right form."""
    with pytest.raises(ArgumentError, match=message):
        to_exported_program(script(Nests()), given, shapes)


@pytest.mark.parametrize(
    "one",
    [
        {0: OPEN},
        {0: OPEN, 1: 4},
        (OPEN, Dim.STATIC),
        [Dim.AUTO, 4],
        {0: Dim.DYNAMIC},
    ],
    ids=str,
)
def test_forms_of_open_sizes(one: Any) -> None:
    """Each form opens the first axis, in a tuple, a list and a dict by names."""
    shapes = (one, {"a": one}, [one])
    for given in (shapes, list(shapes), dict(zip(BY_NAME, shapes, strict=True))):
        for example in (ROW, BY_NAME):
            program = to_exported_program(script(Nests()), example, given)
            [x, *_] = [node for node in program.graph.nodes if node.op == "placeholder"]
            rows, columns = x.meta["val"].shape
            assert isinstance(rows, torch.SymInt) and columns == 4


def test_open_sizes_that_pytorch_makes() -> None:
    """A ShapesCollection has them by tensor."""
    x, shapes = torch.randn(3, 4), torch.export.ShapesCollection()
    shapes[x] = {0: OPEN}
    program = to_exported_program(script(nn.ReLU()), x, shapes)
    [node] = [node for node in program.graph.nodes if node.op == "placeholder"]
    assert isinstance(node.meta["val"].shape[0], torch.SymInt)


def test_operators_where_pytorch_brings_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own definitions, in a process without PyTorch's, give the numbers of those here."""
    code = """
import sys, torch
if sys.argv[1] == "own":
    for name in ("torch.ao.quantization.fx._decomposed", "torchao"):
        sys.modules[name] = None
from jit_passes.export.program.decomposed import _LIBRARY, decomposed
op = decomposed()
assert len(_LIBRARY) == (sys.argv[1] == "own")
torch.manual_seed(0)
x, scales, zeros = torch.randn(4, 32), torch.rand(4) + 0.1, torch.tensor([0, 3, -2, 1])
grid, unsigned = (-128, 127, torch.int8), (0, 255, torch.uint8)
found = []
for name in ("choose_qparams", "choose_qparams_symmetric"):
    low, high, dtype = unsigned
    scale, zero = getattr(op, name).tensor(x, low, high, 2.0**-60, dtype)
    q = op.quantize_per_tensor.tensor(x, scale, zero, *unsigned)
    found += [scale, zero, q, op.dequantize_per_tensor.tensor(q, scale, zero, *unsigned)]
q = op.quantize_per_tensor(x, 0.02, 5, *grid)
found += [q, op.dequantize_per_tensor(q, 0.02, 5, *grid)]
q = op.quantize_per_channel(x, scales, zeros, 0, *grid)
found += [q, op.dequantize_per_channel(q, scales, zeros, 0, *grid)]
groups = torch.rand(4, 2) + 0.1, torch.zeros(4, 2, dtype=torch.int64)
found += [op.dequantize_per_channel_group(q, *groups, *grid, 16, torch.float32)]
torch.save(found, sys.argv[2])
"""
    (tmp_path / "operators.py").write_text(code)
    files = {which: str(tmp_path / f"{which}.pt") for which in ("own", "theirs")}
    run_python(tmp_path / "operators.py", "own", files["own"], cwd=tmp_path)
    monkeypatch.setattr("sys.argv", ["operators.py", "theirs", files["theirs"]])
    runpy.run_path(str(tmp_path / "operators.py"))
    results = [torch.load(file) for file in files.values()]
    for own, theirs in zip(*results, strict=True):
        assert own.dtype == theirs.dtype
        assert torch.equal(own, theirs)


def test_a_residual_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = script(ResNet(BasicBlock, (2, 2, 2, 2), classes=10))
    shapes = ({0: Dim("batch", min=2, max=64)},)
    program = to_exported_program(model, torch.randn(2, 3, 64, 64), shapes)
    x = torch.randn(3, 3, 64, 64)
    assert_like(run(program, (x,)), model(x), 1e-4)
    reference = jit_passes.quantize_script(model, [x], target="reference", mode="static")
    program = to_exported_program(reference, torch.randn(2, 3, 64, 64), shapes)
    assert len(nodes_of(program, "conv2d")) == 20
    assert all(
        value.dtype != torch.float32 or value.dim() < 2 for value in program.state_dict.values()
    )
    step = jit_passes.encodings_of(reference).activations[-1].scale[0]
    apart = (run(program, (x,)) - reference(x)).abs().max() / step
    assert float(apart) < 3  # ties of inner codes may round the other way


CLASSIFIERS = (
    *("alexnet", "vgg11", "resnet18", "squeezenet1_1", "densenet121", "mobilenet_v2"),
    *("mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5", "swin_t"),
)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_of_torchvision(name: str) -> None:
    torchvision = pytest.importorskip("torchvision", exc_type=Exception)
    torch.manual_seed(0)
    model = script(torchvision.models.get_model(name, weights=None))
    program = to_exported_program(model, torch.randn(2, 3, 64, 64), ({0: Dim("batch", max=64)},))
    x = torch.randn(3, 3, 64, 64)
    found, expected = run(program, (x,)), model(x)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class FirstHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[: x.shape[0] // 2]


@pytest.mark.parametrize(
    ("model", "shape", "axis", "said"),
    [
        (nn.Linear(3, 3), (1, 3), 0, "the size 'open' is 1 in the example.*2 or more"),
        (Recurrent(), (2, 5, 3), 1, "the size 'open' is fixed at 5: .*a recurrent layer"),
        (FirstHalf(), (6, 3), 0, r"not open in all of its range: \(x.size.*suggests _open = Dim"),
    ],
)
def test_sizes_that_cannot_be_open(
    model: nn.Module, shape: tuple[int, ...], axis: int, said: str
) -> None:
    shapes = ({axis: torch.export.Dim("open", min=1, max=64)},)
    with pytest.raises(JitPassesError, match=said) as error:
        to_exported_program(script(model), torch.randn(shape), shapes)
    assert "TORCH_LOGS" not in str(error.value)


class NamedAsPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"class": nn.Linear(3, 3), "None": nn.Linear(3, 3)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def test_modules_whose_names_are_words_of_python() -> None:
    """A program is code in Python, with their names."""
    model, x = script(NamedAsPython()), torch.randn(2, 3)
    program = to_exported_program(model, x)
    assert torch.equal(program.module()(x), model(x))
    assert "layers.class_.weight" in program.state_dict
