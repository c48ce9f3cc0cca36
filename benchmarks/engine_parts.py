"""Whether an engine computes each operator of a quantized model as the reference model does.

Results of deep networks differ by more than any operator does: a value half way between two codes
goes either way, and later layers amplify the difference. So a file is cut at each quantized value.
Each part gets the reference model's codes, runs in the engine alone, and its codes are compared
with the reference model's. Usage, from the repository root, with onnxruntime, openvino, torchvision
and transformers installed::

    python -m benchmarks.engine_parts --models bert swin --engines openvino
    python -m benchmarks.engine_parts --models unet inception --batch 1

A code is at a tie if the value before rounding is within 0.001 of a step of the border between its
code and the engine's. The first columns in dB compare the model's results with the reference
model's: in the engine, and in ONNX Runtime without optimization. SQNR compares those of the engine,
and of the reference model, with the float model's. Equal is what `benchmarks.exports` calls so.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

import jit_passes
from benchmarks import exports, report
from benchmarks.measure import sqnr_db
from benchmarks.models import ModelSpec
from benchmarks.models.whole import EVERY
from benchmarks.runtimes.base import first_line
from jit_passes.report.conformance.onnx_runtime import shown_values
from jit_passes.report.conformance.subject import Subject

_TIE = 1e-3  # of a step
_FLOATS = 1e-5  # of the largest value
ENGINES = {"onnxruntime": exports.InOnnxRuntime, "openvino": exports.InOpenVino}
# Operators that are not told of a part.
_MOVED = ("Constant", "Cast", "QuantizeLinear", "DequantizeLinear")
_HEADER = (
    *("model", "engine", "parts", "codes", "at ties", "other parts", "in the engine, dB"),
    *("not optimized, dB", "SQNR, dB", "SQNR of the reference, dB", "equal"),
)

Arrays = Mapping[str, Any]


class File:
    """A file of ONNX, and parts of it.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._onnx, self.path = importlib.import_module("onnx"), path
        self.model = self._onnx.load(str(path))
        graph = self.model.graph
        self.results = [result.name for result in graph.output]
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {value: node for node in graph.node for value in node.output}
        self._places = {id(node): place for place, node in enumerate(graph.node)}

    def codes(self, subject: Subject, args: tuple[Any, ...]) -> dict[str, Any]:
        """Return the reference model's codes by the names that the file has for them."""
        shown = shown_values(self.path, subject.report.values)
        found = subject.watched()((args, {}))
        return {
            shown[name]: codes.numpy().astype(self._dtype(shown[name]))
            for name, codes in found.items()
            if name in shown
        }

    def _dtype(self, value: str) -> Any:
        return self._constant(self._makers[value].input[2]).dtype

    def rounded(self, value: str) -> tuple[str, float, int]:
        """Return the operand, the scale and the zero point of a quantized value."""
        node = self._makers[value]
        scale, zero_point = (self._constant(name) for name in node.input[1:3])
        return node.input[0], float(scale), int(zero_point)

    def _constant(self, name: str) -> Any:
        if name in self._initializers:
            return self._onnx.numpy_helper.to_array(self._initializers[name])
        node = self._makers[name]
        if node.op_type == "Constant":
            return self._onnx.numpy_helper.to_array(node.attribute[0].t)
        return self._constant(node.input[0])  # of a Cast

    def part(self, result: str, values: Arrays) -> tuple[Any, list[str]]:
        """Return a model that computes a value of those given, and the kinds of its operators."""
        nodes: dict[int, Any] = {}
        inputs, initializers, pending, seen = [], [], [result], {""}
        while pending:
            if (value := pending.pop()) in seen:
                continue
            seen.add(value)
            if value in self._initializers:
                initializers.append(self._initializers[value])
            elif value in values and value != result:
                inputs.append(value)
            else:
                node = self._makers[value]
                nodes[self._places[id(node)]] = node
                pending += node.input
        helper = self._onnx.helper
        described = {
            value: helper.make_tensor_value_info(
                value,
                helper.np_dtype_to_tensor_dtype(values[value].dtype),
                values[value].shape,
            )
            for value in (*inputs, result)
        }
        ordered = [nodes[place] for place in sorted(nodes)]
        graph = helper.make_graph(
            ordered,
            "part",
            [described[value] for value in inputs],
            [described[result]],
            initializers,
        )
        opsets, version = self.model.opset_import, self.model.ir_version
        made = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        return made, [node.op_type for node in ordered if node.op_type not in _MOVED]

    def computed(self, model: Any, given: Arrays, value: str) -> Any:
        """Return a value of a part or the whole file, without optimization.

        Pairs of quantize and dequantize that make OpenVINO add within a convolution round nothing
        there, and are left out.
        """
        runtime = importlib.import_module("onnxruntime")
        plain = _without_pairs(model)
        if value not in {result.name for result in plain.graph.output}:
            plain.graph.output.append(self._onnx.ValueInfoProto(name=value))
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = runtime.InferenceSession(
            plain.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feed = {argument.name: given[argument.name] for argument in session.get_inputs()}
        return session.run([value], feed)[0]


def _is_within_sum(node: Any) -> bool:
    """Say whether a quantize is one that `jit_passes.export.onnx.sums` writes."""
    return bool(node.input[1] == f"{node.input[0]}:scale")


def _without_pairs(model: Any) -> Any:
    """Return a copy without the pairs of quantize and dequantize that mark sums."""
    made = copy.deepcopy(model)
    quantizes = [node for node in made.graph.node if node.op_type == "QuantizeLinear"]
    codes = {node.output[0]: node.input[0] for node in quantizes if _is_within_sum(node)}
    decoded = {
        node.output[0]: codes[node.input[0]]
        for node in made.graph.node
        if node.input[:1] and node.input[0] in codes
    }
    kept = [node for node in made.graph.node if node.output[0] not in {*codes, *decoded}]
    for node in kept:
        for place, value in enumerate(node.input):
            node.input[place] = decoded.get(value, value)
    del made.graph.node[:]
    made.graph.node.extend(kept)
    return made


@dataclass
class Count:
    """Results of parts: codes that differ at ties, and parts that differ by more."""

    parts: int = 0
    codes: int = 0
    ties: int = 0
    others: list[str] = field(default_factory=list)


def count(file: File, subject: Subject, args: tuple[Any, ...], engine: Any) -> Count:
    """Run each part in an engine, which is a function of a path and of arrays by name.

    Args:
        file: of the model.
        subject: the reference model.
        args: of the model.
        engine: returns the first result of a file.
    """
    given = {name: value.numpy() for name, value in subject.named((args, {})).items()}
    values, found = given | file.codes(subject, args), Count()
    [result] = exports.called(subject.model, args)
    values.setdefault(file.results[0], result.numpy())
    with tempfile.TemporaryDirectory() as folder:
        for value in [name for name in values if name not in given]:
            part, kinds = file.part(value, values)
            path = Path(folder) / "part.onnx"
            path.write_bytes(part.SerializeToString())
            inputs = {argument.name: values[argument.name] for argument in part.graph.input}
            ours, expected = engine(path, inputs), values[value]
            found.parts += 1
            said = ""
            if expected.dtype.kind in "iu":
                operand, scale, zero_point = file.rounded(value)
                exact = file.computed(part, inputs, operand)
                apart = ours != expected
                steps = exact[apart].astype(numpy.float64) / scale + zero_point
                # Of the two codes the one that is farther from the value.
                beyond = numpy.maximum(abs(ours[apart] - steps), abs(expected[apart] - steps)) - 0.5
                found.codes += ours.size
                found.ties += int((beyond < _TIE).sum())
                if (beyond >= _TIE).any():
                    said = f"{(beyond >= _TIE).sum()} codes, up to {beyond.max():.2g} steps"
            else:
                largest = abs(expected).max(initial=1e-9)
                beyond = abs(ours - expected).max(initial=0) / largest
                if not beyond < _FLOATS:
                    said = f"{beyond:.1e} of the largest number"
            if said:
                found.others.append(f"{value}: {said}: {', '.join(kinds)}")
    return found


def run(kind: type[exports.OnnxFile], path: Path, given: Arrays) -> Any:
    """Return the first result of a file in an engine."""
    loaded = kind(None, None, "", path)
    return loaded({name: torch.from_numpy(array) for name, array in given.items()})[0].numpy()


def row(name: str, spec: ModelSpec, engine: str, batch: int) -> tuple[list[str], list[str]]:
    """Return a row of the table, and the parts that differ by more than a tie."""
    subject = exports.specified(name, spec, batch)
    model = subject.make()
    quantized, allowed = exports.quantized(subject, model, engine)
    if quantized is None:
        raise ValueError("nothing is quantized")
    args = subject.arguments(1)
    expected = exports.called(copy.deepcopy(quantized), args)[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        jit_passes.export_onnx(quantized, path, args)
        file, call = File(path), partial(run, ENGINES[engine])
        [argument] = file.model.graph.input
        arguments = {argument.name: args[0].numpy()}
        plain = file.computed(file.model, arguments, file.results[0])
        results = (call(path, arguments), plain)
        found = count(file, Subject.of(quantized, subject.method), args, call)
    tensors = [torch.from_numpy(each) for each in results]
    floats = exports.called(copy.deepcopy(model), args)[0]
    decibels = [f"{sqnr_db(expected, each):.1f}" for each in tensors]
    decibels += [f"{sqnr_db(floats, each):.1f}" for each in (tensors[0], expected)]
    equal = exports.apart(tensors[:1], [expected]) <= allowed
    counts = (found.parts, found.codes, found.ties, len(found.others))
    return [name, engine, *map(str, counts), *decibels, "yes" if equal else "no"], found.others


def main(arguments: Sequence[str] | None = None) -> None:
    """Count what the command line asks for, and print a table and the parts that differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_parts", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--batch", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, every = [], []
    for name in options.models:
        for engine in options.engines:
            try:
                cells, others = row(name, EVERY[name], engine, options.batch)
            except Exception as error:  # whatever an engine raises, the others are still counted
                cells = [name, engine, *[report.MISSING] * (len(_HEADER) - 2)]
                others = [first_line(error)]
            report.progress("; ".join([" ".join(cells), *others]))
            rows.append(cells)
            every += [f"{name}, {engine}, {other}" for other in others]
    print(report.table(_HEADER, rows))
    print("\n".join(every))


if __name__ == "__main__":
    main()
