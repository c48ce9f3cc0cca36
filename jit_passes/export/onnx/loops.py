"""Loops as `Loop`.

A program carries the round and whether there is a further one ahead of all else (see
`program/loops.py`), so no condition is computed beside the round. `torch.onnx` 2.13 translates
loops too, but fails on branches and loops within one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch


def loop_translations(op: Any) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translation of `torch.while_loop`; `op` is the module of an opset."""
    ir: Any = importlib.import_module("onnx_ir")

    def while_loop(
        cond_fn: Any, body_fn: Any, carried_inputs: Sequence[Any], additional_inputs: Sequence[Any]
    ) -> Any:
        def value(what: str, like: Any = None, dtype: Any = None) -> Any:
            shape = ir.Shape([]) if like is None else like.shape
            name = f"{body_fn.name}:{what}"
            return ir.Value(name=name, shape=shape, type=ir.TensorType(dtype or like.dtype))

        carried = [value(f"carried_{k}", like) for k, like in enumerate(carried_inputs)]
        own = [value("round", dtype=ir.DataType.INT64), value("goes_on", dtype=ir.DataType.BOOL)]
        call = ir.Node(
            body_fn.domain, body_fn.name, [*carried, *additional_inputs],
            num_outputs=len(body_fn.outputs),
        )  # fmt: skip
        for k, output in enumerate(call.outputs):
            output.name = f"{body_fn.name}:result_{k}"
        further = ir.Node("", "Identity", [call.outputs[1]])
        further.outputs[0].name = f"{body_fn.name}:further"
        body = ir.Graph(
            [*own, *carried], [further.outputs[0], *call.outputs], nodes=[call, further],
            name=f"{body_fn.name}:round",
        )  # fmt: skip
        # `op` binds operands wrongly behind an omitted one, and gives one result of many.
        node = op.Loop(None, *carried_inputs[1:], body=body).producer()
        given = (None, carried_inputs[1], *carried_inputs)
        node.resize_inputs(len(given))
        for index, operand in enumerate(given):
            node.replace_input_with(index, operand)
        node.resize_outputs(len(carried))
        for output, like in zip(node.outputs, carried, strict=True):
            output.type, output.shape = like.type, like.shape
        return node.outputs

    return {torch.ops.higher_order.while_loop: while_loop}
