"""Subjects of passes: a method of a module that no one else holds, or a graph alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..errors import JitPassesError


@dataclass(frozen=True)
class Remark:
    """A message of a pass or a rule set about a node.

    Attributes:
        name: stable name of the node, `layer1.0.conv1:conv2d`.
        reason: why it was left alone, say.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


Outcome = tuple[bool, tuple[Remark, ...]]


class Subject(ABC):
    """The module or graph that a pipeline works on.

    Steps return whether they changed it, and their remarks.
    """

    method: str = ""
    held: Any  # the C++ module or graph

    @abstractmethod
    def graph(self) -> Any:
        """Return PyTorch's graph."""

    def run_pass(self, name: str, options: Mapping[str, Any]) -> Outcome:
        """Run a registered pass."""
        return self._keep(_C.run_pass(name, self.held, self.method, dict(options)))

    def run_function(self, function: Callable[..., Any]) -> Outcome:
        """Run a pass in Python, see `registry.runnable`."""
        return self._keep(_C.run_function(function, self.held, self.method))

    def run_rules(self, rules: Sequence[Any]) -> Outcome:
        """Apply compiled rules; the remarks tell of matches that were refused."""
        return self._keep(_C.run_rules(rules, self.held, self.method))

    def run_module(self, run: Callable[[Any, str], tuple[Any, bool, Sequence[Remark]]]) -> Outcome:
        """Run a step that takes the module as a whole: see `steps.ModuleStep`."""
        if not self.method:
            raise JitPassesError("the step needs a module, and this is a graph alone")
        self.held, changed, remarks = run(self.held, self.method)
        return changed, tuple(remarks)

    def check(self, invariant: str, remarks: Sequence[Remark] = ()) -> str | None:
        """Return why the invariant does not hold, given the remarks so far; None if it does."""
        said = [(remark.name, remark.reason) for remark in remarks]
        return _C.check_invariant(invariant, self.held, self.method, said)

    def lint(self) -> None:
        """Raise an error if the graph is not valid."""
        _C.lint(self.held, self.method)

    def count(self) -> int:
        """Return the number of nodes, nested blocks included."""
        return _C.count_nodes(self.held, self.method)

    def text(self) -> str:
        """Return the graph as text."""
        return _C.format_graph(self.held, self.method)

    def _keep(self, result: tuple[Any, bool, list[tuple[str, str]]]) -> Outcome:
        self.held, changed, remarks = result
        return changed, tuple(Remark(*remark) for remark in remarks)


@dataclass
class ModuleSubject(Subject):
    """A method of a C++ module that no one else holds."""

    held: Any
    method: str

    @property
    def module(self) -> Any:
        """The module as it is by now."""
        return self.held

    def graph(self) -> Any:
        return self.held._get_method(self.method).graph


@dataclass
class GraphSubject(Subject):
    """A graph without a module: a scripted function's, or one that the executor works on."""

    held: Any

    def graph(self) -> Any:
        return self.held


def check_script(model: Any, method: str | None = None) -> None:
    """Check that the model is a ScriptModule, in any mode, that has the method."""
    if not isinstance(model, torch.jit.ScriptModule):
        what = type(model).__name__
        if isinstance(model, torch.nn.Module):
            raise JitPassesError(
                f"a ScriptModule is needed, and this {what} is an eager module: pass "
                "torch.jit.script(model.eval()) or torch.jit.trace(model.eval(), example_inputs)"
            )
        raise JitPassesError(
            f"a ScriptModule is needed, got {what}: script a torch.nn.Module with "
            "torch.jit.script, trace it with torch.jit.trace, or load one with torch.jit.load"
        )
    empty = _C.meta_tensor(model._c)
    if empty is not None:
        raise JitPassesError(
            f"'{empty}' is on the meta device, where tensors have no numbers: load the weights "
            "first, with model.to_empty(device='cpu') and load_state_dict, then script"
        )
    if method is None:
        return
    if not isinstance(method, str):
        raise JitPassesError(f"a method is given by its name, not as {method!r}")
    if not model._c._has_method(method):
        names = ", ".join(sorted(model._c._method_names()))
        raise JitPassesError(
            f"the module has no method '{method}', only: {names or 'none'}; export others with "
            "@torch.jit.export before scripting"
        )
    if method == "forward" and (model._c._get_forward_hooks() or model._c._get_forward_pre_hooks()):
        raise JitPassesError(
            "the module has forward hooks of its own, which run around forward and would be lost: "
            "script a module whose forward calls this one; hooks of submodules are kept"
        )


def wrap(module: Any) -> torch.jit.ScriptModule:
    """Return the Python module of a C++ module."""
    wrapped: torch.jit.ScriptModule = torch.jit._recursive.wrap_cpp_module(module)  # type: ignore[no-untyped-call]
    return wrapped
