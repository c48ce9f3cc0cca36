"""Freezing a module, running it call after call, and reading what it holds."""

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jit_passes import _C
from jit_passes.passes.subject import wrap
from tests.compare import Args, assert_same, call, clone
from tests.models.freezing import CASES
from tests.models.freezing.case import Case, vectors

Script = torch.jit.ScriptModule
PRIVATE = set(vars(nn.Module())) - {"training"}  # how nn.Module keeps what it has


def freeze(module: Script, method: str = "forward") -> Script:
    """Freeze one method; the graph is sound, has no calls, and its module is in eval mode."""
    frozen, changed, _ = _C.run_pass("freeze", module._c, method, {})
    assert changed
    _C.lint(frozen, method)
    assert _C.check_invariant("inlined", frozen, method) is None
    return wrap(frozen)


def reload(module: Script) -> Script:
    """Through a file and back."""
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def run(module: Any, calls: list[Args], method: str = "forward") -> list[Any]:
    """Call after call: the results, and the arguments afterwards."""
    outcomes = []
    for args in clone(calls):
        with torch.no_grad():
            outcomes.append({"output": clone(call(module, args, method)), "arguments": args})
    return outcomes


def plain(value: Any) -> Any:
    """A copy of an attribute's value; instances of classes cannot be compared.

    Named tuples become plain ones, which they are when they come from a file.
    """
    if isinstance(value, tuple):
        return tuple(plain(element) for element in value)
    known = isinstance(value, Tensor | int | float | str | list | tuple | dict | torch.device)
    return clone(value) if known or value is None else type(None)


def parts(module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All C++ modules with their paths; one that has two names comes twice."""
    yield path, module
    for name, child in torch._C.ModuleDict(module).items():
        yield from parts(child, f"{path}{name}.")


def names(module: nn.Module) -> set[str]:
    """The names of the attributes of an eager model's modules."""
    found: set[str] = set()
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            continue  # of the same class as an eager one
        found |= {*part._parameters, *part._buffers, *vars(part)} - PRIVATE
    return found


def state(module: Script, model: nn.Module) -> dict[str, Any]:
    """Copies of all attributes that are not modules, but the first `training`, which is always."""
    found = {
        path + name: plain(part.getattr(name))
        for path, part in parts(module._c)
        for name in names(model)
        if part.hasattr(name) and not isinstance(part.getattr(name), torch._C.ScriptModule)
    }
    assert isinstance(found.pop("training", False), bool)
    return found


def graphs(module: Script) -> dict[str, str]:
    """The text of all methods."""
    return {
        path + name: str(part._get_method(name).graph)
        for path, part in parts(module._c)
        for name in part._method_names()
    }


def kinds(module: Script, method: str = "forward") -> set[str]:
    """Operators of a method, nested blocks included."""
    found: set[str] = set()

    def visit(block: Any) -> None:
        for node in block.nodes():
            found.add(node.kind())
            for inner in node.blocks():
                visit(inner)

    visit(module._c._get_method(method).graph)
    return found


def attribute(model: nn.Module, path: str) -> Any:
    """Return the attribute at a path."""
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name)
    return value


def assert_same_state(model: nn.Module, found: dict[str, Any], what: str) -> None:
    """The eager model's attributes have these values."""
    assert_same({path: plain(attribute(model, path)) for path in found}, found, what)


def everywhere(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on all models, by all frontends."""
    rows = [
        pytest.param(
            case,
            frontend,
            id=f"{case.make.__name__}-{frontend}",
        )
        for case in CASES
        for frontend in ("script", "load", "trace")
        if case.trace or frontend != "trace"
    ]
    return pytest.mark.parametrize(("case", "frontend"), rows)(test)


def build(case: Case, frontend: str) -> tuple[nn.Module, Script]:
    """An eager model, and a module of TorchScript with the same values but memory of its own."""
    torch.manual_seed(0)
    model = case.make().eval()
    if frontend == "trace":
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            module = torch.jit.trace(model, case.calls()[0], check_trace=False)
    else:
        module = torch.jit.script(model)
    if frontend == "load":
        module = reload(module)
    return copy.deepcopy(model), module


def assert_freezes(
    make: Callable[[], nn.Module], calls: Callable[[], list[Args]] = vectors
) -> Script:
    """Freeze a scripted model, run both, see that the caller's is untouched, return the frozen."""
    model, module = build(Case(make), "script")
    before = state(module, model)
    frozen = freeze(module)
    assert_same(run(model, calls()), run(frozen, calls()), "frozen")
    assert_same_state(model, state(frozen, model), "state")
    assert_same(before, state(module, model), "the caller's")
    return frozen
