"""Files of ONNX: codes in ONNX Runtime, names, open sizes, branches, and what is refused."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import jit_passes
from jit_passes import JitPassesError, export_onnx, to_exported_program
from jit_passes.export.onnx import saving
from jit_passes.export.onnx.failures import reason_of
from jit_passes.export.onnx.results import spell_out_results
from tests.compare import call, clone, leaves
from tests.export.loops import LOOPS
from tests.models import Case, activations, convolutions, products, rearranging
from tests.processor import VNNI

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.usefixtures("translations_once")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def session(path: Path, *, optimized: Path | None = None) -> Any:
    """Load a file, without optimization unless the optimized model goes to a file."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    if optimized:
        options.optimized_model_filepath = str(optimized)
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(loaded: Any, *args: Tensor) -> list[Tensor]:
    names = [given.name for given in loaded.get_inputs()]
    arrays = {name: value.numpy() for name, value in zip(names, args, strict=True)}
    return [torch.from_numpy(result) for result in loaded.run(None, arrays)]


def kinds(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


class Small(nn.Module):
    """A residual block with a depthwise convolution, a pool and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, 4)

    def forward(self, image: Tensor) -> Tensor:
        y = self.stem(image)
        y = torch.relu(y + self.deep(y))
        return self.head(nn.functional.max_pool2d(y, 8).flatten(1))


BATCHES = [
    torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)
]
BATCH = ({0: Dim("batch", min=2, max=64)},)


def script(model: nn.Module) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(model.eval())


def reference_of(model: nn.Module, data: list[Tensor] = BATCHES, **config: Any) -> Any:
    if config:
        config = {"config": {"version": 1, "global": config}}
    return jit_passes.quantize_script(
        script(model), data, target="reference", mode="static", progress=False, **config
    )


def test_codes_names_sizes_and_metadata(tmp_path: Path) -> None:
    model, path = reference_of(Small()), tmp_path / "model.onnx"
    export_onnx(model, path, BATCHES[0], BATCH, output_names=["scores"])
    loaded = session(path)
    for count in (2, 7):
        x = torch.randn(count, 3, 8, 8)
        [found] = run(loaded, x)
        assert torch.equal(found, model(x))
        assert float(found.abs().max()) > 0
    [given], [result] = loaded.get_inputs(), loaded.get_outputs()
    assert (given.name, given.shape) == ("image", ["batch", 3, 8, 8])
    assert (result.name, result.shape) == ("scores", ["batch", 4])
    file = onnx.load(path)
    names = {name for node in file.graph.node for name in node.output}
    assert {"stem.0:conv2d", "deep:conv2d:quantized", "image:dequantized", "relu"} <= names
    weights = {tensor.name: tensor.data_type for tensor in file.graph.initializer}
    assert weights["deep.weight"] == onnx.TensorProto.INT8
    assert weights["deep.bias"] == onnx.TensorProto.INT32
    assert (file.producer_name, file.opset_import[0].version) == ("jit_passes", 21)
    [prop] = file.metadata_props
    made = json.loads(prop.value)
    assert (made["mode"], made["target"]) == ("static", "reference")
    assert str(Path(__file__).parent) not in str(file)  # no lines of files of this machine


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_the_engine_computes_on_integers(opset: int, tmp_path: Path) -> None:
    # Without VNNI its kernels add pairs of products in int16, where weights of 8 bits overflow.
    model = reference_of(Small(), weight={"bits": 8 if VNNI else 7})
    path = tmp_path / "model.onnx"
    export_onnx(model, path, BATCHES[0], BATCH, opset=opset)
    loaded = session(path, optimized=tmp_path / "optimized.onnx")
    found = kinds(tmp_path / "optimized.onnx")
    assert (found.count("QLinearConv"), found.count("Conv")) == (2, 0)
    [result] = run(loaded, BATCHES[1])
    step = jit_passes.encodings_of(model).activations[-1].scale[0]
    assert float((result - model(BATCHES[1])).abs().max()) < 1.01 * step


def test_powers_of_two(tmp_path: Path) -> None:
    config = {
        name: {"scheme": "power_of_two", "dtype": "int8"} for name in ("input", "output", "weight")
    }
    model, path = reference_of(Small(), **config), tmp_path / "model.onnx"
    export_onnx(model, path, BATCHES[0], BATCH)
    loaded = session(path)
    for x in BATCHES:
        assert torch.equal(run(loaded, x)[0], model(x))


@pytest.mark.parametrize("bits", [4, 7, 16])
def test_other_numbers_of_bits(bits: int, tmp_path: Path) -> None:
    """Fewer than 8 are clipped; 16 have a type of their own, which the dialect stores as int32."""
    weight = {"bits": min(bits, 8)}
    model = reference_of(Small(), input={"bits": bits}, output={"bits": bits}, weight=weight)
    path = tmp_path / "model.onnx"
    export_onnx(model, path, BATCHES[0], BATCH)
    assert ("Clip" in kinds(path)) == (bits < 8)
    [found] = run(session(path), BATCHES[1])
    step = jit_passes.encodings_of(model).activations[-1].scale[0]
    apart = (found - model(BATCHES[1])).abs() / step
    assert float(apart.max()) < 1.01 and float((apart > 0.5).double().mean()) < 0.1


def test_groups_of_weights(tmp_path: Path) -> None:
    floats = {"dtype": "float"}
    grouped = {"bits": 4, "group_size": 16}
    config = {"version": 1, "global": {"input": floats, "output": floats, "weight": grouped}}
    model = jit_passes.quantize_script(script(nn.Linear(32, 8)), target="reference", config=config)
    x = torch.randn(3, 32)
    export_onnx(model, tmp_path / "model.onnx", x)
    [node] = [n for n in onnx.load(tmp_path / "model.onnx").graph.node if "Dequ" in n.op_type]
    assert {a.name: a.i for a in node.attribute} == {"axis": 0, "block_size": 16}
    torch.testing.assert_close(run(session(tmp_path / "model.onnx"), x)[0], model(x))


class Branches(nn.Module):
    """A branch by the data in another one, numbers that they give, and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = 1
        if bool(x.mean() > 0):
            y = self.left(x)
            if bool(x.max() > 2):
                y = torch.relu(y)
                steps = 2
        else:
            y = x
        for _ in range(2):
            y = self.right(y)
        return y, x * steps


def test_branches(tmp_path: Path) -> None:
    model, path = script(Branches()), tmp_path / "model.onnx"
    export_onnx(model, path, torch.randn(4, 6), ({0: Dim("rows", min=2)},))
    loaded = session(path)
    for x in (torch.rand(3, 6), torch.rand(5, 6) - 1, torch.rand(2, 6) * 5):
        for found, expected in zip(run(loaded, x), model(x), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["grow", "fill"])
def test_loops(name: str, tmp_path: Path) -> None:
    network, inputs, shapes = LOOPS[name]
    model, path = script(network()), tmp_path / "model.onnx"
    export_onnx(model, path, inputs[0], shapes)
    assert kinds(path).count("Loop") == 1
    loaded = session(path)
    for x in inputs:
        for found, (_, expected) in zip(run(loaded, x), leaves(model(x)), strict=True):
            torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-5, atol=1e-5)


class Floats(nn.Module):
    """Float operators that are translated here, on two axes of heads and on one."""

    def forward(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        attend = nn.functional.scaled_dot_product_attention
        written = x * 2
        written[0, 1:] = 0.5
        wide = nn.functional.pad(x, [2, -1, -2, 1], "circular")
        fewer = nn.functional.adaptive_max_pool2d(x, (3, 2))
        average = nn.functional.adaptive_avg_pool2d
        return [
            average(x, (3, 2)),
            average(x[None], (4, 1)),
            average(x, (5, 7)),
            written,
            wide,
            nn.functional.pad(wide, [1, 2], "reflect"),
            nn.functional.pad(x, [1, -1], value=-2.0),
            fewer,
            attend(x[0], x[1], x[0]),
            attend(x, x + 1, x, attn_mask=mask > 0),
            attend(x[None], x[None] + 1, x[None], attn_mask=mask, scale=0.3),
            attend(x, x[:, :3] + 1, x[:, :3], is_causal=True),
            attend(x[None], x[None, :1], x[None, :1] + 1, enable_gqa=True),
            x.clamp(-0.5, 2),
        ]


def test_float_operators(tmp_path: Path) -> None:
    model, path = script(Floats()), tmp_path / "model.onnx"
    x, mask = torch.randn(2, 5, 7), torch.randn(5, 5)
    mask[:, 0] = 1  # each row sees something
    export_onnx(model, path, (x, mask))
    for found, expected in zip(run(session(path), x, mask), model(x, mask), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


class PadsBySize(nn.Module):
    """Pads as convolutions with the padding "same" do, in a trace, and averages all places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, 2), nn.Conv2d(2, 4, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, w = (torch.clamp(((n / 2).ceil() - 1) * 2 + 3 - n, min=0) for n in x.shape[-2:])
        y = nn.functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))
        return nn.functional.adaptive_avg_pool2d(self.first(y) * self.second(x), 1)


def test_padding_by_open_sizes(tmp_path: Path) -> None:
    path, example = tmp_path / "model.onnx", torch.randn(2, 2, 8, 9)
    model: Any = torch.jit.trace(PadsBySize().eval(), example, check_trace=False)
    height, width = (Dim(name, min=4, max=64) for name in ("height", "width"))
    shapes = ({2: height, 3: width},)
    module = to_exported_program(model, example, shapes).module()
    export_onnx(model, path, example, shapes)
    loaded = session(path)
    for sizes in ((8, 9), (9, 8), (31, 64)):
        x = torch.randn(2, 2, *sizes)
        for found in (module(x), *run(loaded, x)):
            torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-6)


class Known(nn.Module):
    """Results that are numbers, text and None."""

    def forward(self, x: Tensor) -> tuple[int, Tensor, str, float, None, bool]:
        return x.dim(), x + 1, "scores", 0.5, None, x.dim() > 1


def test_results_that_are_known(tmp_path: Path) -> None:
    """Numbers are tensors without axes; a file has no text, and no name for one."""
    x, path, names = torch.randn(2, 3), tmp_path / "model.onnx", ["axes", "y", "half", "many"]
    export_onnx(script(Known()), path, x, output_names=names)
    loaded = session(path)
    assert [result.name for result in loaded.get_outputs()] == names
    found = run(loaded, x)
    assert [value.dtype for value in found] == [torch.int64, x.dtype, x.dtype, torch.bool]
    assert [value.item() for value in found if value.dim() == 0] == [2, 0.5, True]
    assert torch.equal(found[1], x + 1)


class Same(nn.Module):
    """Results that are arguments, and values that are returned twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        y = self.layer(x)
        return y, state, x, y, state


@pytest.mark.parametrize("names", [None, ["a", "b", "c", "d", "e"]])
def test_results_that_are_arguments(names: list[str] | None, tmp_path: Path) -> None:
    """Arguments keep their names, and each result has a name of its own."""
    model, path = script(Same()), tmp_path / "model.onnx"
    args = (torch.randn(2, 3), torch.randn(4))
    export_onnx(model, path, args, output_names=names)
    loaded = session(path)
    assert [given.name for given in loaded.get_inputs()] == ["x", "state"]
    found = [result.name for result in loaded.get_outputs()]
    assert found == (names or ["layer:linear", "state#1", "x#1", "layer:linear#1", "state#2"])
    for a, b in zip(run(loaded, *args), model(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["x", "b"], "'x' for result 0: an argument of the model is called so"),
        (["a", "b", "c", "state"], "'state' for result 3: an argument of the model"),
        (["a", "b", "a"], "'a' for result 2: result 0 is called so too"),
        (["a", 3], "3 for result 1: a name is a text"),
        (["a", ""], "'' for result 1: a name is a text, and not empty"),
        (["a", "b"], "2 names, and the model has 5 results: give one name for each"),
        (["a", "b", "c", "d", "e", "f"], "6 names, and the model has 5 results"),
        ([], "0 names, and the model has 5 results"),
    ],
)
def test_names_that_results_cannot_have(names: list[Any], words: str, tmp_path: Path) -> None:
    """Wrong names are refused before anything is written."""
    args, path = (torch.randn(2, 3), torch.randn(4)), tmp_path / "model.onnx"
    with pytest.raises(jit_passes.errors.ArgumentError, match=f"output_names has {words}"):
        export_onnx(script(Same()), path, args, output_names=names)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", ["abc", 3, {"a": "b"}])
def test_names_of_results_are_a_list(names: Any, tmp_path: Path) -> None:
    with pytest.raises(jit_passes.errors.ArgumentError, match="is a list of texts, not "):
        export_onnx(script(Small()), tmp_path / "model.onnx", BATCHES[0], output_names=names)
    assert not list(tmp_path.iterdir())


class Returned(nn.Module):
    """Results that no operator computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        return x + 1, self.state, self.state, 3


def test_names_of_results_that_no_operator_computes(tmp_path: Path) -> None:
    x, path, names = torch.randn(2, 3), tmp_path / "model.onnx", ["y", "state", "again", "count"]
    export_onnx(script(Returned()), path, x, output_names=names)
    loaded = session(path)
    assert [result.name for result in loaded.get_outputs()] == names
    found = run(loaded, x)
    for result, expected in zip(found, (x + 1, *2 * [torch.arange(3.0)]), strict=False):
        assert torch.equal(result, expected)
    assert found[3].item() == 3


class Sizes(nn.Module):
    """Sizes, and numbers that are computed of them, which are returned twice."""

    def forward(self, x: Tensor) -> tuple[int, int, Tensor, float, float]:
        rows = x.size(0)
        return rows, rows, x + 1, rows / 2, rows / 2


@pytest.mark.parametrize("names", [None, ["a", "b", "c", "d", "e"]])
def test_results_that_are_open_sizes(names: list[str] | None, tmp_path: Path) -> None:
    """Each one is a tensor without axes, with a name of its own."""
    path, open_rows = tmp_path / "model.onnx", ({0: Dim("rows", min=2)},)
    export_onnx(script(Sizes()), path, torch.randn(4, 6), open_rows, output_names=names)
    loaded, x = session(path), torch.randn(5, 6)
    found = [result.name for result in loaded.get_outputs()]
    assert found == (names or found) and len(set(found)) == 5
    results = run(loaded, x)
    assert torch.equal(results.pop(2), x + 1)
    assert [value.item() for value in results] == [5, 5, 2.5, 2.5]
    assert not any(value.dim() for value in results)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + self.calls


def test_a_file_has_no_state(tmp_path: Path) -> None:
    x, path = torch.randn(2, 3), tmp_path / "model.onnx"
    with pytest.warns(jit_passes.JitPassesWarning, match="changes its 'calls'.* the same state"):
        export_onnx(script(Counts()), path, x)
    loaded = session(path)
    for _ in range(2):
        assert torch.equal(run(loaded, x)[0], x + 1)


class Quantized(nn.Module):
    """Two branches, whose operators have names of their own, and a layer that both read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x)) if bool(x.sum() > 0) else self.a(torch.relu(self.b(x)))
        return self.a(y)


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those of its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


@pytest.mark.parametrize("form", ["qdq", "qonnx"])
def test_names_in_branches(form: str, tmp_path: Path) -> None:
    """Each product has the name of the layer whose weight it reads; no name occurs twice."""
    batches = [torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    model = reference_of(Quantized(), batches, weight={"bits": 7})
    path = tmp_path / "model.onnx"
    export_onnx(model, path, batches[0], form=form)
    every = list(graphs(onnx.load(path).graph))
    assert len(every) == 3
    makers = {name: node for graph in every for node in graph.node for name in node.output}
    assert len(makers) == sum(len(node.output) for graph in every for node in graph.node)
    layers = []
    for name, node in makers.items():
        if node.op_type == "Gemm":
            layer = name.partition(":")[0]
            assert makers[node.input[1]].input[0].startswith(f"{layer}.weight")
            layers.append(layer)
    assert sorted(layers) == ["a", "a", "a", "b"]
    if form == "qdq":
        loaded = session(path)
        for x in (batches[0].abs(), -batches[1].abs()):
            assert torch.equal(run(loaded, x)[0], model(x)) and model(x).std() > 0


TABLE = [
    case
    for theme in (activations, convolutions, products, rearranging)
    for case in theme.CASES[::12]
    if case.script and all(isinstance(value, Tensor) for value in case.arguments(2, 1))
]


@pytest.mark.parametrize("case", TABLE, ids=[case.name for case in TABLE])
def test_float_models(case: Case, tmp_path: Path) -> None:
    model, path = case.build("script"), tmp_path / "model.onnx"
    args = case.arguments(2, seed=1)
    export_onnx(model, path, args, method=case.method)
    found = run(session(path), *clone(args))
    expected = [value for _, value in leaves(call(model, clone(args), case.method))]
    for a, b in zip(found, (value for value in expected if isinstance(value, Tensor)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


class Places(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.adaptive_max_pool2d(x, 2, return_indices=True)


def refusals() -> Iterator[Any]:
    small = Small()
    for opset in (7, 21.0, True, "21", None):
        message = f"opset is a whole number from 18 to 23, not {opset!r}"
        yield f"opset {opset!r}", lambda: script(small), {"opset": opset}, message
    missing = r"'special_bessel_j0' at .*test_onnx.py:\d+: ONNX has no form of prims.bessel_j0"
    yield "operator", lambda: script(Bessel()), {}, missing
    half = "Conv.*unsupported type: tensor.bfloat16"
    yield "dtype", lambda: script(Small()).to(torch.bfloat16), {}, half
    pool = {"dynamic_shapes": ({2: Dim("rows", min=4, max=64)},)}
    open_size = r"'adaptive_avg_pool2d' at .*: ONNX has no adaptive pool of an open size"
    yield "open size", lambda: script(nn.AdaptiveAvgPool2d((3, 1))), pool, open_size
    yield "places", lambda: script(Places()), {}, "returns the places of its maxima"
    stock = {"target": "stock", "mode": "static", "progress": False}
    engine = {"target": "inductor", "mode": "static", "progress": False}
    yield (
        "other engine",
        lambda: jit_passes.quantize_script(script(small), BATCHES, **engine),
        {},
        "the model is for 'inductor', which reads programs",
    )
    yield (
        "lowered",
        lambda: jit_passes.quantize_script(script(small), BATCHES, **stock),
        {},
        "target='reference'",
    )


@pytest.mark.parametrize(
    ("make", "options", "message"), [pytest.param(*row[1:], id=row[0]) for row in refusals()]
)
def test_refused(make: Any, options: Any, message: str, tmp_path: Path) -> None:
    """With one error, and no file."""
    with pytest.raises(JitPassesError, match=message):
        model = make()
        dtype = next((value.dtype for value in model.parameters()), torch.float32)
        export_onnx(model, tmp_path / "model.onnx", BATCHES[0].to(dtype), **options)
    assert not list(tmp_path.iterdir())


class Sum(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addmm(x, x, x) + x, x


@pytest.mark.parametrize(
    ("operator", "described"),
    [("add.Tensor", r"'add' at .*test_onnx.py:\d+: "), ("clone.default", "'x': "), ("mm.out", "")],
)
def test_reasons_name_the_operator(operator: str, described: str) -> None:
    """Parts that `torch.onnx` made are found by the whole name; a copy has no line of source."""
    program = to_exported_program(script(Sum()), torch.randn(3, 3))
    spell_out_results(program)
    said = f"Error when translating node %gone : call_function[target=torch.ops.aten.{operator}]()"
    assert re.fullmatch(described + re.escape(said), reason_of(RuntimeError(said), program))


def test_weights_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for 2 GB, at 100 bytes: two files, which move together, and replace those before."""
    monkeypatch.setattr(saving, "LARGE", 100)
    folder = tmp_path / "made"
    folder.mkdir()
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = torch.jit.script(Small().eval())
        export_onnx(model, folder / "model.onnx", BATCHES[0])
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert (folder / "model.onnx").stat().st_size < 10_000
    folder = folder.rename(tmp_path / "moved")
    [found] = run(session(folder / "model.onnx"), BATCHES[0])
    torch.testing.assert_close(found, model(BATCHES[0]), rtol=1e-5, atol=1e-6)


def test_weights_apart_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full leaves the files that were there."""
    monkeypatch.setattr(saving, "LARGE", 100)
    model, path = script(Small()), tmp_path / "model.onnx"
    export_onnx(model, path, BATCHES[0])
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert len(before) == 2

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.onnx.ONNXProgram, "save", full)
    with pytest.raises(JitPassesError, match=r"model\.onnx cannot be written: No space left"):
        export_onnx(model, path, BATCHES[0])
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        export_onnx(script(Small()), tmp_path / "nowhere" / "model.onnx", BATCHES[0])


def test_a_package_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(JitPassesError, match=r"pip install 'jit_passes\[onnx\]'"):
        export_onnx(script(Small()), tmp_path / "model.onnx", BATCHES[0])


def test_composite_operators_are_those_that_there_are() -> None:
    """`translations_once` keeps them until another one is defined."""
    from torch._export import utils
    from torch.export import exported_program

    search = exported_program._collect_all_valid_cia_ops
    search()  # which may bring in namespaces
    assert search is not utils._collect_all_valid_cia_ops and search() is search()
    assert search() == utils._collect_all_valid_cia_ops()
    with torch.library._scoped_library("defined_later", "FRAGMENT") as library:
        library.define("plus_one(Tensor x) -> Tensor")
        library.impl("plus_one", lambda x: x + 1, "CompositeImplicitAutograd")
        assert search() == utils._collect_all_valid_cia_ops()
        assert torch.ops.defined_later.plus_one.default in search()
