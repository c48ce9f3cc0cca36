"""Tensors that blocks share with their outside, where the way or the rounds are not known.

Control flow of programs takes tensors and gives new ones. So tensors that a block writes to are
given back, and copied to the tensors outside. A tensor with two names would become two tensors:
where one of these is written to, and the other one read, the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...errors import JitPassesError
from .blocks import Block, Step
from .state import State, share
from .writes import Writes, is_changed_alone


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


class Sharing:
    """The search for tensors that blocks share with their outside, and the checks of their names.

    Args:
        paths: by index of a node, the attribute of the model that it reads or assigns.
        state: the attributes.
        writes: which operators of the graph write to which values.
    """

    def __init__(self, paths: Mapping[int, str], state: State, writes: Writes) -> None:
        self._paths, self._state, self._writes = paths, state, writes

    def touched(self, step: Step, values: Mapping[int, Any]) -> Touched:
        """Return the tensors from outside that blocks read and write, by value or attribute.

        Raises:
            JitPassesError: the blocks write to one of them and read it in another way too.
        """
        inner = [each for block in step.blocks for each in block.walk()]
        free = dict.fromkeys(id for block in step.blocks for id in block.free)
        written = frozenset().union(*(self._writes.written_in(block) for block in step.blocks))
        paths: dict[str, bool] = {}  # whether it is written to
        assigned = set()
        for each in inner:
            path = self._paths.get(each.node.index)
            if path is None or not isinstance(self._state.read(path), torch.Tensor):
                continue
            if each.node.kind == "prim::SetAttr":
                paths.setdefault(path, False)
                if not self._writes.assigns_itself(each.node):
                    assigned.add(path)
            else:
                paths[path] = paths.get(path, False) or each.node.output.id in written
        tensors = {id: values[id] for id in free if isinstance(values[id], torch.Tensor)}
        for id in free:
            held = [] if id in tensors else tree_leaves(values[id])
            if id in written and any(isinstance(leaf, torch.Tensor) for leaf in held):
                raise JitPassesError(
                    f"a {_kind(step)} changes a list or dict that is made outside of it, or a "
                    "tensor there"
                )
        known: list[tuple[Any, torch.Tensor, bool]] = [
            *((id, tensor, id in written) for id, tensor in tensors.items()),
            *((path, self._state.read(path), writes) for path, writes in paths.items()),
        ]
        for name, tensor, writes in known:
            if writes and any(other != name and share(one, tensor) for other, one, _ in known):
                raise _reads_a_view(step)
        for path in assigned:
            now = self._state.read(path)
            if paths[path] and any(share(value, now) for value in values.values()):
                raise _reads_a_view(step)
        changed = tuple(path for path, writes in paths.items() if writes or path in assigned)
        return Touched(
            tuple(id for id in tensors if id in written),
            tuple(path for path in paths if path not in changed), changed, frozenset(assigned),
        )  # fmt: skip

    def changed_alone(
        self, step: Step, carried: Sequence[Any], values: Mapping[int, Any]
    ) -> list[int]:
        """Return the carried tensors that rounds write to, and that stay the tensors they are.

        Raises:
            JitPassesError: rounds write to a tensor, carry another one on, and it is read besides.
        """
        body, node = step.blocks[0], step.node
        written = self._writes.written_in(body)
        found = []
        for k, tensor in enumerate(carried):
            if not isinstance(tensor, torch.Tensor):
                continue
            others = [each for j, each in enumerate(carried) if j != k]
            shared = [id for id, value in values.items() if share(value, tensor)]
            elsewhere = any(id in body.free for id in shared) or any(
                share(each, tensor) for each in others
            )
            later = any(self._writes.read_later(id, node) for id in shared)
            if body.inputs[1 + k] not in written:
                if later and self._writes.written_later(node.outputs[k].id, node):
                    raise _reads_a_view(step)
            elif is_changed_alone(body, k) and not elsewhere:
                found.append(k)
            elif elsewhere or later:
                raise _reads_a_view(step)
        return found

    def check_results(
        self, step: Step, results: Iterable[int], touched: Touched, values: Mapping[int, Any]
    ) -> None:
        """Check that no result of blocks is a tensor from outside, if one of the two is written to.

        Raises:
            JitPassesError: one is: control flow of programs gives copies.
        """
        writes, node = self._writes, step.node
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
            now = self._state.read(path)
            pairs |= {(writes.state[path], id) for id in values if share(values[id], now)}
        for id, root in pairs:
            # If two attributes share a tensor, the next call may write to it.
            again = id < 0 and root < 0 and (writes.writer_of(id) or writes.writer_of(root))
            if (
                again
                or (writes.written_later(id, node) and writes.read_later(root, node))
                or (writes.written_later(root, node) and writes.read_later(id, node))
            ):
                raise JitPassesError(
                    f"a {_kind(step)} gives a tensor from outside of it, or an attribute, which is "
                    "written to later: give a copy, `x.clone()`"
                )

    def check_rounds(self, body: Block, touched: Touched) -> None:
        """Check that a round hands on no tensor, as another value, that rounds write to.

        Raises:
            JitPassesError: it does: a loop of programs carries copies.
        """
        writes = self._writes
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


def _kind(step: Step) -> str:
    return "branch" if step.node.kind == "prim::If" else "loop"


def _reads_a_view(step: Step) -> JitPassesError:
    return JitPassesError(
        f"a {_kind(step)} writes to a tensor from outside of it, which has a second name or a view "
        "that is read too: take the view within, or write to a copy"
    )
