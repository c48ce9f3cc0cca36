"""Files of ONNX with QuantizeLinear and DequantizeLinear.

`torch.onnx` translates the program of `to_exported_program`; the operators that quantize are
translated in `operators.py`, since it has none of them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from ..._version import __version__
from ...errors import ArgumentError, JitPassesError, not_among, shortened, warn
from ...files import check_writable
from ...logs import decomposing, silenced
from ...stages.module import Report, quantized_part
from ...targets import QONNX, Engine, OpenVINO, Target
from ..origin import origin_of
from ..program import to_exported_program
from .dynamic import check_chosen
from .failures import reason_of
from .float_operators import spell_out_clamps
from .fold import fold_weights
from .means import keep_means
from .names import check_result_names, name_values
from .operators import translations
from .parts import keep_shapes
from .pools import spell_out_pools
from .qonnx import codes_of_weights, write_quant
from .reductions import keep_reductions
from .results import spell_out_results
from .roundings import keep_roundings
from .saving import save
from .shared import part_weights
from .sums import add_within_convolutions

FORMS = ("qdq", "qonnx")
FIRST, LAST = 18, 23  # opsets
# Messages about operators of torchvision and results None that are left out, and about operators
# that are not folded.
_LOGGERS = (
    "torch.onnx._internal.exporter._registration",
    "torch.onnx._internal.exporter._core",
    "onnx_ir.passes.common.initializer_deduplication",
    "onnxscript.optimizer._constant_folding",
)


def export_onnx(
    model: torch.jit.ScriptModule,
    path: str | os.PathLike[str],
    example_inputs: Any,
    dynamic_shapes: Any = None,
    *,
    opset: int = 21,
    output_names: Sequence[str] | None = None,
    form: str | None = None,
    method: str = "forward",
) -> None:
    """Write a float model, or a reference model with its quantization, as an ONNX file.

    Inputs have the names of the method's arguments, values their names in reports and encodings,
    and initializers the paths of parameters. An open size is called as its `Dim`.

    Args:
        model: as `to_exported_program` takes it.
        path: the file. Weights of 2 GB and more are in a file beside it, `<path>.data`.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        dynamic_shapes: the sizes that are open, as `torch.export.export` takes them; None for none.
        opset: of the file, 18 to 23. Codes of 16 bits and groups need 21.
        output_names: names of the results, one for each, all different, and none an argument's;
            None for the names of their values. Results that are text or None have none.
        form: "qdq" for QuantizeLinear and DequantizeLinear, "qonnx" for the operator `Quant` of
            QONNX; None for the form of the model's target: "qonnx" for the target `qonnx`, "qdq"
            for all others.
        method: the method to export.

    Raises:
        JitPassesError: onnx or onnxscript is not installed; the model is for an engine that reads
            no ONNX; `to_exported_program` refuses it; ONNX has no form for an operator, or for
            scales that the model chooses as it runs; or the opset or the form is unknown.
        ArgumentError: a name of a result is an argument's, occurs twice, or is no text; or there
            are more or fewer names than results.
        JitPassesError: `onnx.checker` refuses the file; or it cannot be written,
            which is an OSError too.

    Warns:
        JitPassesWarning: the model changes its buffers, and a file has no state from call to call.
    """
    if type(opset) is not int or opset not in range(FIRST, LAST + 1):  # a bool is none
        raise ArgumentError(f"opset is a whole number from {FIRST} to {LAST}, not {opset!r}")
    if form is not None and form not in FORMS:
        raise ArgumentError(not_among("form", form, FORMS))
    check_writable(path)
    _imported("onnx")
    _imported("onnxscript")
    target = _target_of(quantized_part(model, method))
    program = to_exported_program(model, example_inputs, dynamic_shapes, method=method)
    check_result_names(program, output_names)
    check_chosen(program)
    spell_out_clamps(program)
    spell_out_pools(program)
    spell_out_results(program)
    try:
        with ExitStack() as quiet:
            for name in _LOGGERS:
                quiet.enter_context(silenced(name))
            quiet.enter_context(decomposing())
            written: Any = torch.onnx.export(
                program,
                opset_version=opset,
                output_names=output_names,
                custom_translation_table=translations(program, opset),
                verbose=False,
                optimize=False,
            )
            fold_weights(written.model)
            written.optimize()
    except Exception as error:
        reason = reason_of(error, program)
        raise JitPassesError(f"the model is not exported to ONNX: {reason}") from error
    _warn_of_state(written.exported_program)
    written.rename_axes(_axes(program, dynamic_shapes))
    name_values(written, fixed=output_names or ())
    if (form or ("qonnx" if target is QONNX else "qdq")) == "qonnx":
        write_quant(written.model, codes_of_weights(program))
    else:
        keep_roundings(written.model)
        if target is OpenVINO:
            keep_means(written.model)
            part_weights(written.model)
            add_within_convolutions(written.model)
            keep_reductions(written.model)
            keep_shapes(written.model)
    _describe(written.model, origin_of(model, method))
    save(written, path)


def _warn_of_state(program: torch.export.ExportedProgram) -> None:
    """Warn of buffers that a model changes: a file has no state from call to call."""
    if changed := program.graph_signature.buffers_to_mutate:
        names = shortened([f"'{name}'" for name in sorted(set(changed.values()))])
        warn(
            f"the model changes its {names}, and a file of ONNX begins each call with the same "
            "state: give the state as an argument and return it, if calls build on one another"
        )


def _target_of(model: Any) -> type[Target] | None:
    """Return the target that a model was quantized for; None of a float or a plugin's model.

    Raises:
        JitPassesError: it reads no files of ONNX.
    """
    report = Report.read(model)
    target = None if report is None else Target.named().get(report.target.get("name", ""))
    if target is not None and issubclass(target, Engine) and "onnx" not in target.reads:
        why = (
            f"the model is for {target.name!r}, which reads programs of torch.export, and engines "
            "that read ONNX want quantize and dequantize in other places"
        )
        raise JitPassesError(
            f"{why}: quantize the float model with target='onnxruntime', say",
            command=f"{why}: export the float model with --engine onnxruntime, say",
        )
    return target


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise JitPassesError(
            f"files of ONNX need {name}, which does not import ({error}): "
            "pip install 'jit_passes[onnx]'"
        ) from error


def _axes(program: torch.export.ExportedProgram, dynamic_shapes: Any) -> dict[str, str]:
    """Return the names of open sizes by PyTorch's symbols for them."""
    given, _ = tree_flatten(dynamic_shapes, is_leaf=_is_shape)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    nodes = nodes[len(nodes) - len(program.graph_signature.user_inputs) :]
    found = {}
    for node, shape in zip(nodes, given, strict=False):
        sizes = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
        for axis, size in sizes:
            symbol = getattr(node.meta.get("val"), "shape", ())[axis]
            if isinstance(symbol, torch.SymInt) and hasattr(size, "__name__"):
                found[str(symbol)] = size.__name__
    return found


def _is_shape(value: Any) -> bool:
    """Say whether a part of `dynamic_shapes` is about one tensor."""
    if isinstance(value, Mapping):
        return all(isinstance(axis, int) for axis in value)
    sizes = (int, torch.export.Dim, type(None))
    listed = isinstance(value, list | tuple) and bool(value)
    return value is None or (listed and any(isinstance(size, sizes[:2]) for size in value))


def _describe(model: Any, origin: str) -> None:
    """Write the provenance into a file."""
    model.producer_name, model.producer_version = "jit_passes", __version__
    model.metadata_props.clear()
    model.metadata_props["jit_passes"] = origin
