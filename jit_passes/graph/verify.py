"""Whether two modules have equal results, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..errors import JitPassesError

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


def assert_equivalent(
    before: Any,
    after: Any,
    inputs: Inputs,
    *,
    method: str = "forward",
    gradients: bool = True,
    tolerance: float | None = None,
    gradient_tolerance: float | None = None,
    seed: int = 0,
) -> None:
    """Assert that two modules give equal outputs, gradients and written tensors.

    Parameters and inputs have gradients, of sum(output * w) with one random w for both modules; a
    missing gradient counts as 0. Writes count in buffers that both modules have, and in the inputs.
    Copies of the modules run, so that running statistics and counters stay. Tensors are equal when

        max |a - b| <= tolerance * max(max |a|, 1e-3)

    where for a gradient |a| is over all gradients: that of a bias in front of a batch norm, say, is
    0 but for rounding. NaN and infinities stand at the same places in both.

    Args:
        before: a ScriptModule.
        after: another one, with parameters of the same names where these are to be compared.
        inputs: arguments, a tuple or a dict; a tensor is the only one.
        method: the method to call.
        gradients: whether to compare gradients, where outputs have any.
        tolerance: None for 1e-5 in float32, 1e-12 in float64, 1e-2 below; 0 asks for equal bits.
        gradient_tolerance: for gradients; None for `tolerance`.
        seed: of random numbers that the modules draw, dropout say.

    Raises:
        AssertionError: the first difference, by path: `output[0]`, `gradient of conv1.weight`.
    """
    expected, actual = (
        observe(module, method, inputs, gradients, seed) for module in (before, after)
    )
    compare(expected, actual, tolerance, gradient_tolerance)


def compare(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    tolerance: float | None = None,
    gradient_tolerance: float | None = None,
    *,
    parameters: bool = True,
) -> None:
    """Assert that two observations are equal; see `assert_equivalent`.

    Args:
        expected: the result of `observe` for the module before.
        actual: its result for the module after.
        tolerance: see `assert_equivalent`.
        gradient_tolerance: likewise.
        parameters: whether gradients of parameters count; a frozen module has no parameters.

    Raises:
        AssertionError: a name, shape, dtype or value differs; the message names the first one.
    """
    largest = max(
        (float(v.detach().abs().max()) for n, v in expected.items() if _is_gradient(n, v)),
        default=0.0,
    )
    added = [n for n in actual if n not in expected and not n.startswith((GRADIENT, BUFFER))]
    for name, value in expected.items():
        is_gradient = name.startswith(GRADIENT)
        least = largest if is_gradient else 0.0
        bound = gradient_tolerance if is_gradient and gradient_tolerance is not None else tolerance
        if name in actual:
            _compare(name, value, actual[name], bound, least)
        elif is_gradient:
            if parameters or name.startswith(f"{GRADIENT}input"):
                _compare(name, value, torch.zeros_like(value), bound, least)
        elif not name.startswith(BUFFER):
            raise AssertionError(f"{name} is missing after it")
    if added:
        raise AssertionError(f"{added[0]} was not there before")


GRADIENT = "gradient of "
BUFFER = "buffer "


def observe(
    module: Any, method: str, inputs: Inputs, gradients: bool = True, seed: int = 0
) -> dict[str, Any]:
    """Return outputs, gradients and written tensors of a copy of the module, by name."""
    runner = _deepcopy(module)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list | Mapping):
        raise JitPassesError(
            "example inputs are a tuple or dict of arguments, or a tensor if there is one only, "
            f"not {type(inputs).__name__}"
        )
    leaves = _mapped(inputs, lambda value: _fresh(value, gradients))
    given = _mapped(leaves, Tensor.clone)  # a module may not write to leaves of autograd
    with torch.random.fork_rng(), torch.set_grad_enabled(gradients):
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        function = runner if method == "forward" else getattr(runner, method)
        output = function(**given) if isinstance(given, Mapping) else function(*given)
    found = dict(leaves_of(output, "output"))
    if gradients:
        found.update(_gradients(found, runner, leaves))
    found.update((f"written {name}", value) for name, value in leaves_of(given, "input"))
    found.update((BUFFER + name, value) for name, value in runner.named_buffers())
    return found


def _deepcopy(module: Any) -> Any:
    copied = _C.deepcopy(module._c)
    return torch.jit._recursive.wrap_cpp_module(copied)  # type: ignore[no-untyped-call]


def _gradients(outputs: dict[str, Any], module: Any, inputs: Inputs) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    loss: Any = None
    for value in outputs.values():
        if not isinstance(value, Tensor):
            continue
        weight = torch.rand(value.shape, generator=generator).to(value) + 0.5
        if value.requires_grad:
            term = (value * weight).sum()
            loss = term if loss is None else loss + term
    wanted = {
        name: value
        for name, value in [*module.named_parameters(), *leaves_of(inputs, "input")]
        if isinstance(value, Tensor) and value.requires_grad
    }
    if loss is None or not wanted:
        return {}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {
        GRADIENT + name: torch.zeros_like(wanted[name]) if grad is None else grad
        for name, grad in zip(wanted, found, strict=True)
    }


def _fresh(value: Tensor, gradients: bool) -> Tensor:
    copy = value.detach().clone()
    return copy.requires_grad_(gradients and copy.is_floating_point())


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the same structure with other tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, function) for key, item in value.items()}
    if not isinstance(value, tuple | list):
        return value
    items = (_mapped(item, function) for item in value)
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all that is no tuple, list or mapping, with paths."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves_of(item, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from leaves_of(item, f"{path}[{index}]")
    else:
        yield path, value


_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def _is_gradient(name: str, value: Any) -> bool:
    return name.startswith(GRADIENT) and value.numel() > 0 and bool(value.isfinite().all())


def _compare(
    name: str, expected: Any, actual: Any, tolerance: float | None, least: float = 0.0
) -> None:
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        if type(expected) is not type(actual) or expected != actual:
            raise AssertionError(f"{name} was {expected!r} and is {actual!r}")
        return
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        raise AssertionError(
            f"{name} was {expected.dtype} {list(expected.shape)} and is "
            f"{actual.dtype} {list(actual.shape)}"
        )
    if torch.equal(expected, actual):
        return
    if expected.is_quantized or not (expected.is_floating_point() or expected.is_complex()):
        raise AssertionError(f"{name} differs")
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        raise AssertionError(f"{name} is not finite at other places than before")
    if not finite.any():
        return
    bound = _TOLERANCES.get(expected.dtype, 1e-2) if tolerance is None else tolerance
    a, b = expected[finite].detach().double(), actual[finite].detach().double()
    worst = float((a - b).abs().max())
    scale = max(float(a.abs().max()), least, 1e-3)
    if not worst <= bound * scale:
        raise AssertionError(
            f"{name} differs by {worst:.3g}, where its largest value is {scale:.3g} and the "
            f"tolerance {bound:.0e} of that"
        )
