"""A module that runs a graph in Python, node by node: `torch.export` writes down what it calls.

Numbers are Python's, or PyTorch's symbols for sizes that are open. So a loop unrolls and a branch
is taken where constants and sizes decide. Where the data or an open size decide, a branch becomes
`torch.cond`, and a loop `torch.while_loop`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from .sharing import Sharing, Touched
from .state import Held, NodeError, State, no_tensor
from .writes import Writes

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


class Running(nn.Module):
    """A method's graph as a module of Python.

    Args:
        block: the outermost block of the graph.
        forms: by index of a node, the function that computes it.
        arguments: of the method's schema, without self.
        paths: by index of a node, the attribute of the model that it reads or assigns.
        attributes: by path, the values of the attributes.
    """

    def __init__(
        self,
        block: Block,
        forms: Mapping[int, Form],
        arguments: Sequence[Any],
        paths: Mapping[int, str],
        attributes: Mapping[str, Any],
    ) -> None:
        super().__init__()
        # Mangled: buffers of the model are attributes here too, and may be called `_state`.
        self.__block, self.__forms, self.__paths = block, forms, paths
        self.__state = State(self, attributes)
        self.__writes = Writes(block, paths)
        self.__sharing = Sharing(paths, self.__state, self.__writes)
        steps = list(block.walk())
        self.__constants = {
            step.node.output.id: self._held(step.node.output)
            for step in steps
            if step.node.kind == "prim::Constant"
        }
        self.__numbers = Numbers()
        self.__state.check_apart(attributes, self.__writes.is_written)
        for step in steps:
            if step.node.kind == "prim::GetAttr":
                self._check_read(step)
        self.forward = _signed(self, arguments)

    def _check_read(self, step: Step) -> None:
        """Check that no operator changes an attribute that is no tensor: a list, say."""
        path = self.__paths.get(step.node.index)
        writer = self.__writes.writer_of(step.node.output.id)
        if writer is not None and (path is None or not self.__state.holds(path)):
            error = _of_object(step.detail) if path is None else no_tensor(path)
            raise NodeError(f"{described(writer)}: {error}")

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
        self.__state.begin()
        values: dict[int, Any] = dict(zip(self.__block.inputs, (None, *arguments), strict=True))
        results = self._run(self.__block, values)
        results = self.__state.end(results, self.__writes.is_written)
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
            results = [self._read(step, operands[0])]
        elif node.kind == "prim::SetAttr":
            self._assign(step, *operands)
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

    def _read(self, step: Step, owner: Any) -> Any:
        path = self.__paths.get(step.node.index)
        return getattr(owner, step.detail) if path is None else self.__state.read(path)

    def _assign(self, step: Step, owner: Any, value: Any) -> None:
        path = self.__paths.get(step.node.index)
        if path is not None:
            self.__state.assign(path, value, step.node)
        elif isinstance(owner, SimpleNamespace):
            setattr(owner, step.detail, value)
        else:
            raise _of_object(step.detail)

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
        touched = self.__sharing.touched(step, values)
        paths = [*touched.kept, *touched.changed]
        self.__sharing.check_results(
            step, [step.node.outputs[k].id for k in chosen], touched, values
        )

        def way(block: Block) -> Any:
            def run(inside: list[Any]) -> list[Any]:
                inner = dict(zip(free, inside, strict=False))
                inner.update((id, inner[id].clone()) for id in touched.written)
                state = dict(zip(paths, inside[len(free) :], strict=True))
                state.update((path, state[path].clone()) for path in touched.changed)
                with self.__state.within(state), _unchanged(inner.values()):
                    results = self._run(block, inner)
                    after = [self.__state.read(path) for path in touched.changed]
                written = [inner[id] for id in touched.written]
                return [*written, *after, *(results[k] for k in chosen)]

            return run

        outside = [*(values[id] for id in free), *map(self.__state.read, paths)]
        found = choose(truth, way(step.blocks[0]), way(step.blocks[1]), outside)
        rest = iter(self._give_back(step, touched, found, values))
        # A value from outside that both branches give stays unchanged: a number stays known.
        return [values[a] if a == b else next(rest) for a, b in pairs]

    def _loop(self, step: Step, operands: list[Any], values: dict[int, Any]) -> Sequence[Any]:
        most, goes_on, *carried = operands
        body, count = step.blocks[0], 0
        while _is_number(most) and _is_number(goes_on):
            if count >= int(most) or not goes_on:
                return carried
            values.update(zip(body.inputs, (count, *carried), strict=True))
            goes_on, *carried = self._run(body, values)
            count += 1
        touched = self.__sharing.touched(step, values)
        free = [id for id in body.free if id not in touched.written]
        alone = self.__sharing.changed_alone(step, carried, values)
        given = [output.id for k, output in enumerate(step.node.outputs) if k not in alone]
        self.__sharing.check_results(step, given, touched, values)
        self.__sharing.check_rounds(body, touched)
        first = len(touched.written)
        last = first + len(touched.changed)

        def turn(number: Any, given: list[Any], inside: list[Any]) -> tuple[Any, list[Any]]:
            inner = dict(zip(free, inside, strict=False))
            own, *rest = body.inputs
            inner.update(zip(touched.written, given, strict=False))
            inner.update(zip(rest, given[last:], strict=True))
            inner[own] = number
            state = dict(zip(touched.kept, inside[len(free) :], strict=True))
            state.update(zip(touched.changed, given[first:last], strict=True))
            with self.__state.within(state), _unchanged(inner.values()):
                further, *found = self._run(body, inner)
                after = [self.__state.read(path) for path in touched.changed]
            return further, [*(inner[id] for id in touched.written), *after, *found]

        outside = [*(values[id] for id in free), *map(self.__state.read, touched.kept)]
        state = [*(values[id] for id in touched.written), *map(self.__state.read, touched.changed)]
        found = repeat(most, goes_on, [*state, *carried], turn, outside, count)
        results = self._give_back(step, touched, found, values)
        for k in alone:
            carried[k].copy_(results[k])
            results[k] = carried[k]
        return results

    def _give_back(
        self, step: Step, touched: Touched, found: list[Any], values: Mapping[int, Any]
    ) -> list[Any]:
        """Write down the first of the results of blocks, and return the others."""
        rest = iter(found)
        for id in touched.written:
            values[id].copy_(next(rest))
        for path in touched.changed:
            if path in touched.assigned:
                self.__state.assign(path, next(rest), step.node)
            else:
                self.__state.read(path).copy_(next(rest))
        return list(rest)


@contextmanager
def _unchanged(values: Iterable[Any]) -> Iterator[None]:
    """Check that a block changes no object that is made outside of it."""
    objects = [value for value in values if isinstance(value, SimpleNamespace)]
    before = [dict(vars(each)) for each in objects]
    yield
    for each, old in zip(objects, before, strict=True):
        new = vars(each)
        if new.keys() != old.keys() or any(new[name] is not old[name] for name in old):
            raise JitPassesError("a branch or loop changes an object that is made outside of it")


def _of_object(name: str) -> JitPassesError:
    return JitPassesError(
        f"the model changes '{name}' of an object of its own, and tensors alone are state of a "
        "program: make it a buffer"
    )


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


def _is_known(truth: Any) -> bool:
    """Say whether a truth holds for all inputs alike, so that a branch can be taken now."""
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
