"""Results of programs for which ONNX has no form."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export.graph_signature import ConstantArgument, TensorArgument


def spell_out_results(program: torch.export.ExportedProgram) -> None:
    """Make tensors without axes of numbers that a program returns, and leave out text, in place.

    `torch.onnx` 2.13 leaves out None, and fails on numbers and text.
    """
    graph = program.graph_module.graph
    [end] = [node for node in graph.nodes if node.op == "output"]
    specs = program.graph_signature.output_specs
    results: list[Any] = list(end.args[0])
    for place, (result, spec) in enumerate(zip(results, specs, strict=True)):
        if not isinstance(spec.arg, ConstantArgument):
            continue
        if isinstance(result, str):
            results[place], spec.arg = None, ConstantArgument("", None)
        elif result is not None:
            dtype = torch.tensor(result).dtype
            with graph.inserting_before(end):
                made = graph.call_function(torch.ops.aten.full.default, ([], result))
            made.kwargs = {"dtype": dtype}
            with unset_fake_temporarily():
                made.meta["val"] = torch.full((), result, dtype=dtype)
            results[place], spec.arg = made, TensorArgument(made.name)
    end.args = (tuple(results),)
