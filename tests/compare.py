"""Comparison of what two modules return, whatever containers they return it in."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

Args = tuple[Any, ...] | dict[str, Any]
Leaf = tuple[str, Any]


def leaves(value: Any, path: str = "out") -> Iterator[Leaf]:
    """Yields every tensor and scalar in `value` with the path that leads to it.

    A path spells the container's kind, so a list that turned into a tuple, or a NamedTuple that
    lost its field names, gives other paths.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}{{{key!r}}}")
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, item in zip(value._fields, value, strict=True):
            yield from leaves(item, f"{path}.{field}")
    elif isinstance(value, tuple | list):
        mark = "()" if isinstance(value, tuple) else "[]"
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}{mark[0]}{index}{mark[1]}")
    else:
        yield path, value


def clone(value: Any) -> Any:
    """Copies a nest of tensors, so that a module may write into what it is given."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(clone(item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(clone(item) for item in value)
    return value


def call(module: torch.jit.ScriptModule, args: Args, method: str = "forward") -> Any:
    """Calls a method of `module` with positional (tuple) or keyword (dict) arguments."""
    function = module if method == "forward" else getattr(module, method)
    return function(**args) if isinstance(args, dict) else function(*args)


def sqnr(reference: Tensor, actual: Tensor) -> float:
    """Returns the signal to quantization noise ratio in dB, infinite for equal tensors."""
    signal = reference.double().square().sum().item()
    noise = (reference.double() - actual.double()).square().sum().item()
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def assert_codes(reference: Tensor, actual: Tensor, step: float) -> None:
    """Asserts that codes are equal, but for one step in less than 1 % of them.

    Two ways to add up in float32 differ in the last bit, and so in the code of a number that lies
    in the middle between two.
    """
    assert reference.shape == actual.shape
    apart = (reference.double() - actual.double()).abs() / step
    assert apart.max() < 1.01, f"{float(apart.max()):.2f} steps"
    other = float((apart > 0.5).double().mean())
    assert other < 0.01, f"{other:.2%} of codes differ"


def assert_same(reference: Any, actual: Any, what: str) -> None:
    """Asserts bitwise equality of every leaf (NaN equals NaN)."""
    assert_close(reference, actual, math.inf, what)


def assert_close(reference: Any, actual: Any, floor: float, what: str) -> None:
    """Asserts equal structure, shapes, dtypes, and an SQNR of at least `floor` dB in every leaf.

    Only floating point tensors may differ at all: counters, masks and Python scalars are exact.

    Args:
        reference: what the float module returned.
        actual: what the quantized module returned.
        floor: lowest SQNR in dB; infinity asks for equality.
        what: put in front of every message.
    """
    expected, found = list(leaves(reference)), list(leaves(actual))
    assert [path for path, _ in expected] == [path for path, _ in found], what
    for (path, left), (_, right) in zip(expected, found, strict=True):
        message = f"{what}: {path}"
        assert type(left) is type(right), message
        if not isinstance(left, Tensor):
            assert left == right, message
            continue
        assert (left.shape, left.dtype) == (right.shape, right.dtype), message
        assert not right.is_quantized, message
        if torch.equal(left, right) or torch.equal(left.nan_to_num(), right.nan_to_num()):
            continue
        assert left.is_floating_point(), f"{message}: {left} became {right}"
        ratio = sqnr(left, right)
        assert ratio >= floor, f"{message}: {ratio:.1f} dB is below {floor} dB"


def assert_arguments(given: Any, reference: Any, actual: Any, floor: float, what: str) -> None:
    """Asserts that two modules did the same to the tensors they were given.

    A tensor of the caller that the float module leaves alone is left alone, to the bit; one that
    it writes into reaches `floor` dB.

    Args:
        given: the arguments before either call.
        reference: the arguments after the float module's call.
        actual: the arguments after the quantized module's call.
        floor: lowest SQNR in dB of a tensor that was written into.
        what: put in front of every message.
    """
    nests = (list(leaves(nest, "argument")) for nest in (given, reference, actual))
    for (path, before), (_, left), (_, right) in zip(*nests, strict=True):
        written = isinstance(before, Tensor) and not torch.equal(before, left)
        assert_close(left, right, floor if written else math.inf, f"{what}: {path}")
