"""Running copies of models that record their values, or replace them by given ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError
from ..graph.editor import GraphEditor
from ..graph.view import GraphView, NodeView
from ..passes.pipeline import Pipeline
from ..passes.subject import wrap
from .batches import cloned
from .faults import misfit, takes, unmeasurable

_TENSORS = torch._C.ListType(torch._C.TensorType.get())


class Recorder:
    """A model that keeps the first results of some nodes, each time they are computed.

    Lists are attributes of the model, so this works in branches and loops too.

    Args:
        module: a C++ module that no one else holds: see `copy_of`.
        method: which to run.
        kept: indices of nodes in the method's `GraphView` whose results are kept.
        told: indices of nodes whose users see other values, which `run` is given.
        origin: the model from which the module was made, if that is known.
        called: the name of the model in messages.

    Attributes:
        lost: indices of nodes where neither can be done.
    """

    def __init__(
        self, module: Any, method: str, kept: Sequence[int], told: Sequence[int] = (),
        origin: torch.jit.ScriptModule | None = None,
        called: str = "the model",
    ) -> None:  # fmt: skip
        view = GraphView.of(module, method)
        nodes = [view.nodes[index] for index in dict.fromkeys((*kept, *told))]
        self.lost = {node.index for node in nodes if is_last_of_block(view.nodes, node)}
        self.kept = [index for index in kept if index not in self.lost]
        self.told = [index for index in told if index not in self.lost]
        for name in (*map(_kept, self.kept), *map(_told, self.told)):
            module._register_attribute(name, _TENSORS, [])
        recording = Pipeline("record_values", (self._edit,))
        self._model: Any = wrap(recording.run(module, method).module)
        self._method, self._origin, self._called = method, origin, called

    def copied(self) -> Recorder:
        """Return a recorder of a copy, in the state that the model has now."""
        other = copy(self)
        other._model = wrap(_C.deepcopy(self._model._c))
        return other

    def run(
        self, arguments: tuple[Any, ...], told: Mapping[int, Sequence[torch.Tensor]] | None = None,
        fits: bool | None = None, number: int | None = None,
    ) -> tuple[Any, dict[int, list[torch.Tensor]]]:  # fmt: skip
        """Run the method; return its result and, by node, the tensors that were kept.

        Args:
            arguments: a batch, positional and by name.
            told: the values that users of some nodes see.
            fits: whether the model from which this one was made takes the batch; None to ask
                `origin` if this one does not.
            number: of the batch, for messages; None if unknown.

        Raises:
            JitPassesError: the model does not take the batch, or a NaN in it.
        """
        for index in self.kept:
            setattr(self._model, _kept(index), [])
        for index in self.told:  # copies, since the model may write to them
            setattr(self._model, _told(index), [t.clone() for t in (told or {})[index]])
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            args, kwargs = cloned(arguments)  # this model may write to its arguments
            method = getattr(self._model, self._method)
            try:
                result = method(*args, **kwargs)
            except Exception as error:
                if told is not None:
                    raise  # it runs with values of its own
                what = "the batch" if number is None else f"batch {number} of the data"
                if why := unmeasurable(error):
                    raise JitPassesError(f"{what}: {why}") from error
                if fits is None:
                    fits = takes(self._origin, self._method, *arguments)
                what = f"in {self._called}, {what}"
                raise misfit(method, args, kwargs, what, error, fits) from error
        return result, {index: list(getattr(self._model, _kept(index))) for index in self.kept}

    def _edit(self, graph: GraphEditor) -> None:
        nodes = graph.nodes
        for index in dict.fromkeys((*self.kept, *self.told)):
            node = nodes[index]
            before = following(nodes, node)
            value = node.outputs[0]
            if index in self.told:
                queue = graph.attribute(_told(index), before=before)
                given = graph.insert("aten::pop", [queue, 0], before=before, like=node)
                graph.replace(value, given.output)
            if index in self.kept:
                if value.written:
                    value = graph.insert(
                        "aten::clone", [value, None], before=before, like=node
                    ).output
                queue = graph.attribute(_kept(index), before=before)
                graph.insert("aten::append", [queue, value], before=before, like=node)


def check_finite(values: Iterable[torch.Tensor], number: int, name: str = "a layer") -> None:
    """Raise an error for a batch if a layer, of that name, reads or gives a NaN or an infinity."""
    if not all(bool(value.isfinite().all()) for value in values):
        raise JitPassesError(
            f"batch {number} of the data holds a NaN or an infinity, or gives {name} one: leave "
            "it out"
        )


def copy_of(model: Any, method: str) -> Any:
    """Return a copy of a module, a C++ module with one method and tensors of its own."""
    held = model._c if isinstance(model, torch.jit.ScriptModule) else model
    return _C.deepcopy(_C.clone(held, method))


def following(nodes: Sequence[NodeView], node: NodeView) -> NodeView | None:
    """Return the node behind it in its block; None at the end.

    Args:
        nodes: all nodes, each at its index.
        node: one of them.
    """
    behind = map(nodes.__getitem__, range(node.index + 1, len(nodes)))
    return next((n for n in behind if n.block == node.block), None)


def is_last_of_block(nodes: Sequence[NodeView], node: NodeView) -> bool:
    """Say whether nothing comes behind it in a branch or loop, so nothing can be put there."""
    return node.block != 0 and following(nodes, node) is None


def tensors_of(result: Any, name: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a model returned, in tuples, lists and dicts, with names."""
    if isinstance(result, torch.Tensor):
        yield name, result
    elif isinstance(result, list | tuple):
        for i, part in enumerate(result):
            yield from tensors_of(part, f"{name}.{i}")
    elif isinstance(result, dict):
        for key, part in result.items():
            yield from tensors_of(part, f"{name}.{key}")


def _kept(index: int) -> str:
    return f"kept_{index}"


def _told(index: int) -> str:
    return f"told_{index}"
