"""A target, an observer and a training method from outside of the package go the way of ours."""

from __future__ import annotations

import copy
import math
import subprocess
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.fake_quantizers import (
    LSQ,
    FakeQuantizer,
    Operator,
    TrainingPlace,
    fake_quantizer_of,
)
from jit_passes.observers import HistogramObserver, MinMax, Observer, observer_of
from jit_passes.quantizer import (
    Annotations,
    BackendQuantizer,
    LayerOptions,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    TensorOptions,
)
from jit_passes.targets import Reference, Stock, Target, resolve_target
from jit_passes.targets import targets as all_targets
from tests.folders import ROOT
from tests.processes import run_code
from tests.third_party.coarse_steps import CoarseSteps, Twice
from tests.third_party.core_range import CoreRange
from tests.third_party.kiln import Kiln
from tests.third_party.mill import Mill

TRAINED = {"bits": None, "target": "mill"}


class Net(nn.Module):
    """A residual block with a sigmoid, a dilated convolution that the mill refuses, a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.wide = nn.Conv2d(6, 6, 3, padding=2, dilation=2)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.first(x)), 2)
        x = self.second(torch.sigmoid(x)) + x
        return self.last(self.wide(x).mean([2, 3]))


def batches(count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(4, 3, 8, 8, generator=generator) for _ in range(count)]


@pytest.fixture
def script() -> torch.jit.ScriptModule:
    return scripted()


def scripted() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(Net().eval())


def trained(script: torch.jit.ScriptModule, method: str | FakeQuantizer, **options: Any) -> Any:
    """The model after three steps."""
    qat = jit_passes.prepare_qat(script, fake_quantizer=method, **options).train()
    groups = (jit_passes.model_parameters(qat), jit_passes.quantization_parameters(qat))
    optimizer = torch.optim.SGD([{"params": group} for group in groups], 1e-3)
    for x in batches():
        optimizer.zero_grad()
        qat(x).square().mean().backward()
        optimizer.step()
    return qat.eval()


def check_parity(qat: torch.jit.ScriptModule, lowered: torch.jit.ScriptModule) -> None:
    """Equal to within the step by which rounded biases may differ."""
    found = jit_passes.parity(qat, lowered, batches())
    assert not found.unmatched and len(found.rows) > 10, str(found)
    assert found.largest_steps <= 1, str(found)


def scales_of(qat: torch.jit.ScriptModule) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in jit_passes.named_quantization_parameters(qat)}


def weights(reference: torch.jit.ScriptModule) -> dict[str, Any]:
    found = jit_passes.encodings_of(reference).parameters
    return {encoding.name: encoding for encoding in found if encoding.name.endswith("weight")}


def elsewhere(code: str, *files: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that has the files as `sys.argv[1:]` in a process of its own."""
    return run_code(code, *files, cwd=ROOT, environment={"PYTHONPATH": str(ROOT)})


# ------------------------------------------------------------------------------------- target


def test_a_target_goes_all_the_way(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """By instance, by name and by a quantizer of its own; in files between the stages."""
    data, found = batches(), []
    quantizer = BackendQuantizer(Mill())
    for options in ({"target": Mill()}, {"target": "mill"}, {"quantizer": quantizer}):
        prepared = jit_passes.prepare(script, **options)
        assert torch.equal(prepared(data[0]), script(data[0]))
        jit_passes.calibrate(prepared, data, progress=False)
        torch.jit.save(prepared, tmp_path / "prepared.pt")
        reference = jit_passes.convert(torch.jit.load(tmp_path / "prepared.pt"))
        torch.jit.save(reference, tmp_path / "reference.pt")
        reference = torch.jit.load(tmp_path / "reference.pt")
        for target in ("auto", "mill", Mill()):
            lowered = jit_passes.lower(reference, target)
            torch.testing.assert_close(lowered(data[0]), reference(data[0]), rtol=0, atol=0)
            found.append(lowered(data[0]))
    assert all(torch.equal(found[0], output) for output in found)
    assert found[0].abs().max() > 0.01
    assert (found[0] - script(data[0])).abs().max() < 0.05  # steps of 6 bits
    kinds = {node.kind() for node in lowered.graph.nodes()}
    assert "jit_passes::lookup_table" in kinds
    rows = {row.name: (row.dtype, row.reason) for row in jit_passes.coverage(lowered)}
    assert rows["wide:conv2d"] == ("float", "the mill has no dilation")
    assert [name for name, (dtype, _) in rows.items() if dtype == "int8"] == [
        *("first:conv2d", "second:conv2d", "last:linear")
    ]


def test_the_numbers_of_a_target(script: torch.jit.ScriptModule) -> None:
    """The codes that it has, and the scales that follow from them."""
    reference = jit_passes.convert(
        jit_passes.calibrate(jit_passes.prepare(script, target="mill"), batches(), progress=False)
    )
    model = dict(script.named_parameters())
    found = weights(reference)
    assert sorted(found) == ["first.weight", "last.weight", "second.weight"]
    for name, encoding in found.items():
        largest = model[name].detach().abs().flatten(1).amax(1).double()
        scale = torch.tensor(encoding.scale, dtype=torch.float64)
        torch.testing.assert_close(scale, largest / 31, rtol=1e-6, atol=0)
        assert (encoding.quant_min, encoding.quant_max, encoding.bits) == (-31, 31, 6)
    for encoding in jit_passes.encodings_of(reference).activations:
        assert (encoding.quant_min, encoding.quant_max) == (-127, 127)
        assert set(encoding.zero_point) == {0}


def test_a_target_says_what_it_cannot(script: torch.jit.ScriptModule) -> None:
    """To quantizers, configurations and reports, from the same data."""
    shown = str(Mill())
    assert shown.startswith("target 'mill'\n  activations  int8 [-127, 127]; per_tensor_symmetric")
    assert "by default int8 [-127, 127]  per_tensor_symmetric" in shown
    assert "aten::max_pool2d  shared" in shown
    reasons = {row.name: row.reason for row in jit_passes.inspect(script, target="mill")}
    assert reasons["wide:conv2d"] == "the mill has no dilation"
    config = {
        "version": 1,
        "rules": [
            {"module": "first", "weight": {"bits": 8}},
            {"module": "second", "input": {"dtype": "uint8"}},
        ],
    }
    with pytest.warns(jit_passes.JitPassesWarning, match="stay in float") as seen:
        jit_passes.prepare(script, target="mill", config=config)
    message = str(seen[0].message)
    assert "its weight is to be int8 [-127, 127], and the target has int8 [-31, 31]" in message
    assert "its input is to be uint8 [0, 255], and the target has int8 [-127, 127]" in message

    class Wrong(Quantizer):
        target = "mill"

        def annotate(self, graph: jit_passes.GraphView) -> Annotations:
            node = next(node for node in graph.nodes if node.kind == "aten::conv2d")
            operands = {node.inputs[0]: QuantizationSpec("uint8")}
            annotations = Annotations()
            annotations[node] = QuantizationAnnotation(operands)
            return annotations

    with pytest.raises(JitPassesError, match=r"'x -> first:conv2d' is to be uint8 .* 'mill' has"):
        jit_passes.prepare(script, quantizer=Wrong())


@pytest.mark.filterwarnings("ignore::jit_passes.JitPassesWarning")  # of what a form cannot say
def test_a_target_of_a_trained_model(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Parity, strip and export of a model that trained for it."""
    qat = trained(script, "lsq", target="mill")
    torch.jit.save(qat, tmp_path / "qat.pt")
    qat = torch.jit.load(tmp_path / "qat.pt")
    lowered = jit_passes.lower(jit_passes.convert(qat))
    check_parity(qat, lowered)
    _, encodings = jit_passes.strip(qat)
    jit_passes.export_calibration(encodings, tmp_path / "mill.json", format="aimet")
    assert (tmp_path / "mill.json").stat().st_size > 500


LOWER = """
import sys, torch, jit_passes
IMPORT
reference = torch.jit.load(sys.argv[1])
torch.jit.save(jit_passes.lower(reference), sys.argv[2])
"""


def test_a_target_in_another_process(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """With options of its own; where its module is not imported, an error names it."""
    x = batches()[0]
    mill = Mill(tables=False, corners=(3, 5))
    prepared = jit_passes.prepare(script, target=mill)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [x], progress=False))
    torch.jit.save(reference, tmp_path / "reference.pt")
    files = (tmp_path / "reference.pt", tmp_path / "lowered.pt")
    refused = elsewhere(LOWER.replace("IMPORT", ""), *files)
    assert (
        refused.returncode != 0
        and (
            "the target 'mill', the class Mill of the module tests.third_party.mill, "
            "which this process does not have: import tests.third_party.mill first"
        )
        in refused.stderr
    )
    done = elsewhere(LOWER.replace("IMPORT", "import tests.third_party.mill"), *files)
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.jit.load(files[1])(x), jit_passes.lower(reference, mill)(x))
    with pytest.raises(JitPassesError, match=r"for Mill\(tables=False, corners=\(3, 5\)\), not"):
        jit_passes.lower(reference, Mill())


DOCUMENTED = """
import re, sys, torch, jit_passes
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from torch import nn

for name, word in (("targets.md", "class Mill"), ("configuration.md", "class Middle")):
    blocks = re.findall("```python\\n(.*?)```", Path("docs", name).read_text(), re.DOTALL)
    exec(next(block for block in blocks if word in block))
model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())
config = {"version": 1, "global": {"input": {"calibration": {"method": "middle", "share": 0.25}}}}
x = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)
found = jit_passes.quantize_script(model, [x], target="mill", config=config, progress=False)
print(jit_passes.coverage(found)[0].dtype)
nodes = jit_passes.GraphView.of(found).nodes
scales = [n.inputs[1].constant for n in nodes if n.kind.endswith("::quantize")]
print(round(scales[0] * 127, 6))
"""


def test_the_documented_classes_work() -> None:
    """A target and a calibration method as docs/ has them, in a process of their own."""
    done = elsewhere(DOCUMENTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["int8", "0.25"]


# ------------------------------------------------------------------------------------- observer


def test_an_observer_finds_its_range(script: torch.jit.ScriptModule) -> None:
    """By name in a configuration, as the order statistics of the data say it."""
    config = {
        "version": 1,
        "global": {"input": {"calibration": {"method": "core_range", "share": 0.7}}},
    }
    data = batches()
    prepared = jit_passes.prepare(script, target="mill", config=config)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, data, progress=False))
    magnitudes = torch.cat(data).abs().flatten().sort().values
    wanted = float(magnitudes[math.ceil(0.7 * len(magnitudes)) - 1])
    width = 2.0 ** math.ceil(math.log2(2 * float(magnitudes[-1]) / 2048) + 1)
    first = next(e for e in jit_passes.encodings_of(reference).activations if e.name == "x")
    assert wanted <= first.scale[0] * 127 * (1 + 1e-6) and first.scale[0] * 127 < wanted + width
    assert wanted < 0.3 * float(magnitudes[-1])  # min_max would be far from it


CONVERT = """
import sys, torch, jit_passes
IMPORT
prepared = torch.jit.load(sys.argv[1])
torch.jit.save(jit_passes.convert(prepared), sys.argv[2])
"""


def converted_elsewhere(
    model: torch.jit.ScriptModule, folder: Path, module: str, what: str
) -> Path:
    """The file that another process makes, which is refused without the module."""
    files = (folder / "model.pt", folder / "reference.pt")
    torch.jit.save(model, files[0])
    refused = elsewhere(CONVERT.replace("IMPORT", ""), *files)
    assert refused.returncode != 0
    assert f"{what} of the module {module}, which this process does not have" in refused.stderr
    done = elsewhere(CONVERT.replace("IMPORT", f"import {module}"), *files)
    assert done.returncode == 0, done.stderr
    return files[1]


def test_an_observer_goes_all_the_way(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """In Python, from a profile, from a file in another process; lowered for stock."""
    data = batches()
    mine = TensorOptions(calibration=CoreRange(0.8, (1.0, 1.5), bins=512))
    quantizer = Stock().quantizer().set_global(LayerOptions(input=mine, output=mine))
    prepared = jit_passes.prepare(script, quantizer=quantizer)
    jit_passes.calibrate(prepared, data, progress=False)
    what = "the calibration method 'core_range', the class CoreRange"
    file = converted_elsewhere(prepared, tmp_path, "tests.third_party.core_range", what)
    reference = jit_passes.convert(prepared)
    outputs = reference(data[0])
    assert torch.equal(torch.jit.load(file)(data[0]), outputs)
    assert (jit_passes.lower(reference)(data[0]) - outputs).abs().max() < 0.05
    profile = jit_passes.profile(script, data, progress=False)
    filled = jit_passes.fill(jit_passes.prepare(script, quantizer=quantizer), profile)
    assert torch.equal(jit_passes.convert(filled)(data[0]), outputs)
    default = jit_passes.quantize_script(script, data, progress=False)
    assert not torch.equal(default(data[0]), outputs)


# ------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("method", ["coarse_steps", "coarse", CoarseSteps(2.0)], ids=str)
def test_a_method_trains(
    script: torch.jit.ScriptModule, method: str | FakeQuantizer, tmp_path: Path
) -> None:
    """By name, alias and instance: trained, saved, converted, lowered, stripped, exported."""
    ours = jit_passes.prepare_qat(scripted(), fake_quantizer=LSQ(), **TRAINED)
    theirs = jit_passes.prepare_qat(scripted(), fake_quantizer=method, **TRAINED)
    scales = dict(jit_passes.named_quantization_parameters(theirs))
    for name, scale in jit_passes.named_quantization_parameters(ours):
        factor = 2 if "weight_scale" in name else 1
        torch.testing.assert_close(scales[name], factor * scale, rtol=1e-6, atol=0)
    qat = trained(script, method, **TRAINED)
    torch.jit.save(qat, tmp_path / "qat.pt")
    qat = torch.jit.load(tmp_path / "qat.pt")
    reference = jit_passes.convert(qat)
    lowered = jit_passes.lower(reference)
    check_parity(qat, lowered)
    _, encodings = jit_passes.strip(qat)
    assert encodings == jit_passes.encodings_of(qat)
    learned = {e.name: e.scale for e in encodings.parameters if e.name.endswith("weight")}
    for name, scale in learned.items():
        kept = scales_of(qat)[f"{name}_scale"].double()
        torch.testing.assert_close(torch.tensor(scale, dtype=torch.float64), kept)


def test_a_method_in_another_process(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    x = batches()[0]
    qat = trained(script, CoarseSteps(3.0))
    what = "the training method 'coarse_steps', the class CoarseSteps"
    file = converted_elsewhere(qat, tmp_path, "tests.third_party.coarse_steps", what)
    assert torch.equal(torch.jit.load(file)(x), jit_passes.convert(qat)(x))


def test_what_a_method_says_of_its_parameters_holds(script: torch.jit.ScriptModule) -> None:
    """Also for operators of ours: the operator does not decide whose `qparams` is asked."""
    qat = trained(script, Twice(), target="reference", bits=8)
    encodings = jit_passes.encodings_of(qat)
    learned = [e for e in encodings.parameters if e.name.endswith("weight")]
    assert len(learned) == 4
    for encoding in learned:
        trained_scale = scales_of(qat)[f"{encoding.name}_scale"].double()
        found = torch.tensor(encoding.scale, dtype=torch.float64)
        torch.testing.assert_close(found, 2 * trained_scale)


def test_a_method_that_does_not_sign_its_places(script: torch.jit.ScriptModule) -> None:
    """Nobody could say what its operators have come to."""

    @dataclass(frozen=True)
    class Nameless(LSQ):
        def at(self, place: TrainingPlace) -> Operator:
            return LSQ.operator(self, place)

    qat = trained(script, Nameless(), **TRAINED)
    with pytest.raises(JitPassesError, match=r"train_lsq at .* does not say which method trained"):
        jit_passes.convert(qat)


# ------------------------------------------------------------------------------------- names


def test_names_are_registered_once() -> None:
    """A class may be defined anew, as in a notebook; another class may not take its name."""
    kinds: list[tuple[type[Any], str, type[Any]]] = [
        (Target, "mill", Mill),
        (Observer, "core_range", CoreRange),
        (FakeQuantizer, "coarse", CoarseSteps),
    ]
    for base, name, kind in kinds:
        assert base.registered[name] is kind
        message = f"two {base.noun}s are called '{name}', .*:{kind.__name__} and .*<locals>.Other"
        with pytest.raises(JitPassesError, match=message):
            type(
                "Other", (base,), {"name": name, "__module__": __name__,
                                   "__qualname__": "test.<locals>.Other"},
            )  # fmt: skip
        assert base.registered[name] is kind
    again = [_local() for _ in range(2)]
    assert Observer.registered["local_range"] is again[1]
    assert observer_of("local_range") == again[1]()


def _local() -> type[Observer]:
    @dataclass(frozen=True)
    class Local(MinMax):
        name: ClassVar[str] = "local_range"

    return Local


def test_a_class_without_a_name_has_its_path(script: torch.jit.ScriptModule) -> None:
    """The class does not go by the name of the class that it is derived from."""
    data = batches()

    @dataclass(frozen=True)
    class Half(MinMax):
        def find_range(self, state: Any, *grid: Any) -> tuple[float, float]:
            low, high = super().find_range(state, *grid)
            return low / 2, high / 2

    assert Half.name == f"{__name__}:{Half.__qualname__}"
    scales = []
    for observer in (MinMax(), Half()):
        mine = LayerOptions(input=TensorOptions(calibration=observer))
        quantizer = BackendQuantizer(Mill()).set_global(mine)
        prepared = jit_passes.prepare(script, quantizer=quantizer)
        reference = jit_passes.convert(jit_passes.calibrate(prepared, data, progress=False))
        found = jit_passes.encodings_of(reference).activations
        scales.append(next(e.scale[0] for e in found if e.name == "x"))
    assert scales[1] == pytest.approx(scales[0] / 2, rel=1e-6)


def test_unknown_names_and_options() -> None:
    """Each error lists what there is."""
    with pytest.raises(JitPassesError, match="no target 'mil': did you mean 'mill'"):
        resolve_target("mil")
    with pytest.raises(
        JitPassesError, match=r"'mill', .*'reference', .*'stock'.*A target is 'auto'"
    ):
        resolve_target("nothing of the kind")
    with pytest.raises(JitPassesError, match=r"stock has no parameter 'engin': .*'engine'"):
        Target.make("stock", engin="x86")
    with pytest.raises(JitPassesError, match="tables of mill is True or False, not 'yes'"):
        Target.make("mill", tables="yes")
    with pytest.raises(ValueError, match=r"core_range has no parameter 'shre': .*'share'"):
        observer_of("core_range", shre=1)
    with pytest.raises(JitPassesError, match="no training method 'corse': did you mean 'coarse'"):
        fake_quantizer_of("corse")
    with pytest.raises(JitPassesError, match="made for a Target or a Capability, not for 'stock'"):
        BackendQuantizer("stock")
    with pytest.raises(ValueError, match="two bins"):
        observer_of("core_range", bins=1)
    assert {"mill", "stock", "reference"} <= set(all_targets)


def test_options_are_the_fields() -> None:
    """Equal targets have equal options, and are made of them."""
    for target in (Mill(False), Stock(), Reference(lookup_tables=False)):
        assert Target.make(target.name, **target.options) == target
        assert eval(repr(target), {type(target).__name__: type(target)}) == target
        assert replace(target) == target and hash(replace(target)) == hash(target)
    assert Stock(integer_pools=True) != Stock()
    assert Stock(integer_pools=True).capability is Stock(integer_pools=True).capability
    assert issubclass(CoreRange, HistogramObserver)


# ----------------------------------------------------------------------------------- compiler


def compiled_kinds(model: torch.jit.ScriptModule) -> list[set[str]]:
    """The operators of each compiled region."""
    names = [name for name, _ in model.named_children() if name.startswith("region_")]
    return [{node.kind() for node in getattr(model, name).compiled.graph.nodes()} for name in names]


def test_a_compiler_goes_all_the_way(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Its regions run, are saved with the model, counted, compared and copied."""
    data = batches()
    lowered = jit_passes.quantize_script(script, data, target="kiln", progress=False)
    prepared = jit_passes.calibrate(jit_passes.prepare(script, target=Kiln()), data, progress=False)
    reference = jit_passes.convert(prepared)
    regions = jit_passes.partition(reference, "kiln").regions
    assert len(compiled_kinds(lowered)) == len(regions) == 3
    for kinds in compiled_kinds(lowered):
        assert "jit_passes::quantize" in kinds  # their weights are in float once more
        assert "jit_passes::dequantize_per_channel" not in kinds
    rows = {row.name: (row.dtype, row.reason) for row in jit_passes.coverage(lowered)}
    assert rows["first:conv2d"] == rows["second:conv2d"] == rows["last:linear"] == ("int8", "")
    assert rows["wide:conv2d"] == ("float", "the kiln has no dilation")
    torch.jit.save(lowered, tmp_path / "model.pt")
    expected = reference(data[0])
    for model in (lowered, torch.jit.load(tmp_path / "model.pt"), copy.deepcopy(lowered)):
        for _ in range(3):  # as it is interpreted, profiled and optimized
            assert torch.equal(model(data[0]), expected)
        assert jit_passes.coverage(model) == jit_passes.coverage(lowered)
        assert len(compiled_kinds(model)) == 3
    assert torch.equal(torch.jit.freeze(lowered)(data[0]), expected)
    passed = jit_passes.run_pass("remove_dead_code", lowered)  # works on a copy that is inlined
    assert compiled_kinds(passed) == compiled_kinds(lowered)
    assert torch.equal(passed(data[0]), expected)
    found = elsewhere(
        "import sys, torch, jit_passes; print(torch.jit.load(sys.argv[1])(torch.ones(1, 3, 8, 8)))",
        tmp_path / "model.pt",
    )
    assert found.stdout.strip() == str(lowered(torch.ones(1, 3, 8, 8))), found.stderr


def test_regions_that_a_compiler_leaves(script: torch.jit.ScriptModule) -> None:
    """Regions are part of the model as they were, and its report says so."""
    data = batches()
    for smallest, left in ((2, 3), (9, 3)):
        target = Kiln(smallest=smallest)
        lowered = jit_passes.quantize_script(script, data, target=target, progress=False)
        reasons = [row.reason for row in jit_passes.coverage(lowered).float]
        why = "not fused: the target 'kiln' has not compiled its region"
        assert reasons.count(why) == left
        assert not compiled_kinds(lowered)
        kinds = {node.kind for node in jit_passes.GraphView.of(lowered).nodes}
        assert "prim::CallMethod" not in kinds


def test_parity_of_compiled_regions(script: torch.jit.ScriptModule, tmp_path: Path) -> None:
    """Their results are compared, and those of a wrong compiler are found."""
    qat = jit_passes.prepare_qat(script, target="kiln").train()
    qat(batches()[0])
    reference = jit_passes.convert(qat.eval())
    lowered = jit_passes.lower(reference)
    torch.jit.save(lowered, tmp_path / "model.pt")
    for model in (lowered, torch.jit.load(tmp_path / "model.pt")):
        found = jit_passes.parity(qat, model, batches())
        assert found.equal, str(found)
        names = [row.name for row in found.rows if row.kind == "activation"]
        regions = jit_passes.partition(reference, "kiln").regions
        given = {value.name for region in regions for value in region.outputs}
        assert given - {"max_pool2d"} == set(names)  # rearranged: it is no place
        assert "first.weight -> first:conv2d" in found.unmatched
    through = jit_passes.partition(reference, "kiln").model
    for model in (through, reloaded(through, tmp_path)):
        found = jit_passes.parity(qat, model, batches())
        assert found.equal and not found.unmatched, str(found)
    small = torch.jit.script(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    )
    qat = jit_passes.prepare_qat(small, target=Wrong()).train()
    qat(batches()[0])
    found = jit_passes.parity(qat, jit_passes.lower(jit_passes.convert(qat.eval())), batches())
    assert found.first is not None and found.first.name == "2:conv2d", str(found)
    assert found.first.own_steps == pytest.approx(2, abs=0.01)


class Beside(nn.Module):
    """A region whose result is two steps too large."""

    def __init__(self, region: torch.jit.ScriptModule) -> None:
        super().__init__()
        *_, last = (
            n for n in jit_passes.GraphView.of(region).nodes if n.kind.endswith("dequantize")
        )
        self.region, self.error = region, 2 * last.inputs[1].constant

    def forward(self, x: Tensor) -> Tensor:
        return self.region(x) + self.error


@dataclass(frozen=True)
class Wrong(Kiln):
    """A compiler that is wrong, or not even that."""

    name: ClassVar[str] = "wrong"
    returns: str = "beside"

    def compile(self, region: torch.jit.ScriptModule) -> Any:
        if self.returns == "beside":
            return torch.jit.script(Beside(region))
        if self.returns == "two":
            return torch.jit.script(torch.nn.Bilinear(2, 2, 2))
        if self.returns == "packed":
            packed = torch.ops.quantized.linear_prepack
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return packed(torch.quantize_per_tensor(torch.ones(2, 2), 1, 0, torch.qint8), None)
        return region.forward


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("method", "compiled a region to ScriptMethod: return a ScriptModule, an object"),
        (
            "two",
            r"compiled has forward\(Tensor, Tensor\) -> Tensor, and the region forward\(Tensor",
        ),
        ("packed", "LinearPackedParamsBase, has no method run"),
    ],
)
def test_what_a_compiler_must_return(
    script: torch.jit.ScriptModule, returns: str, message: str
) -> None:
    with pytest.raises(JitPassesError, match=message):
        jit_passes.quantize_script(script, batches(), target=Wrong(returns=returns), progress=False)


def reloaded(model: torch.jit.ScriptModule, folder: Path) -> torch.jit.ScriptModule:
    torch.jit.save(model, folder / "again.pt")
    return torch.jit.load(folder / "again.pt")
