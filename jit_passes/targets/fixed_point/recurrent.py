"""Recurrent layers as steps of operators that have integer forms.

With x_t the input and h, c the state, both 0 ahead of the first step unless the model gives them:

    RNN     h' = tanh(W x_t + b_i + b_h + U h), or relu
    LSTM    i, f, g, o = W x_t + b_i + b_h + U h
            c' = sig(f) c + sig(i) tanh(g),   h' = sig(o) tanh(c')
    GRU     r = sig(W_r x_t + b_r + U_r h),   z = sig(W_z x_t + b_z + U_z h)
            n = tanh(W_n x_t + b_in + r (U_n h + b_hn)),   h' = (h - n) z + n

Source: the equations of `torch.nn.RNN`, `torch.nn.LSTM` and `torch.nn.GRU`. The products of all
steps with W are one linear. Biases are added there, but for b_hn. Ahead of a first step from 0
there are no products with U, nor with c: r b_hn is a convolution in groups of one channel, and
h' = n - z n.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...graph.editor import GraphEditor
from ...graph.view import LIST, GraphView, NodeView, ValueView, are_constant
from ...specification.recurrent import GATED, PLAIN
from .masks import numbers_of

GRU = "aten::gru"
_AXIS = "aten::unsqueeze"
_HOLD = ("prim::Constant", "prim::GetAttr", LIST)
State = list[ValueView | None]  # h, and c of an LSTM; None for zeros


def unroll_layers(graph: GraphEditor, steps: int | None) -> None:
    """Write recurrent layers as their steps, or remark why not.

    Args:
        graph: whose layers.
        steps: of each sequence; None if the number is not given.
    """
    for node in graph.nodes:
        if node.kind not in (*GATED, *PLAIN):
            continue
        if why := refusal_of_layer(node, steps):
            graph.remark(node, why)
        else:
            assert steps is not None
            _Unrolling(graph, node, steps).write()


def refusal_of_layer(node: NodeView, steps: int | None = None) -> str | None:
    """Say why a recurrent layer cannot be unrolled; None where it can, and for other operators."""
    if node.kind not in (*GATED, *PLAIN):
        return None
    if node.overload != "input":
        return "it reads packed sequences: give it a tensor of sequences of one length"
    if not are_constant(node.operands_behind("params")):
        return "one of its options is computed by the model"
    if node.operand("train").constant and node.operand("dropout").constant:
        return "it drops numbers between its layers"
    values = [value for place, _, value in node.operands if place == node.position("params")]
    if not all(isinstance(value.constant, torch.Tensor) for value in values):
        return "its weights are no constants"
    if len(values) != len(_names(node)) * _runs(node):
        return "it has a projection"
    if any(value.written for value in (*node.inputs, *node.outputs)):
        return "something writes to its operands or its results"
    return None if steps else "its number of steps is not known: take FixedPoint(steps=...)"


def _runs(node: NodeView) -> int:
    """Return how often a sequence is run through: layers times directions."""
    both = bool(node.operand("bidirectional").constant)
    return int(node.operand("num_layers").constant) * (2 if both else 1)


def _names(node: NodeView) -> Sequence[str]:
    names = ("w_ih", "w_hh", "b_ih", "b_hh")
    return names if node.operand("has_biases").constant else names[:2]


@dataclass(frozen=True)
class _Run:
    """A layer in one direction.

    Attributes:
        of_input: weight of the input, `[gates * hidden, input]`.
        of_state: weight of the state, `[gates * hidden, hidden]`.
        added: to the products with the input, `[gates * hidden]`; None for nothing.
        inner: b_hn of a GRU, `[hidden]`; None for nothing.
    """

    of_input: ValueView
    of_state: ValueView
    added: torch.Tensor | None
    inner: torch.Tensor | None

    @classmethod
    def of(cls, values: Sequence[ValueView], gru: bool) -> _Run:
        """Take the weights and biases of a layer's operand `params`."""
        if len(values) == 2:
            return cls(values[0], values[1], None, None)
        of_input, of_state = (value.constant.detach() for value in values[2:])
        if not gru:
            return cls(values[0], values[1], of_input + of_state, None)
        gates, inner = of_state.split([2 * len(of_state) // 3, len(of_state) // 3])
        added = of_input + torch.cat([gates, torch.zeros_like(inner)])
        return cls(values[0], values[1], added, inner if bool(inner.any()) else None)

    @property
    def bias_of_state(self) -> torch.Tensor | None:
        """The bias of the products with the state: 0 for gates whose biases are added before."""
        inner = self.inner
        return None if inner is None else torch.cat([inner.new_zeros(2 * len(inner)), inner])

    @property
    def hidden(self) -> int:
        """How many numbers the state has."""
        return int(self.of_state.constant.shape[1])


class _Unrolling:
    """Writes one layer, or several that are one operator, in front of it."""

    def __init__(self, graph: GraphEditor, node: NodeView, steps: int) -> None:
        self.graph, self.node, self.steps = graph, node, steps
        self.axis = 1 if node.operand("batch_first").constant else 0

    def insert(self, kind: str, *operands: Any) -> ValueView:
        node = self.graph.insert(f"aten::{kind}", operands, before=self.node, like=self.node)
        return node.output

    def write(self) -> None:
        node, names = self.node, _names(self.node)
        values = [value for place, _, value in node.operands if place == node.position("params")]
        directions = 2 if node.operand("bidirectional").constant else 1
        sequence, last = node.main_operand, []
        for layer in range(_runs(node) // directions):
            found = []
            for number in range(layer * directions, (layer + 1) * directions):
                own = values[number * len(names) : (number + 1) * len(names)]
                run, back = _Run.of(own, node.kind == GRU), number % directions == 1
                states = self._states(sequence, run, self._initial(number), back)
                last.append(states[-1])
                ordered = reversed(states) if back else states
                found.append(self._joined([self._with_axis(s[0], self.axis) for s in ordered]))
            sequence = found[0] if directions == 1 else self._cat(found, -1)
        self.graph.replace(node.outputs[0], sequence)
        for place, value in enumerate(node.outputs[1:]):
            if value.uses or value.is_result:
                parts = [self._with_axis(state[place], 0) for state in last]
                self.graph.replace(value, self._joined(parts, 0))
        self.graph.remove(node)

    def _initial(self, number: int) -> State:
        """Return the state ahead of the first step."""
        given = [value for place, _, value in self.node.operands if place == 1]
        return [
            None
            if numbers_of(value) == frozenset({0.0})
            else self.insert("select", value, 0, number)
            for value in given
        ]

    def _states(self, sequence: ValueView, run: _Run, state: State, back: bool) -> list[State]:
        """Return the state behind each step, in the order of computation."""
        products = self.insert("linear", sequence, run.of_input, run.added)
        products = self.insert("unflatten", products, self.axis, [self.steps])  # or an error
        step = {"aten::lstm": self._lstm, GRU: self._gru}.get(self.node.kind, self._plain)
        found = []
        for t in reversed(range(self.steps)) if back else range(self.steps):
            state = step(self.insert("select", products, self.axis, t), run, state)
            found.append(state)
        return found

    def _plain(self, x: ValueView, run: _Run, state: State) -> State:
        (h,) = state
        if h is not None:
            x = self._sum(self.insert("linear", h, run.of_state, None), x)
        return [self.insert(self.node.kind.removeprefix("aten::rnn_"), x)]

    def _lstm(self, x: ValueView, run: _Run, state: State) -> State:
        h, c = state
        if h is not None:
            x = self._sum(self.insert("linear", h, run.of_state, None), x)
        i, f, g, o = (self._gate(x, run, number) for number in range(4))
        memory = self._product(self.insert("sigmoid", i), self.insert("tanh", g))
        if c is not None:
            memory = self._sum(self._product(self.insert("sigmoid", f), c), memory)
        return [self._product(self.insert("sigmoid", o), self.insert("tanh", memory)), memory]

    def _gru(self, x: ValueView, run: _Run, state: State) -> State:
        (h,) = state
        r, z, n = (self._gate(x, run, number) for number in range(3))
        if h is not None:
            of_state = self.insert("linear", h, run.of_state, run.bias_of_state)
            r, z = (self._sum(self._gate(of_state, run, k), x) for k, x in enumerate((r, z)))
            inner = self._product(self._gate(of_state, run, 2), self.insert("sigmoid", r))
            n = self.insert("tanh", self._sum(inner, n))
            apart = self._product(self.insert("sub", h, n, 1), self.insert("sigmoid", z))
            return [self._sum(apart, n)]
        if run.inner is not None:
            weight = run.inner.reshape(-1, 1, 1)
            column = self.insert("unsqueeze", self.insert("sigmoid", r), -1)
            options = ([1], [0], [1], run.hidden)
            inner = self.insert("conv1d", column, weight, None, *options)
            n = self._sum(self.insert("squeeze", inner, -1), n)
        n = self.insert("tanh", n)
        return [self.insert("sub", n, self._product(self.insert("sigmoid", z), n), 1)]

    def _gate(self, gates: ValueView, run: _Run, number: int) -> ValueView:
        ends = (number * run.hidden, (number + 1) * run.hidden)
        return self.insert("slice", gates, -1, *ends, 1)

    def _sum(self, a: ValueView, b: ValueView) -> ValueView:
        return self.insert("add", a, b, 1)

    def _product(self, a: ValueView, b: ValueView) -> ValueView:
        return self.insert("mul", a, b)

    def _with_axis(self, state: ValueView | None, axis: int) -> ValueView:
        assert state is not None
        return self.insert("unsqueeze", state, axis)

    def _joined(self, parts: Sequence[ValueView], axis: int | None = None) -> ValueView:
        return (
            parts[0] if len(parts) == 1 else self._cat(parts, self.axis if axis is None else axis)
        )

    def _cat(self, parts: Sequence[ValueView], axis: int) -> ValueView:
        listed = self.graph.insert(LIST, list(parts), before=self.node, like=self.node)
        return self.insert("cat", listed.output, axis)


def equal_values(graph: GraphView) -> Iterator[list[ValueView]]:
    """Yield values that the steps of a layer have in common: these have one format.

    Counted from the end of a step, since a first step from 0 is shorter. The last operator of a
    step gives the state; all states together, which the next layer reads, have its format too.
    """
    for node in graph.nodes:
        sizes = node.operand("sizes").constant if node.kind == "aten::unflatten" else ()
        linear = node.main_operand.producer if len(sizes or ()) == 1 else None
        if linear is None or linear.kind != "aten::linear":
            continue  # it is no layer's: there it splits nothing, and checks the number of steps
        begins = [user.index for user, _ in node.output.uses if user.kind == "aten::select"]
        steps = [list(reversed(step)) for step in _between(graph, sorted(begins))]
        for place, last in enumerate(steps[-1] if steps else ()):
            alike = [step[place] for step in steps if place < len(step)]
            values = [n.output for n in alike if place == 0 or n.kind == last.kind]
            yield values if place else [*values, *_joins_of(last.output)]


def _between(graph: GraphView, begins: list[int]) -> list[list[NodeView]]:
    """Return the operators of each step, given where it begins; the last ends with its state."""
    found: list[list[NodeView]] = [[] for _ in begins]
    for node in graph.nodes:
        step = bisect_right(begins, node.index) - 1
        if step >= 0 and len(node.outputs) == 1 and node.kind not in _HOLD:
            found[step].append(node)
    if len(found) > 1:  # the join of all states begins with an axis for them
        kinds = [node.kind for node in found[-1]]
        if _AXIS not in kinds:
            return []
        del found[-1][kinds.index(_AXIS) :]
    return found


def _joins_of(state: ValueView) -> Iterator[ValueView]:
    for axis, _ in state.uses:
        for listed, _ in axis.output.uses if axis.kind == _AXIS else ():
            if listed.kind == LIST:
                yield from (join.output for join, _ in listed.output.uses)
