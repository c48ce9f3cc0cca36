"""How linears replace a recurrent cell whose input is quantized as the model runs.

With x the input and h the state, both quantized as the cell's input is, W and U the weights:

    RNN     tanh(W x + U h), or relu
    LSTM    i, f, g, o = W x + U h;  c' = sig(f) c + sig(i) tanh(g);  h' = sig(o) tanh(c')
    GRU     r = sig(W_r x + U_r h),  z = sig(W_z x + U_z h),  n = tanh(W_n x + r (U_n h))
            h' = (h - n) z + n

Source: the kernels of ATen/native/RNN.cpp, in their order. `quantized::quantized_lstm_cell_dynamic`
and its like compute these equations too, for 7 bits only. The reference model leaves the state in
float.
"""

from __future__ import annotations

from functools import cache

from ..passes.rule import RewriteRule
from ..passes.steps import RuleSet
from .dynamic_rules import quantized_as_it_runs

_OF_INPUT = quantized_as_it_runs("%x")
_PRODUCTS = (
    f"{_OF_INPUT}{quantized_as_it_runs('%h')}"
    "%of_input = aten::linear(%x_d, %w_ih, %b_ih)\n"
    "%of_state = aten::linear(%h_d, %w_hh, %b_hh)\n"
)
_SUM = "aten::add(%of_state, %of_input, 1)"
_BODIES = {
    "rnn_tanh_cell": f"aten::tanh({_SUM})",
    "rnn_relu_cell": f"aten::relu({_SUM})",
    "lstm_cell": f"""
%i, %f, %g, %o = prim::ListUnpack(aten::chunk({_SUM}, 4, 1))
%i_gate = aten::sigmoid(%i)
%f_gate = aten::sigmoid(%f)
%g_gate = aten::tanh(%g)
%o_gate = aten::sigmoid(%o)
%memory = aten::add(aten::mul(%f_gate, %c), aten::mul(%i_gate, %g_gate), 1)
(aten::mul(%o_gate, aten::tanh(%memory)), %memory)""",
    "gru_cell": """
%rx, %zx, %nx = prim::ListUnpack(aten::chunk(%of_input, 3, 1))
%rh, %zh, %nh = prim::ListUnpack(aten::chunk(%of_state, 3, 1))
%r = aten::sigmoid(aten::add(%rh, %rx, 1))
%z = aten::sigmoid(aten::add(%zh, %zx, 1))
%n = aten::tanh(aten::add(%nx, aten::mul(%nh, %r), 1))
aten::add(aten::mul(aten::sub(%h, %n, 1), %z), %n, 1)""",
}


def _rule(kind: str, body: str) -> RewriteRule:
    lstm = kind == "lstm_cell"
    weights = "%w_ih, %w_hh, %b_ih, %b_hh"
    cell = f"aten::{kind}(%x_d, {'[%h, %c]' if lstm else '%h'}, {weights})"
    pattern = f"%y, %memory = {cell}\n(%y, %memory)" if lstm else cell
    return RewriteRule(f"expand_{kind}", _OF_INPUT + pattern, _PRODUCTS + body)


@cache
def expand_cells() -> RuleSet:
    """Return the step of a lowering, parsed once."""
    rules = (_rule(kind, body).compile() for kind, body in _BODIES.items())
    return RuleSet("expand_cells", tuple(rules))
