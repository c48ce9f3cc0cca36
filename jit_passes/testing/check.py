"""Tests for passes and rules of other packages: modules, and comparing them.

    def test_my_pass() -> None:
        assert check_change("my_pass", count=200) > 0

    def test_my_rule() -> None:
        assert check_change(my_rule, count=200, seed=1) > 0

Modules are drawn at random: a few operators in a row, by value and in place, on the values that
those before have left, with branches, loops, shared modules and results of several tensors. Each
module is Python source that stands on its own, and is a function of seed and index alone.
"""

from __future__ import annotations

import linecache
import random
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import _C
from ..graph.verify import compare, leaves_of, observe
from ..passes.pipeline import Pipeline, own, run_pass
from ..passes.rule import RewriteRule
from ..passes.subject import wrap
from .random_source import HEADER, Drawn, draw

Change = str | Pipeline | RewriteRule | Callable[[torch.jit.ScriptModule], torch.jit.ScriptModule]


@dataclass(frozen=True)
class RandomModule:
    """A module that was drawn at random.

    Attributes:
        seed: of the run, and
        index: in the run: `random_module(index, seed)` is this one again.
        source: Python source of the class, its weights and its inputs; it can be run as it is.
        inputs: arguments for all its methods; optional ones may be missing.
        methods: names of its methods, forward first.
        type: the class.
    """

    seed: int
    index: int
    source: str
    inputs: tuple[Tensor, ...]
    methods: tuple[str, ...]
    type: type[nn.Module]

    @property
    def frontends(self) -> tuple[str, ...]:
        """How it can be compiled: tracing refuses a module that exports a second method."""
        return ("script", "trace") if len(self.methods) == 1 else ("script",)

    @property
    def name(self) -> str:
        """How to get it again."""
        return f"random_module({self.index}, seed={self.seed})"

    def module(self, *, training: bool = True, dtype: torch.dtype = torch.float64) -> nn.Module:
        """Return a new eager module, the same one every time."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.index)
            return self.type().to(dtype).train(training)

    def arguments(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Return copies of the inputs."""
        return tuple(value.detach().clone().to(dtype) for value in self.inputs)

    def compile(
        self,
        frontend: str = "script",
        *,
        training: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> torch.jit.ScriptModule:
        """Return the scripted or traced module.

        Args:
            frontend: "script", or "trace", which keeps the branches and loops that the inputs take,
                and the mode that the module is in.
            training: whether it is in training mode.
            dtype: of parameters and floating-point buffers.
        """
        module = self.module(training=training, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's remarks on branches
            if frontend == "script":
                scripted: torch.jit.ScriptModule = torch.jit.script(module)
                return scripted
            state = {name: value.clone() for name, value in module.state_dict().items()}
            with torch.random.fork_rng(devices=[]):
                traced: torch.jit.ScriptModule = torch.jit.trace(  # type: ignore[no-untyped-call]
                    module, self.arguments(dtype), check_trace=False, strict=False
                )
            traced.load_state_dict(state)  # tracing runs it
            return traced


def random_module(index: int, seed: int = 0) -> RandomModule:
    """Return module number `index` of the run that has this seed.

    Its weights and inputs are float64; it works in training and in eval mode, forward and backward,
    and scripts and traces. Its results are finite.
    """
    generator = random.Random(f"{seed}/{index}")
    while True:
        drawn = draw(generator)
        made = _make(drawn, seed, index)
        if made is not None:
            return made


def random_modules(count: int, seed: int = 0, *, start: int = 0) -> Iterator[RandomModule]:
    """Draw modules.

    Args:
        count: how many.
        seed: the same seed gives the same modules.
        start: index of the first one.
    """
    for index in range(start, start + count):
        yield random_module(index, seed)


def _make(drawn: Drawn, seed: int, index: int) -> RandomModule | None:
    """Return the module, or None if it does not run forward and backward in both modes."""
    source = HEADER + drawn.source
    filename = f"<random module {index} of seed {seed}>"
    scope: dict[str, Any] = {"__name__": "random_modules"}
    exec(compile(source, filename, "exec"), scope)
    # Where TorchScript, tracebacks and debuggers look for source.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    values = torch.Generator().manual_seed(index)
    inputs = tuple(
        torch.randn(shape, generator=values, dtype=torch.float64) for shape in drawn.inputs
    )
    ending = _ENDING.format(index=index, shapes=", ".join(f"{shape}" for shape in drawn.inputs))
    made = RandomModule(seed, index, source + ending, inputs, drawn.methods, scope["Net"])
    return made if _runs(made) else None


_ENDING = """

torch.manual_seed({index})
module = Net().double()
values = torch.Generator().manual_seed({index})
inputs = [
    torch.randn(shape, generator=values, dtype=torch.float64) for shape in [{shapes}]
]
"""


def _runs(made: RandomModule) -> bool:
    for training in (True, False):
        module = made.module(training=training)
        for method in made.methods:
            leaves = [value.requires_grad_() for value in made.arguments()]
            try:
                with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    outputs = getattr(module, method)(*(leaf.clone() for leaf in leaves))
                total = torch.stack([value.sum() for _, value in leaves_of(outputs)]).sum()
                parameters = [p for p in module.parameters() if p.requires_grad]
                torch.autograd.grad(total, [*leaves, *parameters], allow_unused=True)
            except (RuntimeError, ValueError, IndexError):
                return False  # autograd needs values that were written over, or a size does not fit
            if not bool(total.isfinite()) or bool(total.abs() > 1e8):
                return False
    return True


def check_change(
    change: Change,
    count: int = 100,
    seed: int = 0,
    *,
    training: Sequence[bool] = (True, False),
    options: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    parameters: bool = True,
    frontends: Sequence[str] = ("script", "trace"),
    start: int = 0,
) -> int:
    """Run a pass, pipeline or rule over random modules and compare their results.

    Outputs, gradients, and written tensors are compared before and after, in float64. A module
    whose graph did not change is not run. The module that goes in must stay as it is.

    Args:
        change: name of a pass, a pipeline, a rule, or a function from ScriptModule to
            ScriptModule.
        count: how many modules.
        seed: of the modules.
        training: modes in which the modules are compiled and run; (False,) for a change that is
            right in eval mode only.
        options: the pass's options.
        tolerance: see `assert_equivalent`.
        parameters: whether gradients of parameters count; False for a change to constants.
        frontends: "script", "trace", or both.
        start: index of the first module: with `count=1`, the one that a failure names.

    Returns:
        How many times the graph changed: a test should ask for more than 0.

    Raises:
        AssertionError: the first difference, with the module's source and how to get it again.
        PassError: the pass or the rule raised; the source is in a note.
    """
    changes = 0
    for drawn in random_modules(count, seed, start=start):
        for frontend in (name for name in frontends if name in drawn.frontends):
            for mode in training:
                try:
                    changes += _check(drawn, frontend, mode, change, options, tolerance, parameters)
                except Exception as error:
                    error.args = (describe(drawn, frontend, mode, str(error)), *error.args[1:])
                    raise
    return changes


def describe(drawn: RandomModule, frontend: str, training: bool, problem: str) -> str:
    """Return a message with the source of the module that a problem is about."""
    mode = "training" if training else "eval"
    source = textwrap.indent(drawn.source, "    ")
    return f"{problem}\nwith {drawn.name}, {frontend}, {mode} mode:\n{source}"


def _check(
    drawn: RandomModule,
    frontend: str,
    training: bool,
    change: Change,
    options: Mapping[str, Any] | None,
    tolerance: float | None,
    parameters: bool,
) -> bool:
    module = drawn.compile(frontend, training=training)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    changed = False
    for method in drawn.methods:
        graph = str(module._c._get_method(method).graph)
        before = wrap(own(module, method).module)
        after = _apply(change, module, method, options)
        if str(module._c._get_method(method).graph) != graph:
            raise AssertionError("it changed the module that it was given")
        if _text(before, method) == _text(after, method):
            continue
        changed = True
        # Clones have not run yet: from the second run on, PyTorch differentiates graphs itself, and
        # fails on some.
        expected, actual = (
            observe(wrap(_C.clone(m._c)), method, drawn.inputs) for m in (module, after)
        )
        compare(expected, actual, tolerance, parameters=parameters)
    for name, value in module.state_dict().items():
        if not torch.equal(value, state[name]):
            raise AssertionError(f"it changed {name} of the module that it was given")
    return changed


def _apply(
    change: Change,
    module: torch.jit.ScriptModule,
    method: str,
    options: Mapping[str, Any] | None,
) -> torch.jit.ScriptModule:
    if isinstance(change, str):
        return run_pass(change, module, method, options=options)
    if isinstance(change, Pipeline):
        changed: torch.jit.ScriptModule = change.run(module, method).module
        return changed
    if isinstance(change, RewriteRule):
        return change.apply(module, method).module
    return change(module)


def _text(module: torch.jit.ScriptModule, method: str) -> str:
    graph = module._c._get_method(method).graph.copy()
    return str(torch._C._jit_pass_canonicalize(graph, False))
