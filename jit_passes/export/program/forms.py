"""Forms: functions that compute the nodes of a graph; most are PyTorch's operators.

Operators that PyTorch's dispatcher has are called by their schema. TorchScript has more of them,
for numbers, lists and dicts: the tables say their Python. Branches, loops and attributes are in
`running.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from types import SimpleNamespace
from typing import Any

import torch

from ...graph.view import NodeView
from .dialect import Limits, dialect_form
from .enums import DTYPES, ENUMS, NUMBERS
from .flat import tensor_of

Form = Callable[..., Any]
_torch: Any = torch  # functions of symbols have no types

MADE = (torch.int64, torch.float32)  # dtypes of the tensors that are made of numbers
_SCALARS = ("bool", "int", "float", "Scalar", "SymInt", "number")


def form_of(node: NodeView, known: Mapping[int, Limits]) -> Form | None:
    """Return the function of a node's operands that gives its result, a tuple of several; or None.

    The result is None if neither PyTorch's dispatcher nor a table knows the operator.

    Args:
        node: which.
        known: by index of a quantize, its smallest and largest code.
    """
    if found := _FIRST.get(node.kind) or dialect_form(node, known):
        return found
    if node.kind.startswith(_REFUSED) or node.kind in _PACKED:
        return None
    overload = f"{node.kind}.{node.overload}" if node.overload else node.kind
    if torch._C._dispatch_has_kernel(overload):
        return _SPELLED.get(overload, _operator)(node)
    return _PYTHON.get(node.kind)


def _operator(node: NodeView) -> Form:
    """Return the call of an operator that PyTorch's dispatcher has."""
    namespace, _, name = node.kind.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    called = getattr(packet, node.overload or "default")
    arguments = [
        (argument.name, argument.kwarg_only, _conversion(str(argument.real_type)))
        for argument in called._schema.arguments
    ]
    of_names = {name for name, by_name, _ in arguments if by_name}

    def call(*operands: Any) -> Any:
        given = [
            (name, operand if convert is None else convert(operand))
            for (name, _, convert), operand in zip(arguments, operands, strict=True)
        ]
        found = called(
            *(value for name, value in given if name not in of_names),
            **{name: value for name, value in given if name in of_names and value is not None},
        )
        # As TorchScript's lists, which an operator behind may change.
        return list(found) if isinstance(found, tuple) and len(node.outputs) == 1 else found

    return call


def _clamp(node: NodeView) -> Form:
    """Return a clamp, as `hardtanh` between two numbers.

    Engines look for `hardtanh` behind a convolution: If a clamp follows, XNNPACK leaves the
    operator in float, and ExecuTorch 1.5.1 computes it wrongly.
    """
    clamp = _operator(node)

    def call(x: Any, low: Any, high: Any) -> Any:
        numbers = all(type(end) in (int, float) for end in (low, high))
        if numbers and low <= high and isinstance(x, torch.Tensor) and x.is_floating_point():
            return torch.ops.aten.hardtanh.default(x, float(low), float(high))
        return clamp(x, low, high)

    return call


def _average(node: NodeView) -> Form:
    """Return an adaptive pool, as a mean where it has one place and the data decide its sizes.

    The data decide sizes in a trace that pads by open sizes. PyTorch compares sizes of pools with
    0, so it would have to know them.
    """
    pool = _operator(node)

    def call(x: Any, places: Any) -> Any:
        # With SymPy, importing this package would take twice as long.
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        if free_unbacked_symbols(x) and all(place == 1 for place in places):
            return x.mean([*range(-len(places), 0)], keepdim=True)
        return pool(x, places)

    return call


def _conversion(type_: str) -> Form | None:
    """Return the function from a graph's value to an argument of that type; None for none."""
    for name, members in ENUMS.items():
        if name in type_:
            return lambda value: members.get(value, value) if isinstance(value, int) else value
    plain = type_.removeprefix("Optional[").removesuffix("]")
    if plain in _SCALARS:
        return number
    return _tensor if plain == "Tensor" else None


def number(value: Any) -> Any:
    """Return the number that a tensor without axes stands for."""
    return value.item() if isinstance(value, torch.Tensor) else value


def _tensor(value: Any) -> Any:
    """Return a tensor for a number: traces have tensors in place of numbers."""
    if isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat):
        whole = isinstance(value, int | torch.SymInt)
        return _torch.scalar_tensor(value, dtype=MADE[0 if whole else 1])
    return value


def _whole(value: Any) -> Any:
    return _torch.sym_int(number(value)) if not isinstance(value, str) else int(value)


def _real(value: Any) -> Any:
    return _torch.sym_float(number(value)) if not isinstance(value, str) else float(value)


def _truth(value: Any) -> Any:
    """Return a truth: of a tensor another tensor, which a branch can go by."""
    if isinstance(value, torch.Tensor):
        truth = value if value.dtype == torch.bool else value.ne(0)
        return truth if truth.dim() == 0 else truth.reshape(())
    symbolic = isinstance(value, torch.SymInt | torch.SymFloat)
    return value != 0 if symbolic else value if isinstance(value, torch.SymBool) else bool(value)


def _negation(value: Any) -> Any:
    return value.logical_not() if isinstance(value, torch.Tensor) else _torch.sym_not(value)


def _either(tensors: Form, numbers: Form) -> Form:
    """Return a form for truths: `and` and `or` of Python would ask for the value of a tensor."""

    def both(a: Any, b: Any) -> Any:
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            return tensors(tensor_of(a), tensor_of(b))
        return numbers(a, b)

    return both


def _chosen(choose: Form) -> Form:
    """Return a form for `min` or `max` of two numbers, or of a list of numbers."""
    return lambda *operands: reduce(choose, operands[0] if len(operands) == 1 else operands)


def _slice(items: Any, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    return items[slice(start, end, step)]


def _set(items: Any, key: Any, value: Any) -> Any:
    items[key] = value
    return items


def _changed(change: Callable[..., Any]) -> Form:
    """Return a form of a method that changes its list, and returns it as TorchScript does."""

    def form(items: Any, *operands: Any) -> Any:
        change(items, *operands)
        return items

    return form


def _dict(*operands: Any) -> dict[Any, Any]:
    return dict(zip(operands[::2], operands[1::2], strict=True))


def _made(data: Any, dtype: Any = None, device: Any = None, *_: Any) -> torch.Tensor:
    """Return `torch.tensor` of numbers; lists may hold tensors without axes, which it refuses."""
    kind = DTYPES.get(dtype)
    if isinstance(data, torch.Tensor):
        return data.detach().clone().to(device=device, dtype=kind or data.dtype)
    if isinstance(data, list) and any(isinstance(item, torch.Tensor) for item in data):
        return torch.stack([_tensor(item).to(device=device, dtype=kind) for item in data])
    if isinstance(data, list):
        return torch.tensor(data, dtype=kind, device=device)
    # Computed: branches with a constant of their own are not decomposed by torch 2.13.
    full: Any = torch.full  # which takes symbols, though its type does not say so
    made: torch.Tensor = full((), data, dtype=kind, device=device)
    return made


def _taken(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    if isinstance(data, torch.Tensor):
        return data.to(device=device, dtype=DTYPES.get(dtype, data.dtype))
    return _made(data, dtype, device)


def _converted(x: torch.Tensor, *operands: Any) -> torch.Tensor:
    """Return `x.to(device, dtype, non_blocking, copy)`; a graph may leave some out."""
    device = next((item for item in operands if isinstance(item, torch.device)), x.device)
    dtype = next((DTYPES[item] for item in operands if type(item) is int), x.dtype)
    return x.to(device=device, dtype=dtype)


def _same(value: Any, *_: Any) -> Any:
    return value


def _nothing(*_: Any) -> None:
    return None


def _size(x: torch.Tensor, axis: Any = None) -> Any:
    return list(x.shape) if axis is None else x.shape[axis]


# Operators of the dispatcher that are computed in another way for some operands.
_SPELLED: dict[str, Callable[[NodeView], Form]] = {
    "aten::clamp": _clamp,
    "aten::adaptive_avg_pool1d": _average,
    "aten::adaptive_avg_pool2d": _average,
    "aten::adaptive_avg_pool3d": _average,
}

# Ahead of the dispatcher's, which want plain numbers where a size is open.
_FIRST: dict[str, Form] = {
    "aten::size": _size,
    "aten::dim": lambda x: x.dim(),
    "aten::numel": lambda x: x.numel(),
    "aten::item": number,
    "aten::is_floating_point": lambda x: x.is_floating_point(),
    "aten::is_complex": lambda x: x.is_complex(),
    "aten::tensor": _made,
    "aten::as_tensor": _taken,
    "prim::NumToTensor": _same,
    "prim::TupleConstruct": lambda *items: tuple(items),
    "prim::ListConstruct": lambda *items: list(items),
    "prim::DictConstruct": _dict,
    "prim::TupleUnpack": tuple,
    "prim::ListUnpack": tuple,
    "prim::TupleIndex": operator.getitem,
    "prim::dtype": lambda x: NUMBERS[x.dtype],
    "prim::device": lambda x: x.device,
    "prim::layout": lambda x: 0,
    "prim::is_cuda": lambda x: x.is_cuda,
    "prim::is_sparse": lambda x: x.is_sparse,
    "prim::is_quantized": lambda x: False,
    "prim::requires_grad": lambda x: False,
    "prim::type": lambda device: device.type,
    "prim::Uninitialized": _nothing,
    "prim::Print": _nothing,
    "prim::CreateObject": SimpleNamespace,
    "prim::Enter": _nothing,
    "prim::Exit": _nothing,
    "prim::is_nested": lambda x: False,
    "prim::data": _same,
    "prim::unchecked_cast": _same,
    "prim::unchecked_unwrap_optional": _same,
    "prim::min": _chosen(_torch.sym_min),
    "prim::max": _chosen(_torch.sym_max),
    "prim::abs": abs,
}

# Operators of TorchScript alone: numbers, lists, dicts and text.
_PYTHON: dict[str, Form] = {
    "aten::_unwrap_optional": _same,
    "aten::detach": _same,
    "aten::warn": _nothing,
    "aten::Int": _whole,
    "aten::Float": _real,
    "aten::Bool": _truth,
    "aten::IntImplicit": _whole,
    "aten::FloatImplicit": _real,
    "aten::ScalarImplicit": number,
    "aten::add": operator.add,
    "aten::add_": operator.iadd,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::div": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::pow": operator.pow,
    "aten::neg": operator.neg,
    "aten::abs": abs,
    "aten::floor": math.floor,
    "aten::ceil": math.ceil,
    "aten::round": round,
    "aten::sqrt": _torch.sym_sqrt,
    "aten::exp": math.exp,
    "aten::log": math.log,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": _either(torch.logical_and, operator.and_),
    "aten::__or__": _either(torch.logical_or, operator.or_),
    "aten::__xor__": _either(torch.logical_xor, operator.xor),
    "aten::__not__": _negation,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::all": all,
    "aten::any": any,
    "aten::sum": sum,
    "aten::is_grad_enabled": lambda: False,
    "aten::set_grad_enabled": _nothing,
    "aten::is_autocast_enabled": lambda: False,
    "aten::is_autocast_cpu_enabled": lambda: False,
    "aten::len": len,
    "aten::__range_length": lambda low, high, step: len(range(low, high, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::__getitem__": operator.getitem,
    "aten::__contains__": operator.contains,
    "aten::_set_item": _set,
    "aten::slice": _slice,
    "aten::append": _changed(list.append),
    "aten::extend": _changed(list.extend),
    "aten::insert": _changed(list.insert),
    "aten::clear": _changed(lambda items: items.clear()),
    "aten::reverse": _changed(list.reverse),
    "aten::update": _changed(dict.update),
    "aten::Delete": _changed(operator.delitem),
    "aten::pop": lambda items, *key: items.pop(*key),
    "aten::popitem": dict.popitem,
    "aten::setdefault": dict.setdefault,
    "aten::copy": lambda items: items.copy(),
    "aten::list": list,
    "aten::dict": dict,
    "aten::keys": lambda items: list(items),
    "aten::values": lambda items: list(items.values()),
    "aten::items": lambda items: list(items.items()),
    "aten::get": dict.get,
    "aten::str": str,
    "aten::format": lambda text, *values: text.format(*values),
    "aten::stride": lambda x: list(x.stride()),
    "aten::split": lambda x, sizes, axis=0: list(torch.split(x, sizes, axis)),
    "aten::to": _converted,
    "aten::cpu": lambda x: x.cpu(),
}

# Values of these have PyTorch's quantized dtypes, or are packed for one processor.
_REFUSED = ("quantized::", "jit_passes::", "onednn::", "mkldnn", "prepacked::")
_PACKED = (
    *("aten::quantize_per_tensor", "aten::quantize_per_tensor_dynamic"),
    *(
        "aten::quantize_per_channel",
        "aten::dequantize",
        "aten::to_mkldnn",
        "aten::mkldnn_convolution",
    ),
)
