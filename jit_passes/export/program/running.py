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
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    statically_known_true,
)
from torch.fx.traceback import annotate
from torch.utils._pytree import tree_leaves, tree_map_only

from ...errors import JitPassesError, first_line
from ...graph.view import ValueView
from .blocks import Block, Step
from .branches import choose
from .constants import constant_of, hold, path_of
from .forms import Form
from .loops import repeat
from .names import NOTE, described
from .numbers import Numbers
from .state import Held, NodeError, State, no_tensor, share
from .writes import Writes, is_changed_alone

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


@dataclass(frozen=True)
class Touched:
    """Tensors from outside that blocks read and write, where way or rounds are not known.

    Attributes:
        written: ids of tensors that they write to.
        kept: paths of tensors in the state that they read alone.
        changed: paths of tensors in the state that they write to or assign.
        assigned: the paths among these that they assign.
    """

    written: tuple[int, ...]
    kept: tuple[str, ...]
    changed: tuple[str, ...]
    assigned: frozenset[str]


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
        touched = self._touched(step, values)
        paths = [*touched.kept, *touched.changed]
        self._check_chosen(step, [step.node.outputs[k].id for k in chosen], touched, values)

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
        # What both give from outside stays as it is: a number stays known.
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
        touched = self._touched(step, values)
        free = [id for id in body.free if id not in touched.written]
        alone = self._changed_alone(step, carried, values)
        given = [output.id for k, output in enumerate(step.node.outputs) if k not in alone]
        self._check_chosen(step, given, touched, values)
        self._check_rounds(body, touched)
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

    def _touched(self, step: Step, values: Mapping[int, Any]) -> Touched:
        """Return the tensors from outside that blocks read and write, by value or attribute.

        Raises:
            JitPassesError: the blocks write to one of them and read it in another way too.
        """
        inner = [each for block in step.blocks for each in block.walk()]
        free = dict.fromkeys(id for block in step.blocks for id in block.free)
        written = frozenset().union(*(self.__writes.written_in(block) for block in step.blocks))
        paths: dict[str, bool] = {}  # whether it is written to
        assigned = set()
        for each in inner:
            path = self.__paths.get(each.node.index)
            if path is None or not isinstance(self.__state.read(path), torch.Tensor):
                continue
            if each.node.kind == "prim::SetAttr":
                paths.setdefault(path, False)
                if not self.__writes.assigns_itself(each.node):
                    assigned.add(path)
            else:
                paths[path] = paths.get(path, False) or each.node.output.id in written
        tensors = {id: values[id] for id in free if isinstance(values[id], torch.Tensor)}
        for id in free:
            held = [] if id in tensors else tree_leaves(values[id])
            if id in written and any(isinstance(leaf, torch.Tensor) for leaf in held):
                kind = "branch" if step.node.kind == "prim::If" else "loop"
                raise JitPassesError(
                    f"a {kind} changes a list or dict that is made outside of it, or a tensor there"
                )
        known: list[tuple[Any, torch.Tensor, bool]] = [
            *((id, tensor, id in written) for id, tensor in tensors.items()),
            *((path, self.__state.read(path), writes) for path, writes in paths.items()),
        ]
        for name, tensor, writes in known:
            if writes and any(other != name and share(one, tensor) for other, one, _ in known):
                raise _reads_a_view()
        for path in assigned:
            now = self.__state.read(path)
            if paths[path] and any(share(value, now) for value in values.values()):
                raise _reads_a_view()
        changed = tuple(path for path, writes in paths.items() if writes or path in assigned)
        return Touched(
            tuple(id for id in tensors if id in written),
            tuple(path for path in paths if path not in changed), changed, frozenset(assigned),
        )  # fmt: skip

    def _changed_alone(
        self, step: Step, carried: Sequence[Any], values: Mapping[int, Any]
    ) -> list[int]:
        """Return the carried tensors that rounds write to, and that stay the tensors they are.

        Raises:
            JitPassesError: rounds write to a tensor, carry another one on, and it is read besides.
        """
        body, node = step.blocks[0], step.node
        written = self.__writes.written_in(body)
        found = []
        for k, tensor in enumerate(carried):
            if not isinstance(tensor, torch.Tensor):
                continue
            others = [each for j, each in enumerate(carried) if j != k]
            shared = [id for id, value in values.items() if share(value, tensor)]
            elsewhere = any(id in body.free for id in shared) or any(
                share(each, tensor) for each in others
            )
            later = any(self.__writes.read_later(id, node) for id in shared)
            if body.inputs[1 + k] not in written:
                if later and self.__writes.written_later(node.outputs[k].id, node):
                    raise _reads_a_view()
            elif is_changed_alone(body, k) and not elsewhere:
                found.append(k)
            elif elsewhere or later:
                raise _reads_a_view()
        return found

    def _check_chosen(
        self, step: Step, results: Iterable[int], touched: Touched, values: Mapping[int, Any]
    ) -> None:
        """Check that no result of blocks is a tensor from outside, if one of the two is written to.

        Raises:
            JitPassesError: one is: control flow of programs gives copies.
        """
        writes, node = self.__writes, step.node
        outside = {id for block in step.blocks for id in block.free}
        outside = {id for id in outside if any(map(torch.is_tensor, tree_leaves(values[id])))}
        outside |= {writes.state[path] for path in (*touched.kept, *touched.changed)}
        if node.kind == "prim::Loop":
            outside |= {value.id for value in node.inputs[2:]}
        pairs = {
            (id, root)
            for id in (*results, *(writes.state[path] for path in touched.assigned))
            for root in writes.roots_of(id, outside)
        }
        for path in touched.assigned:  # a way that does not assign keeps the tensor
            now = self.__state.read(path)
            pairs |= {(writes.state[path], id) for id in values if share(values[id], now)}
        for id, root in pairs:
            # Of two attributes, the next call may write to the tensor that they are then.
            again = id < 0 and root < 0 and (writes.writer_of(id) or writes.writer_of(root))
            if (
                again
                or (writes.written_later(id, node) and writes.read_later(root, node))
                or (writes.written_later(root, node) and writes.read_later(id, node))
            ):
                raise JitPassesError(
                    "it gives a tensor from outside of it, or an attribute, which is written to "
                    "later: give a copy, `x.clone()`"
                )

    def _check_rounds(self, body: Block, touched: Touched) -> None:
        """Check that a round hands on no tensor, as another value, that rounds write to.

        Raises:
            JitPassesError: it does: a loop of programs carries copies.
        """
        writes = self.__writes
        states = {path: writes.state[path] for path in (*touched.kept, *touched.changed)}
        places = {*body.inputs, *body.free, *states.values()} & writes.written_in(body)
        handed = [
            *zip(body.outputs[1:], body.inputs[1:], strict=True),
            *((states[path], states[path]) for path in touched.assigned),
        ]
        for id, own in handed:
            if writes.roots_of(id, places) - {own}:
                raise JitPassesError(
                    "a round hands on a tensor under another name, and rounds write to it: hand on "
                    "a copy, `x.clone()`"
                )


@contextmanager
def _unchanged(values: Iterable[Any]) -> Iterator[None]:
    """Check that a block changes no object that is made outside of it."""
    objects = [value for value in values if isinstance(value, SimpleNamespace)]
    before = [dict(vars(each)) for each in objects]
    yield
    for each, old in zip(objects, before, strict=True):
        new = vars(each)
        if new.keys() != old.keys() or any(new[name] is not old[name] for name in old):
            raise JitPassesError("it changes an object that is made outside of it")


def _reads_a_view() -> JitPassesError:
    return JitPassesError(
        "it writes to a tensor from outside of it and reads a view of that too: take the view "
        "within, or write to a copy"
    )


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
