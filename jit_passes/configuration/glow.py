"""Reading Glow's lists of operators that stay in float."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import JitPassesError, nearest
from ..graph.modules import only
from .configuration import Configuration, Rule
from .located import Located, from_file, from_python
from .options import LayerOptions
from .selector import Selector

# Kinds of Glow's nodes, as its command line names them, with the operator's name.
_SAME = (
    *("Abs", "Add", "Div", "Embedding", "Exp", "Gelu", "HardSwish", "Log", "Mul", "Neg"),
    *("PRelu", "Pow", "Relu", "Sigmoid", "SoftMax", "SoftPlus", "Sqrt", "Sub", "Tanh"),
)
# All kinds, and globs of the operators that they are.
GLOW_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{kind: (kind.lower(),) for kind in _SAME},
        "AdaptiveAvgPool": ("adaptive_avg_pool?d",),
        "AvgPool": ("avg_pool?d",),
        "BatchMatMul": ("bmm", "matmul"),
        "BatchNormalization": ("batch_norm",),
        "BatchedReduceMean": ("mean",),
        "Clip": ("clamp",),
        "Concat": ("cat",),
        "Conv": ("conv?d",),
        "ConvTranspose": ("conv_transpose?d",),
        "Convolution": ("conv?d",),
        "Convolution3D": ("conv3d",),
        "FullyConnected": ("linear",),
        "InstanceNormalization": ("instance_norm",),
        "LayerNormalization": ("layer_norm",),
        "LeakyRelu": ("leaky_relu",),
        "LocalResponseNormalization": ("local_response_norm",),
        "LogSoftMax": ("log_softmax",),
        "MatMul": ("matmul", "mm"),
        "Max": ("max", "maximum"),
        "MaxPool": ("max_pool?d",),
        "Min": ("min", "minimum"),
        "ResizeBilinear": ("upsample_bilinear2d",),
        "ResizeNearest": ("upsample_nearest?d",),
        "Swish": ("silu",),
    }
)
NODE_PRECISION_KEY = "FP16NodeInstanceNames"
_KEEP = LayerOptions(keep_float=True)


def from_glow_node_precision(
    source: str | Path | Mapping[str, Any], allow_unmatched: bool = False
) -> Configuration:
    """Read the file of Glow's `-node-precision-info`: the operators that are not quantized.

    `FP16NodeInstanceNames: [109, "layer1.0:add"]` names operators by their first result, here by
    its stable name, or an input of the graph. These operators stay in float32.

    Args:
        source: the path of the YAML file, or a dict of the same structure.
        allow_unmatched: whether names may be of nothing.

    Raises:
        JitPassesError: it cannot be read, or is something else; with line and column.
    """
    if isinstance(source, Mapping):
        tree = from_python(source, "node precision")
    else:
        tree = from_file(Path(source))
    entries = tree.mapping("a node precision file", (NODE_PRECISION_KEY,))
    if NODE_PRECISION_KEY not in entries:
        raise tree.error(f"the key {NODE_PRECISION_KEY} is missing")
    names = entries[NODE_PRECISION_KEY].items(NODE_PRECISION_KEY)
    rules = tuple(_of_name(name) for name in names)
    return Configuration(rules=rules, allow_unmatched=allow_unmatched)


def _of_name(source: Located) -> Rule:
    name = source.name("a name")
    if not name:
        raise source.error("a name is the name of a result, not empty text")
    return Rule(Selector(value=only(name)), _KEEP, where=source.place)


def from_glow_kinds(kinds: str, allow_unmatched: bool = False) -> Configuration:
    """Read the text of Glow's `-keep-original-precision-for-nodes`: kinds of nodes, `Add,Div`.

    Args:
        kinds: the kinds, separated by commas.
        allow_unmatched: whether there may be none of a kind, as Glow allows.

    Raises:
        JitPassesError: Glow has no kind of that name, or the kind has no counterpart here.
    """
    rules = []
    for kind in (part.strip() for part in kinds.split(",")):
        if kind not in GLOW_KINDS:
            raise JitPassesError(
                f"no kind of node '{kind}' in '{kinds}': {nearest(kind, GLOW_KINDS)}"
            )
        rules.append(Rule(Selector(op=GLOW_KINDS[kind]), _KEEP, where=f"Glow's kind '{kind}'"))
    return Configuration(rules=tuple(rules), allow_unmatched=allow_unmatched)
