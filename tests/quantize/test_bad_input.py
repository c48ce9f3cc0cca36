"""Mistakes of users: the error's class, the words that help, and a module left as it was."""

import ast
import math
import re
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError, JitPassesWarning
from jit_passes.targets import X86Quantizer
from tests.processor import HIGHEST

DATA = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


class Net(nn.Module):
    """A convolution, a branch that only `deep=True` takes, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.extra = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor, deep: bool = False) -> Tensor:
        y = torch.relu(self.stem(images))
        if deep:
            y = torch.relu(self.extra(y))
        return self.head(y.mean([2, 3]))


class Divides(nn.Module):
    """Makes infinities and NaN out of finite inputs, between `first` and `second`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) / torch.zeros(4))


@pytest.fixture
def model() -> torch.jit.ScriptModule:
    """The model of most tests, scripted, in eval mode."""
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


@contextmanager
def unchanged(module: torch.jit.ScriptModule) -> Iterator[None]:
    """Asserts that weights, buffers, mode and graph are the same after the block as before it."""
    # A frozen module, which the stages return, has no mode.
    graph, training = str(module.inlined_graph), getattr(module, "training", None)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    yield
    assert str(module.inlined_graph) == graph
    assert getattr(module, "training", None) == training
    after = module.state_dict()
    assert after.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(after[name], value), name


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Asserts that the block raises a JitPassesError whose message has every one of `words`."""
    with pytest.raises(JitPassesError) as caught:
        yield
    message = str(caught.value)
    for word in words:
        assert re.search(word, message, re.IGNORECASE), f"{word!r} is not in: {message}"


def quantize(model: Any, data: Any = DATA, **options: Any) -> torch.jit.ScriptModule:
    """Calls quantize_script without a progress bar."""
    return jit_passes.quantize_script(model, data, progress=False, **options)


def test_classes() -> None:
    """Users catch these by what they are: a RuntimeError, a UserWarning."""
    assert issubclass(JitPassesError, RuntimeError)
    assert issubclass(JitPassesWarning, UserWarning)


@pytest.mark.parametrize("function", [quantize, jit_passes.prepare], ids=["quantize", "prepare"])
@pytest.mark.parametrize(
    "garbage",
    [Net().eval(), None, 3, "model.pt", {}, Net, torch.zeros(2), torch.relu],
    ids=["eager", "none", "number", "path", "dict", "class", "tensor", "function"],
)
def test_not_a_script_module(function: Callable[[Any], Any], garbage: Any) -> None:
    """The message says how to get a ScriptModule."""
    with refused(r"torch\.jit\.script", r"torch\.jit\.trace", "ScriptModule"):
        function(garbage)


def test_script_function() -> None:
    """A scripted function is no module, close as it is."""

    @torch.jit.script
    def double(x: Tensor) -> Tensor:
        return x * 2

    with refused("ScriptModule"):
        quantize(double)


def test_training_mode(model: torch.jit.ScriptModule) -> None:
    """The message says to call eval, and nobody calls it behind the caller's back."""
    model.train()
    with unchanged(model), refused("training", r"eval\(\)"):
        quantize(model)


@pytest.mark.parametrize("data", [[], (), iter([])], ids=["list", "tuple", "iterator"])
def test_no_calibration_data(model: torch.jit.ScriptModule, data: Any) -> None:
    """An empty iterable, among them a generator that was used up before."""
    with unchanged(model), refused("calibration", "empty|no batch"):
        quantize(model, data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "not 5"),
        (DATA[0], r"not one tensor: pass \[tensor\]"),
        (DATA[0].numpy(), r"not an array of NumPy: pass \[torch\.from_numpy\(array\)\]"),
        ({"images": DATA[0]}, r"not one batch by names: pass \[batch\]"),
        ("calib.npz", r"not text: load 'calib\.npz' first"),
        (Path("calib.npz"), r"not text: load .*calib\.npz"),
        (nn.ReLU(), "got ReLU"),
    ],
    ids=["number", "tensor", "numpy", "dict", "text", "path", "module"],
)
def test_data_is_not_an_iterable_of_batches(
    model: torch.jit.ScriptModule, data: Any, words: str
) -> None:
    """A lone tensor would be iterated row by row, and rows are no batches."""
    with unchanged(model), refused("calibration", "iterable", words):
        quantize(model, data)


IMAGE = DATA[0]
FRAME = type("DataFrame", (), {"__module__": "pandas.core.frame"})
# Contents of a batch, and the advice of the message.
KINDS: dict[str, tuple[Any, str]] = {
    "numpy": (IMAGE.numpy(), r"'images' is an array of NumPy.*torch\.from_numpy\(images\)\. "),
    "float64_numpy": (IMAGE.double().numpy(), r"torch\.from_numpy\(images\)\.float\(\)"),
    "text_numpy": (np.array(["a"]), "numbers are needed, and these are <U1"),
    "numpy_number": (np.float32(3), r"a number of NumPy.*torch\.as_tensor\(images\)"),
    "numpy_by_name": ({"images": IMAGE.numpy()}, r"torch\.from_numpy\(images\)"),
    "pillow": (Image.new("RGB", (8, 8)), r"an Image of Pillow.*to_tensor\(images\)\[None\]"),
    "pandas": (FRAME(), r"a DataFrame of pandas.*images\.to_numpy\('float32'\)"),
    "number": (3.0, r"a float.*torch\.tensor\(images\)"),
    "loader": ([IMAGE, torch.zeros(4)], r"DataLoader.*input_fn=lambda batch: batch\[0\]"),
    "float64": (IMAGE.double(), r"is float64, and the weights are float32: pass images\.float\(\)"),
    "half": (IMAGE.half(), r"is float16, and the weights are float32: pass images\.float\(\)"),
    "bytes": (IMAGE.to(torch.uint8), r"is uint8, .*images\.float\(\), scaled as in training"),
    "sparse": (IMAGE.to_sparse(), r"sparse: pass images\.to_dense\(\)"),
    "meta": (IMAGE.to("meta"), "on the meta device, where tensors have no numbers"),
    "labels": ((IMAGE, False, torch.zeros(4)), r"input_fn=lambda batch: tuple\(batch\[:2\]\)"),
    "misspelt": ({"image": IMAGE}, "no argument 'image': did you mean 'images'"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", ["quantize", "compare", "sensitivity"])
def test_what_to_do_about_a_batch(model: torch.jit.ScriptModule, kind: str, function: str) -> None:
    """The advice comes ahead of what PyTorch says, which most often says it too late."""
    batch, advice = KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)
        quantized = quantize(model, target="reference") if function == "compare" else None
    run = {
        "quantize": lambda: quantize(model, [batch]),
        "compare": lambda: jit_passes.compare(model, quantized, [batch]),
        "sensitivity": lambda: jit_passes.sensitivity(model, [batch]),
    }[function]
    with unchanged(model), refused(f"batch.* does not run: .*{advice}.*PyTorch says: .*The model"):
        run()


def test_indices(model: torch.jit.ScriptModule) -> None:
    """Numbers that look rows of a table up: of a dtype that cannot, and beyond the rows."""
    table = torch.jit.script(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4)).eval())
    with refused(r"'input' is float32, .* in a table: pass input\.long\(\)"):
        quantize(table, [torch.zeros(3)], mode="static")
    with refused("'input' holds numbers from 2 to 99, and a table has fewer rows"):
        quantize(table, [torch.tensor([2, 99])], mode="static")


def test_a_mapping_is_a_dict(model: torch.jit.ScriptModule) -> None:
    """As tokenizers give them."""
    with pytest.warns(JitPassesWarning, match="extra"):
        quantized = quantize(model, [UserDict(images=IMAGE)])
    with pytest.warns(JitPassesWarning, match="extra"):
        assert torch.equal(quantized(IMAGE), quantize(model, [IMAGE])(IMAGE))


@pytest.mark.parametrize(
    "function",
    [
        lambda model: quantize(model, smooth=2),
        lambda model: quantize(model, smooth="yes"),
        lambda model: quantize(model, smooth=[0.5]),
        lambda model: quantize(model, smooth=float("nan")),
        lambda model: jit_passes.smooth(model, DATA, strength="much"),
        lambda model: quantize(model, input_fn=0),
        lambda model: quantize(model, method=3),
        lambda model: quantize(model, target=jit_passes.targets.Stock),
        lambda model: quantize(model, profile=3, data=None),
        lambda model: jit_passes.report(model, model, DATA, 3),
        lambda model: jit_passes.sensitivity(model, DATA, layers=3),
        lambda model: jit_passes.tune(model, DATA, budget=30, objective="cheap"),
        lambda model: jit_passes.run_pass("freeze", 3),
        lambda model: jit_passes.observers.Percentile(10),
        lambda model: jit_passes.quantizer.QuantizationSpec(quant_min=5, quant_max=1),
        lambda model: jit_passes.quantizer.TensorOptions(bits=99),
        lambda model: jit_passes.quantizer.Selector(),
        lambda model: jit_passes.passes["freezze"],
        lambda model: jit_passes.passes.remove("freezze"),
        lambda model: jit_passes.invariants["inlinedd"],
    ],
)
def test_arguments(model: torch.jit.ScriptModule, function: Any) -> None:
    """The error is a JitPassesError, whatever a caller passes; it is of other classes too."""
    with unchanged(model), pytest.raises(JitPassesError):
        function(model)


def test_names_that_are_looked_up(model: torch.jit.ScriptModule) -> None:
    with pytest.warns(JitPassesWarning, match="extra"):
        quantized = quantize(model, target="reference")
    compared = jit_passes.compare(model, quantized, DATA)
    measured = jit_passes.sensitivity(model, DATA, target="reference", layers="head*")
    for found, words in ((compared, "no value 'haed' was"), (measured, "no layer 'haed' was")):
        with pytest.raises(JitPassesError, match=words) as caught:
            found["haed"]
        assert isinstance(caught.value, KeyError) and str(caught.value).startswith(words)


def test_only_our_own_classes_are_raised() -> None:
    """Files that raise a ValueError or the like catch it themselves, or it is PyTorch's."""
    folder = Path(jit_passes.__file__).parent
    allowed = {"export/tensorrt.py", "testing/random_writer.py", "command_line/data.py"}
    known = ("ValueError", "TypeError", "KeyError", "RuntimeError", "IndexError", "OSError")
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            raised = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(raised, ast.Call) and getattr(raised.func, "id", "") in known:
                found.add(str(path.relative_to(folder)))
    assert found <= allowed


def test_a_model_that_was_optimized_for_inference() -> None:
    """Its file does not load, so the model that it was made of is there."""
    model = torch.jit.script(Net().eval())
    optimized = torch.jit.optimize_for_inference(model)
    words = r"optimize_for_inference.*prim::mkldnn_convolution.*the model that was given to it"
    with refused(words):
        quantize(optimized)
    with refused(words):
        jit_passes.inspect(optimized)


@pytest.mark.parametrize(
    "batch",
    [
        (DATA[0], torch.zeros(4, dtype=torch.int64), torch.zeros(4)),
        (DATA[0], torch.zeros(4, dtype=torch.int64)),
        ["a", "b"],
        {"pictures": DATA[0]},
        (),
        None,
        "batch",
    ],
    ids=["too_many", "labels", "list", "keyword", "nothing", "none", "text"],
)
def test_batch_does_not_fit(model: torch.jit.ScriptModule, batch: Any) -> None:
    """The message names forward's parameters, and the way to pick them out of a batch."""
    with unchanged(model), refused("images", "deep", "input_fn"):
        quantize(model, [batch])


def test_batch_has_the_wrong_shape(model: torch.jit.ScriptModule) -> None:
    """The batch fits forward's types, and fails inside."""
    with unchanged(model), refused("images", r"\[4, 5, 8, 8\]", "to have 3 channels"):
        quantize(model, [torch.zeros(4, 5, 8, 8)])


class Elsewhere(nn.Module):
    """All that could be int8 stands in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 1e6):
            x = self.conv(x)
        return x * 2


def test_data_reaches_nothing() -> None:
    """Calibration ran all the same: two warnings, and the float model comes out."""
    script, x = torch.jit.script(Elsewhere().eval()), torch.randn(2, 3, 8, 8)
    with (
        unchanged(script),
        pytest.warns(JitPassesWarning, match="nothing was quantized"),
        pytest.warns(JitPassesWarning, match="never reached conv:conv2d"),
    ):
        quantized = quantize(script, [x])
    for inputs in (x, x + 1e5):
        assert torch.equal(quantized(inputs), script(inputs))


def test_input_fn_picks_the_inputs(model: torch.jit.ScriptModule) -> None:
    """The message's advice works."""
    labelled = [(images, torch.zeros(4)) for images in DATA]
    with pytest.warns(JitPassesWarning, match="extra"):
        quantized = quantize(model, labelled, input_fn=lambda batch: batch[0])
    assert jit_passes.coverage(quantized).int8


def test_error_of_input_fn_is_not_hidden(model: torch.jit.ScriptModule) -> None:
    """A mistake in the caller's own function comes out as itself, or as its cause."""
    with unchanged(model), pytest.raises((KeyError, JitPassesError)) as caught:
        quantize(model, DATA, input_fn=lambda batch: {}["missing"])
    error = caught.value
    assert isinstance(error, KeyError) or isinstance(error.__cause__, KeyError)


def test_error_of_the_data_is_not_hidden(model: torch.jit.ScriptModule) -> None:
    """An error in the caller's own generator goes through as well."""

    def batches() -> Iterator[Tensor]:
        yield DATA[0]
        raise OSError("the disk is gone")

    with unchanged(model), pytest.raises(OSError, match="the disk is gone"):
        quantize(model, batches())


@pytest.mark.parametrize("target", ["tpu", "", 7], ids=["name", "empty", "number"])
def test_unknown_target(model: torch.jit.ScriptModule, target: Any) -> None:
    """The message lists the targets there are."""
    with unchanged(model), refused("no target", "stock", "auto"):
        quantize(model, target=target)


def test_unknown_engine(model: torch.jit.ScriptModule) -> None:
    """The message lists the engines of this build of PyTorch."""
    available = [name for name in torch.backends.quantized.supported_engines if name != "none"]
    with unchanged(model), refused("engine", "'cudnn9'", *available):
        quantize(model, target=jit_passes.targets.Stock(engine="cudnn9"))


def test_quantized_already(model: torch.jit.ScriptModule) -> None:
    """The result of quantizing cannot be quantized, nor can what an earlier stage returned."""
    with pytest.warns(JitPassesWarning, match="extra"):
        quantized = quantize(model)
    with unchanged(quantized), refused("already"):
        quantize(quantized)
    prepared = jit_passes.prepare(model)
    with unchanged(prepared), refused("already"):
        jit_passes.prepare(prepared)


def test_no_such_method(model: torch.jit.ScriptModule) -> None:
    """The message lists the methods there are, and how to get another."""
    with unchanged(model), refused("'encode'", "forward", r"torch\.jit\.export"):
        quantize(model, method="encode")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_value_that_has_no_range(model: torch.jit.ScriptModule, value: float) -> None:
    """NaN or infinity in the data: the message names the layer that reads it and the batch."""
    broken = DATA[1].clone()
    broken[2, 1, 3, 3] = value
    with unchanged(model), refused("^calibration batch 1: .*(nan|inf)", "stem"):
        quantize(model, [DATA[0], broken])


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_value_that_loses_its_range_inside(frontend: str) -> None:
    """A division by zero in the middle: it or the layer behind it is named, not the input."""
    eager = Divides().eval()
    example = torch.randn(2, 4)
    module = torch.jit.script(eager) if frontend == "script" else torch.jit.trace(eager, example)
    with unchanged(module), refused("^calibration batch 0: .*(nan|inf)", "second|div"):
        quantize(module, [example])


def test_part_never_reached(model: torch.jit.ScriptModule) -> None:
    """One warning names the convolution, coverage gives the reason, and the branch still runs."""
    with unchanged(model), pytest.warns(JitPassesWarning, match="extra") as caught:
        quantized = quantize(model)
    assert len([w for w in caught if issubclass(w.category, JitPassesWarning)]) == 1
    rows = {row.name.split(":")[0]: row for row in jit_passes.coverage(quantized)}
    assert (rows["stem"].dtype, rows["head"].dtype) == ("int8", "int8")
    assert rows["extra"].dtype == "float"
    assert re.search("never|calibrat", rows["extra"].reason)
    with torch.no_grad():
        expected, actual = model(DATA[0], True), quantized(DATA[0], True)
    # 10 % of the largest logit: the branch that stayed float was neither lost nor skipped.
    torch.testing.assert_close(actual, expected, rtol=0, atol=0.1 * expected.abs().max().item())


class NoLayers(nn.Module):
    """Nothing here has an int8 form."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1).exp()


def test_nothing_to_quantize() -> None:
    """A warning, and a module that works: deploying it is right, if pointless."""
    module = torch.jit.script(NoLayers().eval())
    with unchanged(module), pytest.warns(JitPassesWarning, match="nothing"):
        quantized = quantize(module)
    assert torch.equal(quantized(DATA[0]), module(DATA[0]))
    assert not [row for row in jit_passes.coverage(quantized) if row.dtype == "int8"]
    assert isinstance(quantized, torch.jit.ScriptModule)


def test_calibrating_what_was_not_prepared(model: torch.jit.ScriptModule) -> None:
    """The message names the stage that was left out."""
    with unchanged(model), refused("prepare"):
        jit_passes.calibrate(model, DATA, progress=False)


def test_converting_what_was_not_prepared(model: torch.jit.ScriptModule) -> None:
    """A float model has no observers to convert."""
    with unchanged(model), refused("prepare"):
        jit_passes.convert(model)


def test_converting_what_was_not_calibrated(model: torch.jit.ScriptModule) -> None:
    """Observers that saw nothing have no ranges to give."""
    prepared = jit_passes.prepare(model)
    with unchanged(model), unchanged(prepared), refused("calibrate"):
        jit_passes.convert(prepared)


def test_lowering_what_is_not_a_reference(model: torch.jit.ScriptModule) -> None:
    """Neither a float model nor a prepared one can be lowered."""
    with unchanged(model), refused("convert"):
        jit_passes.lower(model)
    with refused("convert"):
        jit_passes.lower(jit_passes.prepare(model))


def test_coverage_of_what_is_no_model() -> None:
    """The report asks for a ScriptModule as the stages do."""
    with refused("ScriptModule"):
        jit_passes.coverage(Net().eval())


@pytest.mark.parametrize(
    "function",
    [
        lambda m: quantize(m),
        jit_passes.prepare,
        jit_passes.inspect,
        jit_passes.prepare_qat,
        lambda m: jit_passes.profile(m, DATA),
    ],
)
def test_meta_device(function: Callable[[Any], Any]) -> None:
    """Weights without numbers are named, before anything reads them."""
    with torch.device("meta"):
        model = torch.jit.script(Net().eval())
    with refused("'stem.weight' is on the meta device", "load_state_dict"):
        function(model)


@pytest.mark.parametrize("function", [quantize, lambda m: jit_passes.profile(m, DATA)])
def test_weight_that_is_nan(function: Callable[[Any], Any]) -> None:
    """The data are not blamed for it."""
    net = Net().eval()
    net.stem.weight.data[0, 0] = float("nan")
    with refused("weight 'stem.weight', which 'stem:conv2d' reads, holds a NaN", "not to blame"):
        function(torch.jit.script(net))


@pytest.mark.parametrize("mode", ["auto", "static", "dynamic"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_weights_that_are_not_finite(part: str, bad: float, mode: str) -> None:
    """The layer stays in float, if no layer behind it is quantized."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    getattr(net[2], part).data.flatten()[0] = bad
    x = torch.randn(2, 3, 8, 8)
    found = jit_passes.quantize_script(torch.jit.script(net), [x], target="x86", mode=mode)
    (row,) = jit_passes.coverage(found).float
    assert row.reason.startswith(f"its {part} holds a NaN or an infinity")
    with torch.no_grad():
        assert torch.equal(found(x).isfinite(), net(x).isfinite())


def test_infinite_weight_in_front_of_others() -> None:
    """The data are not blamed for it."""
    net = Net().eval()
    net.stem.bias.data[0] = math.inf
    with refused("weight 'stem.bias', which 'stem:conv2d' reads, holds an inf", "not to blame"):
        quantize(torch.jit.script(net))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_dtype(dtype: torch.dtype) -> None:
    """The reason says what to do; a scripted model can do it too."""
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4)).eval().to(dtype))
    name = str(dtype).removeprefix("torch.")
    with pytest.warns(
        JitPassesWarning, match=rf"{name}, not float32: cast the model with model.float\(\)"
    ):
        jit_passes.quantize_script(model)
    assert not jit_passes.coverage(jit_passes.quantize_script(model.float())).float


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_data_that_are_nan(model: torch.jit.ScriptModule, value: float) -> None:
    """And a weight is not blamed for the data."""
    with refused("the value 'images", "look at the calibration data"):
        quantize(model, [torch.full((1, 3, 8, 8), value)])


def test_names_that_a_file_has_lost(model: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """A frozen model from a file has no modules to write rules about; operators it has."""
    torch.jit.freeze(model).save(str(tmp_path / "frozen.pt"))
    frozen = torch.jit.load(str(tmp_path / "frozen.pt"))
    rule = {"module": "stem", "keep_float": True}
    with refused("no operator is known to belong to a module", "frozen", "use op"):
        quantize(frozen, config={"version": 1, "rules": [rule]})
    by_op = {"version": 1, "rules": [{"op": "conv2d", "keep_float": True}]}
    rows = jit_passes.coverage(quantize(frozen, config=by_op))
    assert {row.kind: row.dtype for row in rows}["conv2d"] == "float"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("version: 1\nglobal:\n  input: {scale: 0.1, zero_point: 300}\n", ":3:35: 'stem:conv2d'"),
        (
            "version: 1\nglobal:\n  input: {scale: 0.1}\nrules:\n"
            "  - module: stem\n    input: {scale: 0.2, zero_point: 300}\n",
            ":6:37: 'stem:conv2d'",
        ),
    ],
)
def test_line_of_what_the_backend_cannot(
    model: torch.jit.ScriptModule, text: str, place: str
) -> None:
    """The target tells which codes exist; the error still names the line."""
    with refused(place, f"zero_point is one of the codes 0 to {HIGHEST}, not 300"):
        quantize(model, config=text)


@pytest.mark.parametrize(
    "function", [quantize, jit_passes.prepare, jit_passes.prepare_qat, jit_passes.inspect]
)
def test_quantizer_that_is_none(
    model: torch.jit.ScriptModule, function: Callable[..., Any]
) -> None:
    """A class in place of an instance, and something else."""
    with refused("instance of Quantizer", r"call it, X86Quantizer\(\)"):
        function(model, quantizer=X86Quantizer)
    with refused("instance of Quantizer, not 'x86'"):
        function(model, quantizer="x86")


def test_verify_with_one_tensor(model: torch.jit.ScriptModule) -> None:
    """A tensor is the only argument, and is not taken apart; a number is refused."""
    jit_passes.run_pass("remove_dropout", model, verify=DATA[0])
    with refused("a tuple or dict of arguments, or a tensor", "not int"):
        jit_passes.run_pass("remove_dropout", model, verify=3)


def test_one_operator() -> None:
    """Messages count in English."""
    assert str(
        jit_passes.inspect(torch.jit.script(nn.Sequential(nn.Linear(4, 4)).eval()))
    ).startswith("1 of 1 operator on integers, in 1 region; 1 value quantized")
