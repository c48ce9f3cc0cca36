"""Files of LiteRT that hold one operator on integers.

The package `ai-edge-litert` has the schema of these files as Python classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_VERSIONS = {"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "AVERAGE_POOL_2D": 2}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file.

    Attributes:
        shape: images are NHWC.
        dtype: "int8", "int16" or "int32".
        scales: one, or one for each channel; none where it is not quantized.
        zero_point: of all channels.
        axis: of the channels.
        numbers: of a constant.
    """

    shape: Sequence[int]
    dtype: str
    scales: Sequence[float] = ()
    zero_point: int = 0
    axis: int = 0
    numbers: Array | None = None


def one_operator(
    name: str, inputs: Sequence[Tensor], output: Tensor, options: str = "", **values: Any
) -> bytes:
    """Return a file with one operator, which reads the inputs that are no constants.

    Args:
        name: of the operator, as `BuiltinOperator` has it.
        inputs: its operands.
        output: its result.
        options: the class of its options, without the T at its end; "" for none.
        values: of the options.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers = 3, [schema.BufferT()]
    tensors = [*inputs, output]
    graph.tensors = [_tensor(schema, model, f"tensor_{i}", t) for i, t in enumerate(tensors)]
    graph.inputs = [i for i, tensor in enumerate(inputs) if tensor.numbers is None]
    graph.outputs = [len(inputs)]
    code, operator = schema.OperatorCodeT(), schema.OperatorT()
    code.builtinCode = getattr(schema.BuiltinOperator, name)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), _VERSIONS.get(name, 2)
    operator.inputs, operator.outputs = list(range(len(inputs))), [len(inputs)]
    if options:
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        operator.builtinOptions = _filled(getattr(schema, f"{options}T")(), values)
    model.operatorCodes, model.subgraphs, graph.operators = [code], [graph], [operator]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(schema: Any, model: Any, name: str, tensor: Tensor) -> Any:
    found = schema.TensorT()
    found.name, found.shape = name, list(tensor.shape)
    found.type = getattr(schema.TensorType, tensor.dtype.upper())
    if tensor.scales:
        grid = found.quantization = schema.QuantizationParametersT()
        grid.scale, grid.quantizedDimension = list(tensor.scales), tensor.axis
        grid.zeroPoint = [tensor.zero_point] * len(tensor.scales)
    if tensor.numbers is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(tensor.numbers.astype(tensor.dtype).tobytes(), np.uint8)
        found.buffer = len(model.buffers)
        model.buffers.append(buffer)
    return found


def _filled(options: Any, values: Mapping[str, Any]) -> Any:
    for name, value in values.items():
        assert hasattr(options, name), name
        setattr(options, name, value)
    return options
