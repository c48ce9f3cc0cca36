"""Errors about annotations: the value, the line, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.quantizer import (
    Annotations,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from tests.annotating import (
    FIXED,
    INT8,
    UINT8,
    WEIGHT,
    Given,
    Net,
    Nodes,
    annotation,
    derived,
    nodes_of,
    to_bytes,
)
from tests.annotating import chain_nodes as chain_nodes


class Odd(nn.Module):
    """Operands that are no float tensors, and a node with two results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("index", torch.zeros(2, 3, dtype=torch.int64))
        self.register_buffer("mask", torch.ones(2, 3, dtype=torch.bool))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.gather(x, 1, self.index)
        high, _ = torch.max(torch.where(self.mask, y, x.sigmoid()), 1)
        return high, x.reshape([-1]) + 2.0


class Compares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, torch.gather(x, 1, x.argmax(1, keepdim=True)))


class Unlike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x))


ERRORS: dict[str, tuple[type[nn.Module], Callable[[Nodes], dict[str, Any]], list[str]]] = {
    "shares with what is not quantized": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec(n["cat"]))},
        ["'add' (", "shares with 'cat', which is not quantized itself"],
    ),
    "shares with an operand that is not quantized there": (
        Net,
        lambda n: {
            "c1:conv2d": annotation(result=UINT8),
            "add": annotation(result=SharedQuantizationSpec((n["c1:conv2d"], n["add"]))),
        },
        ["'add' (", "shares with 'c1:conv2d -> add', which is not"],
    ),
    "derives from what is not quantized": (
        Net,
        lambda n: {"add": annotation(result=derived(n["cat"]))},
        ["'add' (", "is derived from 'cat', which is not quantized itself"],
    ),
    "a circle of two": (
        Net,
        lambda n: {
            "add": annotation(result=SharedQuantizationSpec(n["cat"])),
            "cat": annotation(result=SharedQuantizationSpec(n["add"])),
        },
        ["share parameters in a circle", "'add' -> 'cat' -> 'add'"],
    ),
    "a circle of one": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec(n["add"]))},
        ["share parameters in a circle", "'add' -> 'add'"],
    ),
    "a circle of derivations": (
        Net,
        lambda n: {
            "add": annotation(result=derived(n["cat"])),
            "cat": annotation(result=derived(n["relu"])),
            "relu": annotation(result=SharedQuantizationSpec(n["add"])),
        },
        ["derived from each other in a circle", "'add' -> 'cat' -> 'add'"],
    ),
    "derived from itself": (
        Net,
        lambda n: {"add": annotation(result=derived(n["add"]))},
        ["derived from each other in a circle", "'add' -> 'add'"],
    ),
    "two fixed ones in a group": (
        Net,
        lambda n: {
            "add": annotation(result=FIXED),
            "cat": annotation(result=FixedQParamsQuantizationSpec(1 / 128, 128)),
            "share": (n["add"], n["cat"]),
        },
        [
            "'add' (",
            "and 'cat' (",
            "scale 0.00390625 zero_point 0",
            "scale 0.0078125 zero_point 12",
        ],
    ),
    "shares with a value that is fixed in two ways": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: FIXED}),
            "c2:conv2d": annotation({n.x: FixedQParamsQuantizationSpec(1 / 128, 128)}),
            "add": annotation(result=SharedQuantizationSpec(n.x)),
        },
        ["'add' (", "shares with 'x', whose uses differ", "'x -> c1:conv2d'", "'x -> c2:conv2d'"],
    ),
    "derives from a value that is quantized in two ways": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}),
            "c2:conv2d": annotation({n.x: INT8}),
            "add": annotation(result=derived(n.x)),
        },
        ["'add' (", "is derived from 'x', whose uses differ"],
    ),
    "derives from a value with parameters for each use": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}, implicit=False),
            "c2:conv2d": annotation({n.x: UINT8}, implicit=False),
            "add": annotation(result=derived(n.x)),
        },
        ["'add' (", "derived from 'x', whose uses have parameters of their own", "c2:conv2d'"],
    ),
    "share() with what is not quantized": (
        Net,
        lambda n: {"add": annotation(result=UINT8), "share": (n["add"], n["cat"])},
        ["annotations.share() is about 'cat', which is not quantized itself"],
    ),
    "not its operand": (
        Net,
        lambda n: {"add": annotation({n["cat"]: UINT8})},
        ["'cat' is annotated as an operand of 'add' (aten::add)", "'c1:conv2d', 'c2:conv2d'"],
    ),
    "one operand twice": (
        Net,
        lambda n: {"add": annotation({n["c1:conv2d"]: UINT8, n["c1:conv2d"].output: INT8})},
        ["'c1:conv2d' is annotated twice as an operand of 'add'"],
    ),
    "a node of another graph": (
        Net,
        lambda n: {nodes_of(Net())["add"]: annotation(result=UINT8)},
        ["'add' is annotated and is not a node of this graph"],
    ),
    "shares with a value of another graph": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}),
            "add": annotation(result=SharedQuantizationSpec(nodes_of(Net()).x)),
        },
        ["'add' (", "shares with 'x', which is of another graph"],
    ),
    "an edge of another graph": (
        Net,
        lambda n: {
            "c1:conv2d": annotation({n.x: UINT8}),
            "add": annotation(result=derived((n.x, nodes_of(Net())["c1:conv2d"]))),
        },
        ["'add' (", "is derived from 'x -> c1:conv2d', which is of another graph"],
    ),
    "an operand of another graph": (
        Net,
        lambda n: {"c1:conv2d": annotation({nodes_of(Net()).x: UINT8})},
        ["'x' is annotated as an operand of 'c1:conv2d'"],
    ),
    "no edge": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec((n["add"], n.x)))},
        ["'add' (", "refers to (NodeView, ValueView)", "(value, node)"],
    ),
    "no place": (
        Net,
        lambda n: {"add": annotation(result=SharedQuantizationSpec("cat"))},
        ["a value or node of the graph is expected, got str"],
    ),
    "no operand": (
        Net,
        lambda n: {"add": annotation({"c1:conv2d": UINT8})},
        ["a value or node of the graph is expected, got str"],
    ),
    "no specification": (
        Net,
        lambda n: {"add": annotation(result=QuantizationSpec)},
        ["'add' (", "is annotated with <class", "a QuantizationSpec, a SharedQuantizationSpec"],
    ),
    "an int tensor": (
        Odd,
        lambda n: {"gather": annotation({n["gather"].inputs[2]: UINT8})},
        ["index", "it holds int64: only float tensors"],
    ),
    "a mask": (
        Odd,
        lambda n: {"where": annotation({n["where"].inputs[0]: UINT8})},
        ["mask", "it holds bool: only float tensors"],
    ),
    "a comparison": (
        Compares,
        lambda n: {"gt": annotation(result=UINT8)},
        ["'gt' (", "it holds bool: only float tensors"],
    ),
    "indices": (
        Compares,
        lambda n: {"gather": annotation({n["argmax"]: UINT8})},
        ["'argmax -> gather' (", "it holds int64: only float tensors"],
    ),
    "a number": (
        Odd,
        lambda n: {"add": annotation({n["add"].inputs[1]: UINT8})},
        ["add[1]", "it is no tensor: only float tensors"],
    ),
    "a list": (
        Net,
        lambda n: {"cat": annotation({n["cat"].inputs[0]: UINT8})},
        [
            "'ListConstruct' is annotated as an operand of 'cat'",
            "which has 'c1:conv2d', 'c2:conv2d'",
        ],
    ),
    "two results": (
        Odd,
        lambda n: {"max": annotation(result=UINT8)},
        ["'max' (aten::max) has 2 results", "node.outputs[i]"],
    ),
    "an operand with two makers' results": (
        Odd,
        lambda n: {"where": annotation({n["max"]: UINT8})},
        ["'max' (aten::max) has 2 results"],
    ),
    "unknown channels": (
        Net,
        lambda n: {"add": annotation(result=WEIGHT)},
        ["'add' is to be quantized per channel along axis 0", "not known ahead of time"],
    ),
    "no such axis": (
        Net,
        lambda n: {"c1:conv2d": annotation({n["c1:conv2d"].inputs[2]: replace(WEIGHT, ch_axis=1)})},
        ["'c1.bias -> c1:conv2d'", "along axis 1, and its shape is [4]"],
    ),
    "other numbers of channels": (
        Unlike,
        lambda n: {
            "conv:conv2d": annotation({n["conv:conv2d"].inputs[1]: WEIGHT}),
            "fc:linear": annotation(
                {
                    n["fc:linear"].inputs[1]: SharedQuantizationSpec(
                        (n["conv:conv2d"].inputs[1], n["conv:conv2d"]), observed=False
                    )
                }
            ),
        },
        ["'conv.weight -> conv:conv2d' and 'fc.weight -> fc:linear'", "3 and 5 channels"],
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    """The error names the values, and the caller's model stays as it was."""
    model, wanted, parts = ERRORS[case]

    def annotate(nodes: Nodes, annotations: Annotations) -> None:
        found = wanted(nodes)
        if share := found.pop("share", ()):
            annotations.share(*share)
        for name, said in found.items():
            annotations[nodes[name] if isinstance(name, str) else name] = said

    script = torch.jit.script(model().eval())
    before = to_bytes(script)
    with pytest.raises(JitPassesError) as error:
        jit_passes.prepare(script, quantizer=Given(annotate), target="reference")
    for part in parts:
        assert part in str(error.value)
    assert to_bytes(script) == before


def test_annotating_what_is_no_node(chain: Nodes) -> None:
    """annotations[...] takes nodes and annotations only."""
    for node, said in ((chain.x, annotation()), (chain["exp"], UINT8)):
        with pytest.raises(JitPassesError, match="= QuantizationAnnotation"):
            Annotations()[node] = said  # type: ignore[index, assignment]
