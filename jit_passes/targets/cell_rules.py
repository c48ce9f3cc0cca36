"""How linears replace a recurrent cell whose input is quantized as the model runs.

With x the input and h the state, both quantized as the cell's input is, W and U the weights:

    RNN     tanh(W x + U h), or relu
    LSTM    i, f, g, o = W x + U h;  c' = sig(f) c + sig(i) tanh(g);  h' = sig(o) tanh(c')
    GRU     r = sig(W_r x + U_r h),  z = sig(W_z x + U_z h),  n = tanh(W_n x + r (U_n h))
            h' = (h - n) z + n

Source: the kernels of ATen/native/RNN.cpp, in their order. `quantized::quantized_lstm_cell_dynamic`
and its like compute the same, for 7 bits only. The reference model leaves the state in float.
"""

from __future__ import annotations

from functools import cache

from ..passes.rule import RewriteRule
from ..passes.steps import RuleSet


def _quantized(value: str, name: str) -> str:
    return (
        f"  %{name}_s, %{name}_z = jit_passes::choose_qparams("
        f"{value}, %low, %high, %scheme, %form)\n"
        f"  %{name}_q = jit_passes::quantize_dynamic("
        f"{value}, %{name}_s, %{name}_z, %low, %high, %dtype)\n"
        f"  %{name}_d = jit_passes::dequantize_dynamic(%{name}_q, %{name}_s, %{name}_z)\n"
    )


_PRODUCTS = (
    _quantized("%x", "x")
    + _quantized("%h", "h")
    + "  %one : int = prim::Constant[value=1]()\n"
    + "  %of_input = aten::linear(%x_d, %w_ih, %b_ih)\n"
    + "  %of_state = aten::linear(%h_d, %w_hh, %b_hh)\n"
)
_SUM = f"{_PRODUCTS}  %sum = aten::add(%of_state, %of_input, %one)\n"


def _parts(value: str, *names: str) -> str:
    listed = ", ".join(f"%{name}" for name in names)
    return (
        f"  %{names[0]}_all : Tensor[] = aten::chunk({value}, %count, %one)\n"
        f"  {listed} = prim::ListUnpack(%{names[0]}_all)\n"
    )


_LSTM = (
    f"{_SUM}  %count : int = prim::Constant[value=4]()\n"
    f"{_parts('%sum', 'i', 'f', 'g', 'o')}"
    "  %i_gate = aten::sigmoid(%i)\n"
    "  %f_gate = aten::sigmoid(%f)\n"
    "  %g_gate = aten::tanh(%g)\n"
    "  %o_gate = aten::sigmoid(%o)\n"
    "  %kept = aten::mul(%f_gate, %c)\n"
    "  %added = aten::mul(%i_gate, %g_gate)\n"
    "  %memory = aten::add(%kept, %added, %one)\n"
    "  %shown = aten::tanh(%memory)\n"
    "  %y = aten::mul(%o_gate, %shown)\n"
    "  return (%y, %memory)"
)
_GRU = (
    f"{_PRODUCTS}  %count : int = prim::Constant[value=3]()\n"
    f"{_parts('%of_input', 'rx', 'zx', 'nx')}{_parts('%of_state', 'rh', 'zh', 'nh')}"
    "  %r_sum = aten::add(%rh, %rx, %one)\n"
    "  %r = aten::sigmoid(%r_sum)\n"
    "  %z_sum = aten::add(%zh, %zx, %one)\n"
    "  %z = aten::sigmoid(%z_sum)\n"
    "  %reset = aten::mul(%nh, %r)\n"
    "  %n_sum = aten::add(%nx, %reset, %one)\n"
    "  %n = aten::tanh(%n_sum)\n"
    "  %difference = aten::sub(%h, %n, %one)\n"
    "  %scaled = aten::mul(%difference, %z)\n"
    "  %y = aten::add(%scaled, %n, %one)\n"
    "  return (%y)"
)


def _rule(kind: str, replacement: str) -> RewriteRule:
    lstm = kind == "lstm_cell"
    names = "%x, %low, %high, %scheme, %form, %dtype, %h, " + "%c, " * lstm
    header = f"graph({names}%w_ih, %w_hh, %b_ih, %b_hh):\n"
    state = "%states" if lstm else "%h"
    results = "%y, %memory" if lstm else "%y"
    pattern = (
        f"{header}{_quantized('%x', 'x')}"
        + "  %states : Tensor[] = prim::ListConstruct(%h, %c)\n" * lstm
        + f"  {results} = aten::{kind}(%x_d, {state}, %w_ih, %w_hh, %b_ih, %b_hh)\n"
        f"  return ({results})"
    )
    return RewriteRule(f"expand_{kind}", pattern, header + replacement)


@cache
def expand_cells() -> RuleSet:
    """Return the step of a lowering, parsed once."""
    plain = {f: f"{_SUM}  %y = aten::{f}(%sum)\n  return (%y)" for f in ("tanh", "relu")}
    bodies = {"lstm_cell": _LSTM, "gru_cell": _GRU}
    bodies |= {f"rnn_{name}_cell": body for name, body in plain.items()}
    return RuleSet("expand_cells", tuple(_rule(*row).compile() for row in bodies.items()))
