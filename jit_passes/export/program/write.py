"""From a ScriptModule to a program: checks, forms of its operators, and `torch.export`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.traceback import preserve_node_meta

from ...errors import JitPassesError, first_line, shortened
from ...graph.view import GraphView, NodeView
from ...logs import silenced
from ...passes.subject import wrap
from ...stages.arguments import advice
from ...stages.batches import batches
from ...stages.module import ModelStage, Report, by_position, check_module, quantized_part
from ...stages.normalize import normalize
from .blocks import Block, blocks_of
from .dialect import Limits
from .forms import Form, form_of
from .names import described, name_nodes
from .running import STRUCTURE, Running
from .state import NodeError
from .sums import keep_apart

_GRADIENTS = "__torch__.torch.autograd.grad_mode."  # contexts that do nothing in a program
_TRACING = "torch._subclasses.fake_tensor"  # it logs errors that are raised here
_INDUCTOR = "inductor"  # the target
_ATTRIBUTES = ("prim::GetAttr", "prim::SetAttr")
_COMMANDS = {
    ModelStage.LOWERED: "export the float model, with --engine onnxruntime, say, or quantize it "
    "with --target reference",
}
_NEXT = {
    ModelStage.PREPARED: "calibrate it, and pass the result of jit_passes.convert",
    ModelStage.QAT: "pass the result of jit_passes.convert",
    ModelStage.LOWERED: "pass the model that was lowered, the result of jit_passes.convert, or "
    "quantize for the engine, with target='onnxruntime', or with target='reference'",
}


def write_program(
    model: Any, example_inputs: Any, dynamic_shapes: Any, method: str
) -> torch.export.ExportedProgram:
    """Return the program: see `to_exported_program`."""
    module, limits, target = _canonical(model, method)
    view, block = blocks_of(module, method)
    forms = _forms(block, limits)
    script = module._get_method(method)
    args, kwargs = next(batches([example_inputs], None, what="example_inputs"))
    try:
        running = Running(block, forms, script.schema.arguments[1:], *_attributes(module, block))
        with torch.no_grad(), preserve_node_meta(), silenced(_TRACING):
            program = torch.export.export(
                running.eval(), args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except NodeError as error:
        about = str(advice(script, args, kwargs, str(error)))
        raise JitPassesError(f"{error} ({about})" if about else str(error)) from error
    except Exception as error:
        about = str(advice(script, args, kwargs, str(error)))
        said = first_line(error).partition("\n\nThe error above")[0]
        why = about or _about_open_sizes(said) or said
        raise JitPassesError(f"the model is not exported: {why}") from error
    name_nodes(program, view)
    if target == _INDUCTOR:
        keep_apart(program)
    return program


_FIXED = re.compile(r"You marked (.+?) as dynamic but your code specialized it to .+? \((\d+)\)")
_BOUND = re.compile(r"Not all values of (.+?) = .+? satisfy the generated guard (.+?)\.?$", re.M)


def _about_open_sizes(said: str) -> str:
    """Return which sizes the model fixes or bounds, of an error of `torch.export`; "" for none."""
    parts = []
    said = re.sub(r"L\['(.+?)'\]", r"\1", said)  # PyTorch's word for an argument
    for name, number in _FIXED.findall(said):
        one = "1 in the example, which torch.export takes for fixed: pass an example with 2 or more"
        more = (
            f"fixed at {number}: the model computes with this number, as a recurrent layer does "
            "with its length, so leave the size out of dynamic_shapes"
        )
        parts.append(f"the size '{name}' is {one if number == '1' else more}")
    bounds: dict[str, list[str]] = {}
    for name, bound in _BOUND.findall(said):
        bounds.setdefault(name, []).append(bound)
    for name, needed in bounds.items():
        parts.append(f"the size '{name}' is not open in all of its range: {', and '.join(needed)}")
    fixes = [line.strip() for line in said.partition("Suggested fixes:")[2].strip().split("\n")]
    if bounds and any(fixes):
        parts.append(f"torch.export suggests {'; '.join(fixes)}")
    return "; ".join(parts)


def _canonical(model: Any, method: str) -> tuple[Any, Mapping[int, Limits], str]:
    """Return the C++ module whose graph is exported, the codes of quantized values, and the target.

    Raises:
        JitPassesError: the model is neither a float model nor a reference model.
    """
    part = quantized_part(model, method) if isinstance(model, torch.jit.ScriptModule) else model
    report = Report.read(part)
    if report is None:
        check_module(model, method)
        return normalize(model._c, method).module, {}, ""
    if not report.is_reference:
        why = f"the model is a {report.stage} one, whose operators no program has"
        own = _COMMANDS.get(report.stage)
        raise JitPassesError(
            f"{why}: {_NEXT[report.stage]}", command=None if own is None else f"{why}: {own}"
        )
    return part._c, _limits(part, report), report.target["name"]


def _limits(model: Any, report: Report) -> Mapping[int, Limits]:
    """Return, by index of a quantize, its smallest and largest code."""
    codes = {id: (low, high) for low, high, ids in report.codes for id in ids}
    ids = by_position(GraphView.of(model, report.method), report.places)
    return {index: codes[id] for index, id in ids.items() if id in codes}


def _forms(block: Block, limits: Mapping[int, Limits]) -> dict[int, Form]:
    """Return the functions that compute the nodes, by index.

    Raises:
        JitPassesError: a node has none.
    """
    forms, without = {}, []
    for step in block.walk():
        if step.node.kind in STRUCTURE:
            continue
        context = step.node.kind == "prim::Enter" and not step.detail.startswith(_GRADIENTS)
        form = None if context else form_of(step.node, limits)
        if form is None:
            without.append(step.node)
        else:
            forms[step.node.index] = form
    if without:
        names = [f"{described(node)} ({node.kind})" for node in without]
        raise JitPassesError(f"no program has {shortened(names)}: {_instead(without[0])}")
    return forms


def _instead(node: NodeView) -> str:
    """Return a way out for an operator without a form."""
    if node.kind == "prim::CallMethod":
        return "it is quantized already; pass the float model, or the part alone"
    if node.kind.startswith(("quantized::", "aten::quantize", "aten::dequantize")):
        return (
            "it computes in PyTorch's quantized dtypes; pass the float model, or a reference model"
        )
    if node.kind.startswith("jit_passes::"):
        return "it trains or observes; pass the float model, or the result of jit_passes.convert"
    return "take it out of the model, or write it with operators that PyTorch's dispatcher has"


def _attributes(module: Any, block: Block) -> tuple[dict[int, str], dict[str, Any]]:
    """Return the paths of the attributes that nodes read or assign, by index, and their values."""
    model = wrap(module)
    owners: dict[int, str] = {block.inputs[0]: ""}
    paths: dict[int, str] = {}
    values: dict[str, Any] = {}
    for step in block.walk():
        node = step.node
        owner = owners.get(node.main_operand.id) if node.kind in _ATTRIBUTES else None
        if owner is None:  # no attribute, or an attribute of a script class's object
            continue
        path = f"{owner}.{step.detail}" if owner else step.detail
        found: Any = model
        for part in path.split("."):
            found = getattr(found, part)
        if isinstance(found, torch.nn.Module):
            owners[node.output.id] = path
        paths[node.index], values[path] = path, found
    return paths, values
