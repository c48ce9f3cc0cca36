"""Programs of `torch.export`: the way from a ScriptModule to the compilers that take these."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["from_exported_program", "to_exported_program"]


def from_exported_program(program: torch.export.ExportedProgram) -> torch.jit.ScriptModule:
    """Return a program of `torch.export` as a ScriptModule, which all functions here take.

    Its results equal the program's, on tensors of any size that its operators take: the program's
    own bounds of sizes are not checked. Parameters and buffers share their memory with the
    program's, and have its paths. If the program writes to tensors, the model has copies of the
    buffers, since its calls change no state of the program. Operators are in the modules that they
    come from, so that rules of configurations and names in reports fit the model that was exported.
    Arguments are called and nested as they were.

    `torch.cond` becomes a branch, and `torch.while_loop` a loop. Operators of
    `quantized_decomposed` stay as they are.

    Args:
        program: the result of `torch.export.export` or `torch.export.load`. Layers are recognized
            best ahead of `run_decompositions`, which takes linears and attention apart.

    Raises:
        JitPassesError: the argument is no program; PyTorch's dispatcher has no such operator, as
            for `scan`; or TorchScript has no type for an argument or a result, as for dicts by
            numbers.
    """
    from .read import read_program

    return read_program(program)


def to_exported_program(
    model: torch.jit.ScriptModule,
    example_inputs: Any,
    dynamic_shapes: Any = None,
    *,
    method: str = "forward",
) -> torch.export.ExportedProgram:
    """Return a model as a program of `torch.export`, for AOTInductor, ONNX, ExecuTorch and others.

    The program of a float model has the canonical form, batch norms folded. The program of a
    reference model has quantize and dequantize as operators of `quantized_decomposed`, and weights
    as integers. Values keep their names: `node.meta["custom"]["name"]` is `layer1.0.conv1:conv2d`,
    and `["source"]` the line of the model's code.

    Branches that the data or an open size decide become `torch.cond`, and loops whose rounds they
    decide `torch.while_loop`; other loops are unrolled. If a branch or a round writes to a tensor
    from outside, the tensor is one of its results.

    Args:
        model: a float ScriptModule in eval mode, or a reference model, the result of `convert`; it
            is not touched.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
            Numbers among them are constants of the program.
        dynamic_shapes: the sizes that are open, as `torch.export.export` takes them,
            `({0: Dim("batch")},)` for the first axis of one tensor; None for none.
        method: the method to export.

    Raises:
        JitPassesError: the model is neither of these; an operator has no form in a program; a
            branch does not fit `torch.cond`; the rounds of a loop change shapes or dtypes, which
            `torch.while_loop` does not allow; or the inputs are not the model's. The message has
            the line of source.
        ArgumentError: `dynamic_shapes` has another form, or an axis that a tensor has not.
    """
    from .shapes import check_dynamic_shapes
    from .write import write_program  # PyTorch's symbols for sizes take a second to import

    schema = getattr(getattr(model, method, None), "schema", None)  # an eager module has none
    names = [] if schema is None else [argument.name for argument in schema.arguments[1:]]
    check_dynamic_shapes(dynamic_shapes, example_inputs, names)
    return write_program(model, example_inputs, dynamic_shapes, method)
