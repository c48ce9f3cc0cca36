"""Every pass and a dozen rules on modules drawn at random: the same results, gradients and writes.

    JIT_PASSES_MODULES=5000        another number of modules
    JIT_PASSES_MODULES=5000@7      of another seed
    JIT_PASSES_MODULES=#17,20@7    modules 17 and 20 of that seed

A failure prints the last of these, with all modules that fail, and the source of the first one.
`-k remove_dropout` checks that pass alone, on all modules.
"""

from __future__ import annotations

import io
import os
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from tqdm import tqdm

import jit_passes
from jit_passes import _C, JitPassesError, JitPassesWarning, Match, RewriteRule
from jit_passes.graph.diff import diff_text
from jit_passes.graph.verify import GRADIENT, assert_equivalent, compare, leaves_of, observe
from jit_passes.passes.pipeline import own
from jit_passes.passes.subject import ModuleSubject, wrap
from jit_passes.stages.normalize import NORMALIZE
from jit_passes.targets.stock import Stock
from jit_passes.testing.check import (
    RandomModule,
    check_change,
    describe,
    random_module,
)
from tests.processor import VNNI
from tests.testing.drawn import FAILED

pytestmark = pytest.mark.xdist_group("properties")  # all read one fixture, which takes minutes

COUNT, SEED = 20, 0  # `make fuzz` draws 20,000
CHUNK = 10  # modules that a process gets at a time
# Further modules, which have what passes and modes wait for and these have not.
RARE = (23, 29, 30, 69, 114, 117, 120, 135, 180, 192, 210, 375)

# Of the largest value, in float64, where a pass sums or rounds in another order. Gradients are sums
# over the uses of a value, in an order that any pass may change; of 1e-3 at least, as some are 0
# but for rounding, behind a mean removed.
REORDERED = 1e-9
# The last digit: PyTorch's kernels for vectors and for what is left over round otherwise, and which
# of them computes an element depends on how the tensor lies in memory.
EXACT = 2.0**-51
EXACT_FLOAT32 = 2.0**-21
BFLOAT16 = 2.0**-7  # where the product of a weight alone is computed in bfloat16
GRADIENTS_REORDERED = 1e-9
REORDERS = {
    "canonicalize_pool",
    "canonicalize_products",
    "expand_attention",
    "fold_batch_norm",
    "fold_scale",
    "freeze",  # PyTorch picks another kernel where a weight needs no gradient
    "gather_operators",
    "keep_leading_axes",  # products with other numbers of rows
    "merge_conv_bias",
    "spell_out_composites",  # a variance becomes a sum of squares
    "split_conv_bias",
    "widen_conv1d",
}

# Of the largest value: steps of 1/255 that round the other way, in each operator in a row.
STEPS_OF_ROUNDING = 0.1
# One code may round the other way in another kernel of PyTorch, and goes through what follows.
OTHER_KERNEL = {"split_groups"}
# The modes in which the modules that are quantized are, one after another.
QUANTIZED_IN = ("auto", "dynamic", "static", "weight_only")
# How far a lowered module may be from its reference.
TARGETS = {"stock": STEPS_OF_ROUNDING, "x86": STEPS_OF_ROUNDING, "reference": 0.0}

TRAINED_BY = {
    "quantize_slots": lambda model: jit_passes.quantize_slots(model, recipe="graffitist"),
    "prepare_qat": lambda model: jit_passes.prepare_qat(model, target="x86"),
}
NOTHING_TO_TRAIN = ("no convolution", "nothing can be quantized", "no parameters to train")

# Right in a module whose parameters are constants: run in the pipelines that lead there.
STAGED = {
    "add_batch_axis",
    "clamp_codes",
    "fold_lookup_tables",
    "fold_prepack",
    "fold_quantized_constants",
    "fuse_cat",
    "insert_fake_quantize",
    "insert_observers",
    "insert_quantize_dequantize",
    "lower_quantize_dequantize",
    "merge_dequantize",
    "outline_regions",
    "replicate_dequantize",
    "sink_dequantize",
    "split_groups",
    "widen_conv1d",
}
# Takes a model out of training, so what it computes in training changes; see test_qat_training.py.
MODES = {"restore_batch_norm", "switch_folding", "fold_deferred"}
# Quantizes, or leaves quantized operators in float, so the numbers are others: they are tested in
# test_quantize_ops.py, test_fake_quantize.py and, of the states of recurrent layers,
# test_recurrent.py and its like.
QUANTIZES = {
    "insert_quantize_dequantize",
    "insert_fake_quantize",
    "lower_recurrent",
    "undo_dynamic",
}
# Leaves integers on which operators mean what they mean once lower_quantize_dequantize has run:
# padding with 0 then pads with the zero point, and bounds of a clamp are numbers. The lowered model
# is compared with the reference.
MEANT_FOR_QUANTIZED_DTYPES = {"clamp_codes", "sink_dequantize"}
# Report a change without looking: PyTorch's own passes do not tell.
SILENT = {"remove_dead_code"}
MISSED = 5  # passes that change no module, at most
NEVER = {
    "remark_float",  # changes no graph
    # Without VNNI PyTorch has no fast kernel for so many groups, and they stay in float.
    *([] if VNNI else ["split_groups"]),
}
# Said where PyTorch's executor takes a convolution to have a batch axis, and addmm to have the rank
# of its bias: original modules fail with it too.
PYTORCH = (
    "D input (got ",
    "must have the same number of spatial dimensions",
    "failed shape propagation in this context",
)
# Change attributes, and maybe nothing else.
ATTRIBUTES = {"freeze", "remove_unused_attributes"}
# A second run may go further: freeze orders constants anew, PyTorch's propagation of constants
# removes those that it has left without uses, and its removal of dead code lists that nobody
# reads, before what had only been put into them. The operators that a composite is spelled as
# tell ranks to others.
FURTHER = {
    "freeze",
    "propagate_constants",
    "remove_dead_code",
    "spell_out_composites",
}


def graph_text(module: Any, method: str) -> str:
    """The graph with values numbered in program order, and types without PyTorch's numbers."""
    graph = torch._C._jit_pass_canonicalize(module._get_method(method).graph.copy(), False)
    return re.sub(r"___torch_mangle_\d+\.", "", graph.str(False))


def named_text(subject: ModuleSubject) -> str:
    """The graph as it stands, which takes less time to write."""
    return subject.module._get_method(subject.method).graph.str(False)


def is_of_parameter(name: str) -> bool:
    """Whether an observation is the gradient of a parameter."""
    return name.startswith("gradient of ") and not name.startswith("gradient of input")


@dataclass(frozen=True)
class Failure:
    """A check that failed on a module of a seed."""

    check: str
    index: int
    seed: int
    text: str


@dataclass
class Findings:
    """The findings in the modules of one chunk."""

    changed: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


@dataclass
class Known:
    """A module as a pass has left it, which is how the next one finds it.

    Attributes:
        subject: the module.
        named: its graph, with the names that values have.
        text: the graph, as `graph_text` has it.
        copy: of the module, where it has not been observed.
        observed: what it computes, if anybody has looked.
    """

    subject: ModuleSubject
    named: str
    text: str
    copy: Any = None
    observed: dict[str, Any] | None = None


@dataclass
class Checker:
    """All checks of one module in one mode."""

    drawn: RandomModule
    frontend: str
    training: bool
    findings: Findings
    asked: frozenset[str]
    method: str = "forward"
    gradients: bool = True
    exact: bool = True
    base: tuple[str, dict[str, Any]] | None = None
    known: Known | None = None

    def asks(self, *checks: str) -> bool:
        """Whether one of these checks is asked for."""
        return not self.asked.isdisjoint(checks)

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Keep a failure, with all that is needed to see it again."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, AssertionError) and any(s in str(error) for s in PYTORCH):
                self.findings.changed[f"skipped {self.drawn.index}"] += 1
                return
            trace = "" if isinstance(error, AssertionError) else traceback.format_exc(limit=-4)
            problem = f"{what}: {type(error).__name__}: {error}\n{trace}"
            text = describe(self.drawn, self.frontend, self.training, problem)
            check = what.split(" ")[0]
            failure = Failure(check, self.drawn.index, self.drawn.seed, text)
            self.findings.failures.append(failure)

    def observe(self, module: Any) -> dict[str, Any]:
        """Return what a C++ module computes in this mode."""
        # A clone has not run yet: from the second run on, PyTorch differentiates graphs itself, and
        # fails on some.
        inputs = self.drawn.arguments(torch.float64 if self.exact else torch.float32)
        try:
            return observe(wrap(_C.clone(module)), self.method, inputs, self.gradients)
        except RuntimeError:
            # PyTorch's executor makes another graph of it, which may be a wrong one: it takes the
            # sizes of addmm by a constant for that one's, and torch.jit.freeze shows the same.
            with torch.jit.optimized_execution(False):
                return observe(wrap(_C.clone(module)), self.method, inputs, self.gradients)

    def loses_writes(self, module: torch.jit.ScriptModule, expected: Mapping[str, Any]) -> bool:
        """Whether PyTorch removes a write to memory that dropout has given back.

        The executor takes the result of dropout for a tensor of its own: when it compiles, from
        the second run on, or where a pass has taken tuples apart. In eval mode it is the operand.
        """
        if self.training or "dropout" not in self.drawn.source.lower():
            return False
        copy = wrap(_C.deepcopy(module._c))
        with torch.no_grad():
            eager = self.drawn.module(training=False)
            outputs = [getattr(eager, self.method)(*self.drawn.arguments(torch.float64))]
            for _ in range(3):
                copy.load_state_dict(module.state_dict())
                outputs.append(getattr(copy, self.method)(*self.drawn.arguments(torch.float64)))
        return not all(
            torch.allclose(value, expected[name], equal_nan=True)
            for output in (outputs[0], outputs[-1])
            for name, value in leaves_of(output, "output")
            if isinstance(value, Tensor)
        )

    def same(
        self, what: str, expected: Mapping[str, Any], module: Any, reorders: bool
    ) -> dict[str, Any]:
        """Assert that the module computes what was observed, and return what it does compute."""
        tolerance = REORDERED if self.exact else 1e-4
        found = self.observe(module)
        has_parameters = any(map(is_of_parameter, found)) or any(wrap(module).named_parameters())
        exact = EXACT if self.exact else EXACT_FLOAT32
        bound = tolerance if reorders else exact
        if not self.exact and "_weight_int8pack_mm" in graph_text(module, self.method):
            bound = BFLOAT16
        if what in OTHER_KERNEL:
            bound = STEPS_OF_ROUNDING
        gradients = GRADIENTS_REORDERED if self.exact else tolerance
        if not self.exact:
            expected = without_rounding(expected)
        try:
            compare(expected, found, bound, gradients, parameters=has_parameters)
        except AssertionError:
            # PyTorch removes a write to an element of a list that stack reads, once nothing else
            # reads that memory.
            written = re.search(r"(parts\d+)\[-?\d+\]\.\w+_\(", self.drawn.source)
            if not (written and f"torch.stack({written[1]})" in self.drawn.source):
                raise
        return found

    def know(self, subject: ModuleSubject) -> Known:
        """Return the facts of the module, and a copy where nobody has looked at its results."""
        known, named = self.known, named_text(subject)
        if known is None or known.subject is not subject or known.named != named:
            known = Known(subject, named, graph_text(subject.module, self.method))
            if self.base is not None and self.base[0] == known.text:
                known.observed = self.base[1]
        if known.copy is None and known.observed is None:
            known.copy = _C.clone(subject.module)
        return known

    def check(
        self,
        before: Known,
        changed: bool,
        name: str,
        options: dict[str, Any],
        run: Callable[..., Any],
    ) -> Known:
        """Check what a pass did: lint, compare, and run it again; return what is known by now."""
        subject = before.subject
        named = named_text(subject)
        same = named == before.named
        after = before.text if same else graph_text(subject.module, self.method)
        if not changed:
            assert after == before.text, (
                f"it reports no change:\n{diff_text(before.text, after, False)}"
            )
            return replace(before, named=named)
        subject.lint()
        if name not in SILENT:
            assert after != before.text or name in ATTRIBUTES, (
                "it reports a change, and there is none"
            )
        elif after == before.text:
            return replace(before, named=named)
        self.findings.changed[name] += 1
        now = Known(subject, named, after)
        if name in QUANTIZES | MEANT_FOR_QUANTIZED_DTYPES:
            return now
        expected = before.observed
        if expected is None:
            try:
                expected = self.observe(before.copy)
            except NotImplementedError:
                return now  # in the midst of lowering: quantized operators on plain tensors
        now.observed = self.same(name, expected, subject.module, name in REORDERS)
        if name not in FURTHER and not options:
            again = ModuleSubject(_C.clone(subject.module), self.method)
            changes, _ = run(again, name, options)
            twice = graph_text(again.module, self.method)
            assert twice == after, (
                f"a second run changes the graph:\n{diff_text(after, twice, False)}"
            )
            assert not changes or name in SILENT, "a second run reports a change"
        return now

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check every pass that is asked for and runs on a module in any pipeline."""
        run = ModuleSubject.run_pass

        def watched(subject: ModuleSubject, name: str, options: dict[str, Any]) -> Any:
            if not self.asks(name):
                outcome = run(subject, name, options)
                if name in MODES and outcome[0]:
                    self.findings.changed[name] += 1
                return outcome
            before, self.known = self.know(subject), None
            outcome = run(subject, name, options)
            with self.reporting(name):
                self.known = self.check(before, outcome[0], name, options, run)
            return outcome

        with mock.patch.object(ModuleSubject, "run_pass", watched):
            yield


def without_rounding(observed: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out gradients in float32 that are all 0 but for rounding.

    A batch norm of equal numbers divides by the root of its epsilon: 6e-8 becomes 2e-5.
    """
    gradients = {n: v for n, v in observed.items() if n.startswith(GRADIENT)}
    rounding = all(float(v.abs().max()) < 1e-3 for v in gradients.values() if v.numel())
    return {n: v for n, v in observed.items() if not (rounding and n in gradients)}


def check_module(drawn: RandomModule, findings: Findings, asked: frozenset[str]) -> None:
    """The checks of one module that are asked for."""
    frontend = drawn.frontends[-1] if drawn.index % 3 == 2 else "script"
    sound = True
    for training in (True, False):
        module = drawn.compile(frontend, training=training)
        for method in drawn.methods:
            checker = Checker(drawn, frontend, training, findings, asked, method)
            sound &= check_method(checker, module)
    mode = quantized_in(drawn)
    quantizes = not asked.isdisjoint((*jit_passes.passes, *QUANTIZATION))
    if sound and quantizes and mode is not None:
        check_quantization(drawn, frontend, mode, findings, asked)


def quantized_in(drawn: RandomModule) -> str | None:
    """The mode that a module is quantized in, if it is.

    Every sixth module is, and all with layers that few have, in the mode whose passes they need.
    """
    if "groups=128" in drawn.source:
        return "static"
    if re.search(r"nn\.(LSTM|GRU|RNN)", drawn.source):
        return "dynamic"
    return QUANTIZED_IN[drawn.index // 6 % len(QUANTIZED_IN)] if drawn.index % 6 == 0 else None


def check_method(checker: Checker, module: torch.jit.ScriptModule) -> bool:
    """Passes, pipelines and rules on one method, in the mode that the module is in.

    Returns whether PyTorch itself computes what the module says.
    """
    method = checker.method
    state = {name: value.clone() for name, value in module.state_dict().items()}
    text = graph_text(module._c, method)
    try:
        expected = checker.observe(module._c)
        sound = not checker.loses_writes(module, expected)
    except Exception:  # it runs in Python, and PyTorch's compiler is at fault
        sound = False
    if not sound:
        checker.findings.changed[f"skipped {checker.drawn.index}"] += 1
        return False
    base = own(module, method).module
    if checker.asks("resolve"):
        with checker.reporting("resolve"):
            checker.findings.changed["resolve"] += graph_text(base, method) != text
            checker.same("resolve", expected, base, False)
    checker.base = (graph_text(base, method), expected)
    check_passes(checker, module, base, expected)
    for rule in RULES:
        if checker.asks(rule.name):
            with checker.reporting(rule.name):
                check_rule(checker, rule, base, expected)
    if checker.asks("original"):
        with checker.reporting("original"):
            assert graph_text(module._c, method) == text
            assert list(module.state_dict()) == list(state)
            for name, value in module.state_dict().items():
                assert torch.equal(value, state[name]), name
    return True


def check_passes(
    checker: Checker, module: torch.jit.ScriptModule, base: Any, expected: dict[str, Any]
) -> None:
    """Passes on one method, each by itself and in the pipeline to the canonical form."""
    method = checker.method
    with checker.watching():
        fresh: ModuleSubject | None = None
        for name in jit_passes.passes:
            if name not in STAGED | MODES and checker.asks(name):
                subject, fresh = fresh or ModuleSubject(_C.clone(base), method), None
                with checker.reporting(name):
                    if not subject.run_pass(name, {})[0]:
                        fresh = subject  # as it was, for the next pass
        if checker.asks("split_then_merge"):
            with checker.reporting("split_then_merge"):
                subject = ModuleSubject(_C.clone(base), method)
                split, _ = subject.run_pass("split_conv_bias", {})
                if split and subject.run_pass("merge_conv_bias", {})[0]:
                    checker.findings.changed["split_then_merge"] += 1
                    checker.same("split_then_merge", expected, subject.module, True)
        if checker.asks("normalize", *jit_passes.passes):
            with checker.reporting("normalize"):
                result = NORMALIZE.run(module._c, method)
                checker.same("normalize", expected, result.module, True)
                checker.findings.changed["normalize"] += 1


def check_rule(checker: Checker, rule: RewriteRule, base: Any, expected: dict[str, Any]) -> None:
    """A rule on one method."""
    subject = ModuleSubject(_C.clone(base), checker.method)
    matches = _C.apply_rules(subject.module, subject.method, [rule.compile()])
    if all(refused for *_, refused in matches):
        return
    subject.lint()
    checker.findings.changed[rule.name] += 1
    wanted = expected
    if rule.compute is not None:  # the gradient goes to the new parameter
        wanted = {k: v for k, v in expected.items() if not is_of_parameter(k)}
    try:
        checker.same(rule.name, wanted, subject.module, rule.name in ROUNDING)
    except RuntimeError as error:
        # A value of the pattern was kept for the gradient, and an operand of the replacement is
        # written later: results are right, and PyTorch refuses the gradient.
        if "modified by an inplace operation" not in str(error):
            raise


def reloaded(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The module after a round trip through a file."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def check_quantization(
    drawn: RandomModule, frontend: str, mode: str, findings: Findings, asked: frozenset[str]
) -> None:
    """The passes of all stages, each where it runs; the int8 model, saved and loaded."""
    module = drawn.compile(frontend, training=False, dtype=torch.float32)
    inputs = drawn.arguments(torch.float32)
    checker = Checker(drawn, frontend, False, findings, asked, gradients=False, exact=False)
    of_passes = checker.asks(*jit_passes.passes)
    reduced = Stock(reduce_range=True)
    with warnings.catch_warnings(), checker.watching():
        warnings.simplefilter("ignore", JitPassesWarning)
        for target, tolerance in TARGETS.items():
            step = f"{mode}_for_{target}"
            if not (of_passes or checker.asks(step)):
                continue
            with checker.reporting(step), torch.no_grad():
                reduces = target == "stock" and drawn.index % 5 == 0
                prepared = jit_passes.prepare(
                    module, target=reduced if reduces else target, mode=mode
                )
                if mode in ("auto", "static"):
                    prepared = jit_passes.calibrate(prepared, [inputs], progress=False)
                reference = jit_passes.convert(prepared)
                lowered = jit_passes.lower(reloaded(reference))
                expected = checker.observe(lowered._c)
                compare(checker.observe(reference._c), expected, tolerance)
                for name, value in expected.items():
                    assert not isinstance(value, Tensor) or value.isfinite().all(), name
                checker.same("loaded", expected, reloaded(lowered)._c, False)
                integers = bool(jit_passes.coverage(lowered).int8)
                compiled = "CompiledRegion" in str(lowered.graph)
                in_plans = target == "x86" and mode != "weight_only"
                findings.changed[step] += compiled if in_plans else integers
        for step, prepare in TRAINED_BY.items():
            if of_passes or checker.asks(step):
                with checker.reporting(step):
                    findings.changed[step] += trains(checker, frontend, prepare)


def trains(checker: Checker, frontend: str, prepare: Callable[..., Any]) -> bool:
    """Whether a model is prepared, trained for a batch and converted; its results are finite."""
    drawn = checker.drawn
    checker.training = checker.gradients = True
    try:
        prepared = prepare(drawn.compile(frontend, training=True, dtype=torch.float32))
    except JitPassesError as error:
        assert any(text in str(error) for text in NOTHING_TO_TRAIN), error
        return False
    found = observe(prepared, "forward", drawn.arguments(torch.float32))
    prepared(*drawn.arguments(torch.float32))
    checker.training = checker.gradients = False
    converted = jit_passes.convert(prepared.eval())
    found |= {f"{name}, converted": v for name, v in checker.observe(converted._c).items()}
    for name, value in found.items():
        if isinstance(value, Tensor):
            unseen = name.endswith("_range") and value.isinf().all()  # its branch did not run
            assert unseen or value.isfinite().all(), name
    return True


def double_weight(match: Match) -> dict[str, Any]:
    """A parameter of its own: all multiplications by two are exact."""
    return {"double": nn.Parameter(match.constants["w"].detach() * 2)}


def has_weight(match: Match) -> bool:
    """The weight is an attribute, and there is a bias."""
    return "w" in match.constants and match.constants.get("b") is not None


def relu_of_relu(x: Tensor) -> Tensor:
    return torch.relu(torch.relu(x))


def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


def transposed_twice(x: Tensor, a: int, b: int) -> Tensor:
    return x.transpose(a, b).transpose(a, b)


def itself(x: Tensor) -> Tensor:
    return x


def times_one(x: Tensor) -> Tensor:
    return x * 1


def plus_zero(x: Tensor) -> Tensor:
    return x + 0


def added(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def added_from_behind(x: Tensor, y: Tensor) -> Tensor:
    return torch.sub(y, torch.neg(x))


def negated(x: Tensor) -> Tensor:
    return torch.neg(x)


def times_minus_one(x: Tensor) -> Tensor:
    return x * -1


def squared(x: Tensor) -> Tensor:
    return torch.square(x)


def times_itself(x: Tensor) -> Tensor:
    return x * x


def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def spelled_out_sigmoid(x: Tensor) -> Tensor:
    return 0.5 * (1.0 + torch.tanh(0.5 * x))


def scaled_sum(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return torch.add(x * scale, y)


def commuted_scaled_sum(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return torch.add(y, x, alpha=scale)


def relu6(x: Tensor) -> Tensor:
    return torch.nn.functional.hardtanh(x, 0.0, 6.0)


EVEN = """
graph(%x):
  %y = aten::neg(%x)
  %z = match::even(%y)
  return (%z)
"""
EVEN_ALONE = """
graph(%x):
  %z = match::even(%x)
  return (%z)
"""
CLIP6 = """
graph(%x):
  %z = aten::relu6(%x)
  return (%z)
"""
LINEAR = """
graph(%x, %w, %b):
  %z = aten::linear(%x, %w, %b)
  return (%z)
"""
HALF_OF_DOUBLE = """
graph(%x, %w, %b, %double):
  %half : float = prim::Constant[value=0.5]()
  %y = aten::mul(%double, %half)
  %t = aten::t(%y)
  %m = aten::matmul(%x, %t)
  %one : int = prim::Constant[value=1]()
  %z = aten::add(%m, %b, %one)
  return (%z)
"""
CONVOLUTION_NORM = """
graph(%x, %w, %b, %stride, %padding, %dilation, %groups, %gain, %shift, %mean, %var, %rest):
  %y = aten::conv2d(%x, %w, %b, %stride, %padding, %dilation, %groups)
  %no : bool = prim::Constant[value=0]()
  %z = aten::batch_norm(%y, %gain, %shift, %mean, %var, %no, %rest)
  return (%z)
"""
CONVOLUTION = """
graph(%x, %scaled, %moved, %stride, %padding, %dilation, %groups):
  %z = aten::conv2d(%x, %scaled, %moved, %stride, %padding, %dilation, %groups)
  return (%z)
"""

RULES = [
    RewriteRule("relu_of_relu", relu_of_relu, relu),
    RewriteRule("transposed_twice", transposed_twice, itself),
    RewriteRule("times_one", times_one, itself),
    RewriteRule("plus_zero", plus_zero, itself),
    RewriteRule("add_commutes", added, added_from_behind),
    RewriteRule("negation_multiplies", negated, times_minus_one),
    RewriteRule("square_multiplies", squared, times_itself),
    RewriteRule("sigmoid_spelled_out", sigmoid, spelled_out_sigmoid),
    RewriteRule("scale_is_alpha", scaled_sum, commuted_scaled_sum),
    RewriteRule("relu6_is_hardtanh", CLIP6, relu6),
    RewriteRule(
        "even_of_negation",
        EVEN,
        EVEN_ALONE,
        alternatives={"match::even": ["aten::abs", "aten::cos", "aten::square"]},
    ),
    RewriteRule("linear_of_doubled", LINEAR, HALF_OF_DOUBLE, has_weight, double_weight),
]
# Not the same operations: equal to rounding.
ROUNDING = {"sigmoid_spelled_out", "scale_is_alpha", "linear_of_doubled"}


def chosen() -> tuple[Sequence[int], int]:
    """Indices of modules, and their seed."""
    text = os.environ.get("JIT_PASSES_MODULES", "")
    numbers, _, seed = text.partition("@")
    if numbers.startswith("#"):
        return [int(number) for number in numbers[1:].split(",")], int(seed or SEED)
    return range(int(numbers or COUNT)), int(seed or SEED)


def check_modules(indices: Iterable[int], seed: int, asked: frozenset[str]) -> Findings:
    """Checks of some modules, in a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # PyTorch's advice
    warnings.simplefilter("error", JitPassesWarning)
    findings = Findings()
    for index in indices:
        check_module(random_module(index, seed), findings, asked)
    return findings


QUANTIZATION = [
    *(f"{mode}_for_{target}" for mode in QUANTIZED_IN for target in TARGETS),
    *TRAINED_BY,
]
STEPS = ["resolve", "normalize", "split_then_merge", "original", *QUANTIZATION]
CHECKS = [
    *(name for name in jit_passes.passes if name not in MODES),
    *STEPS,
    *(rule.name for rule in RULES),
]


def asked_by(items: Iterable[Any]) -> frozenset[str]:
    """The checks that selected tests ask for: theirs, or all where a test is about all of them."""
    found = set()
    for item in items:
        if "findings" in getattr(item, "fixturenames", ()):
            found.update([item.callspec.params["what"]] if hasattr(item, "callspec") else CHECKS)
    return frozenset(found)


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest) -> Findings:
    """The checks that are asked for, of all modules.

    Checks run on two processes, or in this one where tests share the cores already.
    """
    here = (item for item in request.session.items if item.path == request.path)
    asked = asked_by(here)
    indices, seed = chosen()
    chunks = [indices[i : i + CHUNK] for i in range(0, len(indices), CHUNK)]
    if isinstance(indices, range) and seed == SEED and len(indices) >= COUNT:
        chunks += [[i] for i in RARE if i >= len(indices)]
    check = partial(check_modules, seed=seed, asked=asked)
    total = Findings()
    with ExitStack() as stack:
        if "PYTEST_XDIST_WORKER" in os.environ:
            found = map(check, chunks)
        else:
            pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
            found = stack.enter_context(pool).map(check, chunks)
        for part in tqdm(found, total=len(chunks), unit=f"x{CHUNK}", disable=None):
            total.changed += part.changed
            total.failures += part.failures
            for failure in part.failures:  # at once: `make fuzz` takes an hour
                tqdm.write(f"{failure.check} fails, JIT_PASSES_MODULES=#{failure.index}@{seed}")
    return total


@pytest.mark.parametrize("what", CHECKS)
def test_same_results(what: str, findings: Findings) -> None:
    """The pass, pipeline or rule has changed some module, and what no module computes."""
    failures = [failure for failure in findings.failures if failure.check == what]
    again = ",".join(map(str, sorted({failure.index for failure in failures})))
    assert not failures, (
        f"{len(failures)} failures, JIT_PASSES_MODULES=#{again}@{failures[0].seed}\n"
        f"{failures[0].text}"
    )
    indices, seed = chosen()
    if len(indices) >= COUNT and seed == SEED and what not in {"original", *NEVER}:
        assert findings.changed[what], f"no module has what {what} changes"


def test_nearly_every_pass_is_reached(findings: Findings) -> None:
    """Modules drawn at random have what passes wait for, training and use included."""
    if len(chosen()[0]) < COUNT:
        pytest.skip(f"rare idioms take {COUNT} modules")
    passes = {*CHECKS, *MODES} & set(jit_passes.passes)
    missed = {name for name in passes if not findings.changed[name]}
    assert len(missed) <= MISSED, f"no module is changed by {', '.join(sorted(missed))}"


def test_all_failures_have_a_test(findings: Findings) -> None:
    """None is under a name that the test above does not ask for."""
    assert {failure.check for failure in findings.failures} <= set(CHECKS)


@pytest.mark.parametrize("module", FAILED, ids=lambda module: module.type.__name__)
def test_modules_that_failed(module: RandomModule) -> None:
    found = Findings()
    check_module(module, found, frozenset(CHECKS))
    assert not found.failures


def test_selected_tests_ask_for_their_checks_alone() -> None:
    """As `-k times_one` does; a test of all findings asks for all."""
    one = SimpleNamespace(
        fixturenames=["what", "findings"], callspec=SimpleNamespace(params={"what": "times_one"})
    )
    every, other = SimpleNamespace(fixturenames=["findings"]), SimpleNamespace(fixturenames=[])
    assert asked_by([one, other]) == {"times_one"}
    assert asked_by([one, every]) == set(CHECKS)
    found = check_modules(range(12), SEED, asked_by([one]))
    assert not found.failures
    assert {name for name in found.changed if not name.startswith("skipped")} == {"times_one"}


def test_check_change_shows_the_module() -> None:
    """The function for third parties counts changes; a failure has the source and the name."""
    assert check_change(RULES[4], 10) > 0
    assert check_change("split_conv_bias", 8, tolerance=REORDERED, frontends=("script",)) > 0
    wrong = RewriteRule("wrong", sigmoid, squared)
    with pytest.raises(AssertionError, match=r"output.* differs(?s:.*)class Net\(nn.Module\)"):
        check_change(wrong, 100, frontends=("script",))


def test_modules_are_reproducible() -> None:
    """Source, inputs and weights are a function of seed and index; another seed gives others."""
    for index in range(5):
        first, second = random_module(index, 3), random_module(index, 3)
        assert first.source == second.source != random_module(index, 4).source
        assert all(map(torch.equal, first.inputs, second.inputs))
        states = [m.module().state_dict().values() for m in (first, second)]
        assert all(map(torch.equal, *states))


def test_inlining_after_running_without_optimization() -> None:
    """Functions that first ran without it have calls in their own graphs; these are inlined too."""
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Softmax(-1)))
    with torch.jit.optimized_execution(False):
        model(torch.ones(2, 4))
    subject = own(model, "forward")
    assert _C.check_invariant("inlined", subject.module, "forward") is None


class WritesBehindDropout(nn.Module):
    """In eval mode, dropout returns its operand."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        nn.functional.dropout(y, 0.5, self.training).clamp_(-1.0, 1.0)
        return y


def test_writes_behind_dropout_stay() -> None:
    """PyTorch's alias analysis takes the result for a tensor of its own."""
    model = torch.jit.script(WritesBehindDropout().eval())
    inputs = (torch.linspace(-2, 2, 8),)
    assert_equivalent(model, jit_passes.run_pass("replace_inplace", model), inputs, tolerance=0)


def test_hardly_any_module_is_skipped(findings: Findings) -> None:
    """PyTorch itself fails on those, in one of their checks at least."""
    skipped = [name for name in findings.changed if name.startswith("skipped")]
    assert len(skipped) <= max(len(chosen()[0]) // 50, 1), skipped


class OneNumberForTwoAxes(nn.Module):
    """As functional convolutions allow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv2d(x, self.weight, None, [2], [1])


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_one_number_for_two_axes(frontend: str) -> None:
    """Traces keep it; it is neither a convolution in one dimension nor one to quantize."""
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    eager = OneNumberForTwoAxes().eval()
    model = torch.jit.script(eager) if frontend == "script" else torch.jit.trace(eager, x)
    assert_equivalent(model, jit_passes.run_pass("canonicalize_convolution", model), (x,))
    with pytest.warns(JitPassesWarning, match="one number for several axes"):
        quantized = jit_passes.quantize_script(model, [x], target="stock", progress=False)
    assert torch.equal(quantized(x), model(x))


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}], ids=str)
def test_batch_norm_that_stays_float(options: dict[str, bool]) -> None:
    """PyTorch's quantized one asks for weight, bias and statistics, even between int8 operators."""
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    norm = nn.BatchNorm2d(4, **options)
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), norm, nn.Conv2d(4, 4, 1))
    model = torch.jit.script(layers.eval())
    quantized = jit_passes.quantize_script(model, [x], target="stock", progress=False)
    assert "aten::batch_norm" in str(quantized.graph)
    with torch.no_grad():
        torch.testing.assert_close(quantized(x), model(x), rtol=0, atol=0.1)
