"""Whether two modules compute the same, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from . import _C

Inputs = tuple[Any, ...] | Mapping[str, Any]


def assert_equivalent(
    before: Any,
    after: Any,
    inputs: Inputs,
    *,
    method: str = "forward",
    gradients: bool = True,
    tolerance: float | None = None,
    seed: int = 0,
) -> None:
    """Assert that two modules compute the same outputs, and gradients of parameters and inputs.

    Copies of the modules run, so that running statistics and counters stay. Gradients are those of
    sum(output * w) with one random w for both. Tensors are equal when

        max |a - b| <= tolerance * max(max |a|, 1e-3)

    and what is not finite is so in both, at the same places.

    Args:
        before: a ScriptModule.
        after: another one, with parameters of the same names where these are to be compared.
        inputs: arguments, a tuple or a dict.
        method: the method to call.
        gradients: whether to compare gradients, where outputs have any.
        tolerance: None for 1e-5 in float32, 1e-12 in float64, 1e-2 below.
        seed: of random numbers that the modules draw, dropout say.

    Raises:
        AssertionError: the first difference, by path: `output[0]`, `gradient of conv1.weight`.
    """
    found = [_observe(module, method, inputs, gradients, seed) for module in (before, after)]
    expected, actual = found
    missing = [name for name in expected if name not in actual]
    added = [name for name in actual if name not in expected and not name.startswith("gradient")]
    if missing or added:
        raise AssertionError(
            f"{missing[0]} is missing after it" if missing else f"{added[0]} was not there before"
        )
    for name, value in expected.items():
        _compare(name, value, actual[name], tolerance)


def _observe(
    module: Any, method: str, inputs: Inputs, gradients: bool, seed: int
) -> dict[str, Any]:
    runner = _deepcopy(module)
    given = _fresh(inputs, gradients)
    with torch.random.fork_rng(), torch.set_grad_enabled(gradients):
        torch.manual_seed(seed)
        function = runner if method == "forward" else getattr(runner, method)
        passed = _writable(given)
        output = function(**passed) if isinstance(passed, Mapping) else function(*passed)
    found = dict(_leaves(output, "output"))
    if gradients:
        found.update(_gradients(found, runner, given))
    return found


def _deepcopy(module: Any) -> Any:
    copied = _C.deepcopy(module._c)
    return torch.jit._recursive.wrap_cpp_module(copied)  # type: ignore[no-untyped-call]


def _gradients(outputs: dict[str, Any], module: Any, inputs: Inputs) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    loss: Any = None
    for value in outputs.values():
        if isinstance(value, Tensor) and value.requires_grad:
            weight = torch.rand(value.shape, generator=generator).to(value) + 0.5
            term = (value * weight).sum()
            loss = term if loss is None else loss + term
    wanted = {
        name: value
        for name, value in [*module.named_parameters(), *_leaves(inputs, "input")]
        if isinstance(value, Tensor) and value.requires_grad
    }
    if loss is None or not wanted:
        return {}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {
        f"gradient of {name}": torch.zeros_like(wanted[name]) if grad is None else grad
        for name, grad in zip(wanted, found, strict=True)
    }


def _fresh(value: Any, gradients: bool) -> Any:
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        return copy.requires_grad_(gradients and copy.is_floating_point())
    if isinstance(value, Mapping):
        return {key: _fresh(item, gradients) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_fresh(item, gradients) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_fresh(item, gradients) for item in value)
    return value


def _writable(value: Any) -> Any:
    """Copy leaves, which in-place operators must not write to."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _writable(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_writable(item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_writable(item) for item in value)
    return value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value


_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def _compare(name: str, expected: Any, actual: Any, tolerance: float | None) -> None:
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        if type(expected) is not type(actual) or expected != actual:
            raise AssertionError(f"{name} was {expected!r} and is {actual!r}")
        return
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        raise AssertionError(
            f"{name} was {expected.dtype} {list(expected.shape)} and is "
            f"{actual.dtype} {list(actual.shape)}"
        )
    if expected.is_quantized or not (expected.is_floating_point() or expected.is_complex()):
        if not torch.equal(expected, actual):
            raise AssertionError(f"{name} differs")
        return
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        raise AssertionError(f"{name} is not finite at other places than before")
    if not finite.any():
        return
    bound = _TOLERANCES.get(expected.dtype, 1e-2) if tolerance is None else tolerance
    a, b = expected[finite].detach().double(), actual[finite].detach().double()
    worst = float((a - b).abs().max())
    scale = max(float(a.abs().max()), 1e-3)
    if not worst <= bound * scale:
        raise AssertionError(
            f"{name} differs by {worst:.3g}, where its largest value is {scale:.3g} and the "
            f"tolerance {bound:.0e} of that"
        )
