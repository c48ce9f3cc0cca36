"""A module that runs a graph in Python, node by node: `torch.export` writes down what it calls.

Numbers are Python's, or PyTorch's symbols for sizes that are open. So a loop unrolls and a branch
is taken where constants and sizes decide. Where the data or an open size decide, a branch becomes
`torch.cond`, and a loop `torch.while_loop`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    statically_known_true,
)
from torch.fx.traceback import annotate
from torch.utils._pytree import tree_map_only

from ...errors import JitPassesError, first_line
from ...graph.view import ValueView
from .blocks import Block, Step
from .branches import choose
from .constants import constant_of, hold, path_of
from .forms import Form
from .loops import repeat
from .names import NOTE, described
from .numbers import Numbers
from .writes import written_in

# By the kind of a type, its Python.
_TYPES: dict[str, Any] = {
    "TensorType": torch.Tensor,
    "ListType": list,
    "DictType": dict,
    "TupleType": tuple,
    "StringType": str,
    "NoneType": type(None),
    "BoolType": (bool, torch.SymBool),
    "IntType": (int, torch.SymInt),
    "FloatType": (float, torch.SymFloat),
}
RAISE = "prim::RaiseException"
STRUCTURE = (
    *("prim::Constant", "prim::GetAttr", "prim::SetAttr", "prim::isinstance"),
    *("prim::If", "prim::Loop", RAISE),
)


_torch: Any = torch  # functions of symbols have no types


class NodeError(JitPassesError):
    """A node that cannot be exported; the message names it and its line of source."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "partial_fx_graph":  # which torch.export would print
            super().__setattr__(name, value)


class Held(str):
    """Stands for a tensor in the state of a program, by its path."""


class Running(nn.Module):
    """A method's graph as a module of Python.

    Args:
        block: the outermost block of the graph.
        forms: by index of a node, the function that computes it.
        arguments: of the method's schema, without self.
        state: by path, the values of the attributes that the graph reads or writes.
    """

    def __init__(
        self,
        block: Block,
        forms: Mapping[int, Form],
        arguments: Sequence[Any],
        state: Mapping[str, Any],
    ) -> None:
        super().__init__()
        # Mangled: buffers of the model are attributes here too, and may be called `_state`.
        self.__block, self.__forms = block, forms
        self.__state = {
            path: Held(hold(self, path, value.detach().clone()))
            if isinstance(value, torch.Tensor)
            else value
            for path, value in state.items()
        }
        steps = list(block.walk())
        self.__written = {step.detail for step in steps if step.node.kind == "prim::SetAttr"}
        self.__constants = {
            step.node.output.id: self._held(step.node.output)
            for step in steps
            if step.node.kind == "prim::Constant"
        }
        self.__numbers = Numbers()
        self.forward = _signed(self, arguments)

    def _held(self, value: ValueView) -> Any:
        """Return a constant, with paths in place of tensors, which become buffers."""
        constant = value.constant
        if isinstance(constant, torch.Tensor):
            return Held(hold(self, path_of(value), constant_of(value)))

        def held(tensor: torch.Tensor) -> Held:
            return Held(hold(self, path_of(value), tensor.detach()))

        return tree_map_only(torch.Tensor, held, constant)

    def _found(self, value: Any) -> Any:
        return tree_map_only(Held, self.get_buffer, value)

    def run(self, arguments: Sequence[Any]) -> Any:
        """Run the graph."""
        values: dict[int, Any] = dict(zip(self.__block.inputs, ("", *arguments), strict=True))
        results = self._run(self.__block, values)
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, block: Block, values: dict[int, Any]) -> list[Any]:
        for step in block.steps:
            node = step.node
            try:
                with annotate({NOTE: node.index}):
                    self._step(step, values)
            except NodeError:
                raise
            except Exception as error:
                raise NodeError(f"{described(node)}: {_reason(error)}") from error
        return [values[id] for id in block.outputs]

    def _step(self, step: Step, values: dict[int, Any]) -> None:
        node = step.node
        if node.kind == "prim::Constant":
            values[node.output.id] = self._found(self.__constants[node.output.id])
            return
        operands = [values[value.id] for value in node.inputs]
        results: Sequence[Any] = ()
        if node.kind == "prim::GetAttr":
            results = [self._read(operands[0], step.detail)]
        elif node.kind == "prim::SetAttr":
            self._write(operands[0], step.detail, operands[1])
        elif node.kind == "prim::isinstance":
            results = [any(_is_a(operands[0], kind) for kind in step.detail)]
        elif node.kind == "prim::If":
            results = self._branch(step, operands[0], values)
        elif node.kind == "prim::Loop":
            results = self._loop(step, operands, values)
        elif node.kind == RAISE:
            raise JitPassesError(f"the model raises an error: {_said(step)}")
        else:
            form = self.__forms[node.index]
            number = self.__numbers.follow(node, form, operands)
            found = form(*operands) if number is None else number
            results = [found] if len(node.outputs) == 1 else found if node.outputs else ()
        for value, result in zip(node.outputs, results, strict=True):
            values[value.id] = result

    def _read(self, owner: Any, name: str) -> Any:
        if not isinstance(owner, str):  # an object of a script class
            return getattr(owner, name)
        path = _joined(owner, name)
        if path not in self.__state:
            return path  # a module
        found = self._found(self.__state[path])
        # A copy: a value that was read before a write keeps its numbers.
        copied = name in self.__written and isinstance(found, torch.Tensor)
        return found.clone() if copied else found

    def _write(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(owner, SimpleNamespace):
            setattr(owner, name, value)
            return
        if not isinstance(owner, str):
            raise JitPassesError(
                f"the model changes '{name}' of an object of its own, and tensors alone are state "
                "of a program: make it a buffer"
            )
        path = _joined(owner, name)
        held = self.__state[path]
        if type(value) in (bool, int, float, str) and type(held) is type(value) and held == value:
            return  # a number that stays as it is
        if not isinstance(held, Held) or not isinstance(value, torch.Tensor):
            raise JitPassesError(
                f"the model changes its attribute '{path}', which is no tensor, and tensors alone "
                "are state of a program: make it a buffer"
            )
        buffer = self.get_buffer(held)
        if buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise JitPassesError(
                f"the model changes its attribute '{path}' from {_shape(buffer)} to "
                f"{_shape(value)}: the state of a program keeps shape and dtype; if the first call "
                "makes the state, call the model once before the export"
            )
        buffer.copy_(value)

    def _branch(self, step: Step, truth: Any, values: dict[int, Any]) -> Sequence[Any]:
        raises = [any(inner.node.kind == RAISE for inner in block.steps) for block in step.blocks]
        if _is_known(truth):
            return self._run(step.blocks[0] if truth else step.blocks[1], values)
        if any(raises) and not all(raises):
            _check(truth, not raises[0], _said(*step.blocks[raises.index(True)].steps))
            return self._run(step.blocks[raises.index(False)], values)
        free = list(dict.fromkeys(id for block in step.blocks for id in block.free))
        pairs = list(zip(*(block.outputs for block in step.blocks), strict=True))
        chosen = [k for k, (first, second) in enumerate(pairs) if first != second]
        written = self._written_outside(step, values)

        def way(block: Block) -> Any:
            def run(inside: list[Any]) -> list[Any]:
                inner = dict(zip(free, inside, strict=True))
                inner.update((id, inner[id].clone()) for id in written)
                results = self._run(block, inner)
                return [*(inner[id] for id in written), *(results[k] for k in chosen)]

            return run

        outside = [values[id] for id in free]
        found = iter(choose(truth, way(step.blocks[0]), way(step.blocks[1]), outside))
        for id in written:
            values[id].copy_(next(found))
        # What both give from outside stays as it is: a number stays known.
        return [values[a] if a == b else next(found) for a, b in pairs]

    def _loop(self, step: Step, operands: list[Any], values: dict[int, Any]) -> Sequence[Any]:
        most, goes_on, *carried = operands
        body, count = step.blocks[0], 0
        while _is_number(most) and _is_number(goes_on):
            if count >= int(most) or not goes_on:
                return carried
            values.update(zip(body.inputs, (count, *carried), strict=True))
            goes_on, *carried = self._run(body, values)
            count += 1
        written = self._written_outside(step, values)
        free = [id for id in body.free if id not in written]

        def turn(number: Any, given: list[Any], inside: list[Any]) -> tuple[Any, list[Any]]:
            inner = dict(zip(free, inside, strict=True))
            own, *rest = body.inputs
            inner.update(zip((*written, *rest), given, strict=True))
            inner[own] = number
            further, *found = self._run(body, inner)
            return further, [*(inner[id] for id in written), *found]

        outside = [values[id] for id in free]
        state = [*(values[id] for id in written), *carried]
        found = repeat(most, goes_on, state, turn, outside, count)
        for id, result in zip(written, found, strict=False):
            values[id].copy_(result)
        return found[len(written) :]

    def _written_outside(self, step: Step, values: Mapping[int, Any]) -> tuple[int, ...]:
        """Return the tensors from outside that blocks write to, which control flow gives back.

        Raises:
            JitPassesError: the blocks read one of them by two values.
        """
        free = dict.fromkeys(id for block in step.blocks for id in block.free)
        written = frozenset().union(*(written_in(block) for block in step.blocks))
        tensors = [id for id in free if isinstance(values[id], torch.Tensor)]
        for id in written:
            for other in tensors:
                if other != id and _torch._C._is_alias_of(values[other], values[id]):
                    raise JitPassesError(
                        "it writes to a tensor from outside of it and reads a view of that too: "
                        "take the view within, or write to a copy"
                    )
        return tuple(id for id in tensors if id in written)


def _signed(module: Running, arguments: Sequence[Any]) -> Any:
    """Return a `forward` with the signature of a method: programs have the names of its inputs."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return module.run(tuple(bound.arguments.values()))

    empty = inspect.Parameter.empty
    signature = inspect.Signature(
        [
            inspect.Parameter(
                re.sub(r"\W", "_", argument.name),
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else empty,
            )
            for argument in arguments
        ]
    )
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def _reason(error: Exception) -> str:
    """Return why a node fails, without the advice of `torch.export`, which is for eager models."""
    said = first_line(error).strip().partition("\n")[0]
    if isinstance(error, GuardOnDataDependentSymNode):
        return f"the data decide a number or truth that has to be known for a program ({said})"
    return said


def _is_a(value: Any, kind: str) -> bool:
    """Say whether a value has a type of TorchScript, by the kind of the type."""
    if kind not in _TYPES:
        raise JitPassesError(f"the model asks for a type of the kind {kind}, which programs lack")
    truth = isinstance(value, bool) and kind == "IntType"  # which Python takes for a number
    return isinstance(value, _TYPES[kind]) and not truth


def _joined(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name


def _is_known(truth: Any) -> bool:
    """Say whether a truth is the same for all inputs, so that a branch can be taken now."""
    if isinstance(truth, torch.SymInt):
        return False
    if isinstance(truth, torch.SymBool):
        return statically_known_true(truth) or statically_known_true(_torch.sym_not(truth))
    return not isinstance(truth, torch.Tensor)


def _is_number(value: Any) -> bool:
    """Say whether a number or truth depends neither on the data nor on an open size."""
    if isinstance(value, torch.SymInt | torch.SymBool):
        return value.node.maybe_as_int() is not None or _is_known(value)
    return not isinstance(value, torch.Tensor)


def _check(truth: Any, wanted: bool, said: str) -> None:
    """Record that a truth holds, else the program raises an error."""
    if isinstance(truth, torch.Tensor):
        torch._assert_async(truth if wanted else truth.logical_not(), said)
    else:
        _torch._check(truth if wanted else _torch.sym_not(truth), lambda: said)


def _said(*steps: Step) -> str:
    """Return the message of the exception among the steps."""
    for step in steps:
        if step.node.kind == RAISE:
            texts = [value.constant for value in step.node.inputs]
            return next((text for text in texts if isinstance(text, str) and text), "an exception")
    return "an exception"


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
