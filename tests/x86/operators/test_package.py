"""Operators of plans in a package of somebody else's, compiled with the public headers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import cpp_extension

import jit_passes
from tests.folders import ROOT
from tests.processes import run_code

SOURCE = ROOT / "tests" / "third_party" / "loom" / "loom.cpp"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="compiles with g++"),
    pytest.mark.xdist_group("loom"),  # each process would compile the library anew
]


# Imports a file, and calls one of its functions.
IMPORT = """
import importlib.util, sys
_, file, name, *arguments = sys.argv
spec = importlib.util.spec_from_file_location("imported", file)
sys.modules["imported"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
getattr(module, name)(*arguments)
"""


def precompiled() -> list[str]:
    """The flags with PyTorch's headers, precompiled where this package was built in its folder."""
    for stamp in ROOT.glob("build/temp*/precompiled/pch-O1.txt"):
        version, command = stamp.read_text().split("\n", 1)
        flags = command.split("\n")
        if version == torch.__version__:
            header = flags[flags.index("c++-header") + 1]
            return [*flags[flags.index("-o") + 2 :], "-include", header]
    return ["-std=c++20", "-O1", *(f"-I{path}" for path in cpp_extension.include_paths())]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled for all tests."""
    made = tmp_path_factory.mktemp("loom") / "loom.so"
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    include, *_ = jit_passes.include_paths()
    libraries = [jit_passes.library_path(), "-lc10", "-ltorch", "-ltorch_cpu"]
    command = [*compiler, *precompiled(), "-fPIC", "-w", f"-I{include}", str(SOURCE), "-shared"]
    command += [f"-L{path}" for path in cpp_extension.library_paths()]
    done = subprocess.run(
        [*command, "-o", str(made), *libraries], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def elsewhere(function: Callable[..., None], *arguments: str | Path) -> str:
    """Run a function of this file in a process of its own; return what it prints, or its error."""
    environment = {"PYTHONPATH": str(ROOT)}
    done = run_code(
        IMPORT, __file__, function.__name__, *arguments, cwd=ROOT, environment=environment
    )
    return done.stdout if done.returncode == 0 else done.stderr


class Alone(nn.Module):
    """One function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


# Nodes without an operator of their own: whether they move codes, and are in plans in float32.
OTHERS = {"loom::twist": (False, True), "loom::trim": (False, True), "loom::knot": (True, True)}


def running_max(x: Tensor) -> Tensor:
    return torch.ops.loom.running_max(x, 1)


class Between(nn.Module):
    """Both operators between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(running_max(torch.frac(self.first(x))))


def quantize(library: str, folder: str) -> None:
    """Quantize in both modes before and after the library is loaded, and save the results."""
    from tests.compare import sqnr
    from tests.plans import plan_of, plans_in, traced

    known = {*jit_passes.targets.X86().capability.floats}
    assert not known & {"aten::frac", "loom::running_max"}
    torch.ops.load_library(library)
    torch.manual_seed(0)
    model, x = Between().eval(), torch.randn(4, 6, 16) / 2
    assert model.first(x).abs().max() < 1  # the fractions of numbers beyond may jump by 1
    script = torch.jit.trace(model, (x,))
    found = {*jit_passes.targets.X86().capability.floats}
    assert found - known == {"aten::frac", "loom::running_max", *OTHERS}
    for mode in ("static", "dynamic"):
        lowered = jit_passes.quantize_script(script, [x], mode=mode, target="x86", progress=False)
        (plan,) = plans_in(lowered)
        assert str(plan).count("loom::running_max(") == 1
        assert mode == "static" or str(plan).count("loom::fraction(") == 1
        torch.jit.save(lowered, Path(folder, f"{mode}.pt"))
        torch.save((x, lowered(x)), Path(folder, f"{mode}.results"))
        assert sqnr(model(x), lowered(x)) > 28
    (refusal,) = run_alone(torch.ops.loom.running_max).values()
    assert refusal == "its operand 'dim' is None, and a plan takes a whole number"
    x *= 9
    for operator, expected in ((torch.frac, torch.frac(x)), (running_max, x.cummax(1).values)):
        (result,) = plan_of(traced(Alone(operator), x)).run([x])
        assert torch.equal(result, expected)


def load(file: str, results: str, library: str) -> None:
    """Load the file, and print whether its results are equal."""
    if library:
        torch.ops.load_library(library)
    x, expected = torch.load(results)
    print(torch.equal(torch.jit.load(file)(x), expected), end="")


def test_operators_of_a_package(library: Path, tmp_path: Path) -> None:
    """The target has them once they are loaded, with the results of PyTorch's operators."""
    assert elsewhere(quantize, library, tmp_path) == ""
    for mode in ("static", "dynamic"):
        files = (tmp_path / f"{mode}.pt", tmp_path / f"{mode}.results")
        assert elsewhere(load, *files, library) == "True"


def test_a_file_without_its_package(library: Path, tmp_path: Path) -> None:
    """The error names the operator, and the package to import."""
    elsewhere(quantize, library, tmp_path)
    error = elsewhere(load, tmp_path / "dynamic.pt", tmp_path / "dynamic.results", "")
    assert "no operator is called 'loom::" in error
    assert "import the package that has it, loom, first" in error


def form(library: str) -> None:
    """Build plans of nodes without an operator of their own."""
    from tests.plans import Grid, Weighted, plan_of, traced
    from tests.x86.operators.test_floats import kinds_of

    torch.ops.load_library(library)
    twist, trim, knot = (getattr(torch.ops.loom, name.partition("::")[2]) for name in OTHERS)
    planned = jit_passes._C.planned_kinds()
    assert {kind: planned[kind] for kind in OTHERS} == OTHERS
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    layer = Weighted(nn.Linear(16, 8), exact=True)
    grids = Grid(1 / 16, 128), Grid(1 / 8, 128)
    region = traced(nn.Sequential(grids[0], layer, Alone(knot), Alone(trim), grids[1]), x)
    plan = plan_of(region)
    assert torch.equal(plan.run([x])[0], region(x)) and region(x).abs().max() == 0.5
    assert kinds_of(plan) == ["input", "quantize", "linear"]
    for function in (twist, trim, knot):
        plan = plan_of(traced(Alone(lambda x, function=function: -function(x)), x))
        assert torch.equal(plan.run([x])[0], -function(x))
    region = traced(Alone(lambda x: twist(x.reshape(1, 1, 1, 4, 4, 4))), x)
    (refusal,) = jit_passes._C.plan_refusals(region._c, "forward").values()
    assert refusal == "it reads more than 5 axes"


def test_nodes_of_a_package(library: Path) -> None:
    """A clip ends a range of codes, an identity is no operator, and a node may be several."""
    assert elsewhere(form, library) == ""


# A part of the error of each mistake in a declaration.
MISTAKES = {
    "no name": "an operator of plans has no name",
    "an empty name": "an operator of plans has no name",
    "a taken name": "two operators of plans are called 'softmax'",
    "a taken operator": "'loom::mistake' of plans is made from aten::softmax, and so is 'softmax'",
    "a taken clip": "'loom::clip' of plans is made from aten::relu, and so is 'function'",
    "a taken node": "a row of RegisterNodes is made from aten::detach, which plans have already",
    "no lower": "'loom::mistake' of plans has no `lower`",
    "a null function": "'loom::mistake' of plans has a null function",
    "a from without a function": "'loom::mistake' of plans has a `from` without",
    "a from that reads nothing": "'loom::mistake' of plans is made from nodes of a graph, and",
    "exchanged ends": "'loom::mistake' of plans has a count",
    "an operand beyond": "'loom::mistake' of plans has an `any_dtype` beyond its `inputs`",
    "floats from operands": "'loom::mistake' of plans has `types` of operators without operands",
    "codes from a graph": "which do not tell its `types`: use Codes, Same, Mixed or Real",
    "a type without a tensor": "'loom::mistake' of plans has the type of its tensor, and no",
    "moves of two": "'loom::mistake' of plans keeps the codes of its operand",
    "a layer without weights": "'loom::mistake' of plans is a `layer` without weights",
    "a convolution without attributes": "'loom::mistake' of plans is a convolution without",
    "a convolution without a bias": "'loom::mistake' of plans is a convolution without scales",
    "groups without attributes": "'loom::mistake' of plans is a linear layer with a kernel",
    "dynamic without attributes": "'loom::mistake' of plans is dynamic without DynamicAttributes",
    "a step of layers": "'loom::mistake' of plans has a `step` that its `layer` does not make",
    "a taken pass": "a pass named 'freeze' is registered already",
    "a taken invariant": "invariant named 'inlined' is registered already",
    "a taken operator of the dialect": "same name and overload name multiple times",
}
# Mistakes that a graph with an operator shows when it becomes a plan, or when the plan is called.
LATER = {
    "no kernel": "'loom::wrong_1' of plans has a step that computes, and no kernel: set `kernel`",
    "no channels": "'loom::wrong_2' of plans is lowered with an axis innermost, and names none",
    "no attribute": "(loom::wrong_6) takes an axis from its first attribute",
    "no such operand": "cannot be read for a plan: ",
    "one operand of two": "'loom::wrong_3' of plans is lowered with 2 operands, and reads 1: set",
    "an error": "cannot be read for a plan: out of yarn",
    "an unknown kind": "plans turn loom::an_unknown_kind into the operator 'loom::unknwon', which "
    "no file declares",
    "a value beyond": "plans turn loom::a_value_beyond into operators of which one reads value 1 "
    "of 1: count the operands",
}


def raised(function: Callable[[], object]) -> str:
    """The error of a call; "" if there is none."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_alone(function: Callable[[Tensor], Tensor]) -> dict[int, str]:
    """Call the plan of a function, unless no plan may have it; return the reasons."""
    from tests.plans import plan_of, traced

    x = torch.randn(2, 3)
    region = traced(Alone(function), x)
    refusals = jit_passes._C.plan_refusals(region._c, "forward")
    if not refusals:
        plan_of(region).run([x])
    return refusals


def declare(library: str) -> None:
    """Print the errors of all mistakes; each is raised once."""
    from jit_passes.command_line.options import load_plugin

    torch.ops.load_library(library)
    before = {*jit_passes._C.planned_kinds()}
    errors: dict[str, str] = {}
    for mistake in MISTAKES:
        torch.ops.loom.declare(mistake)
        plans = "pass" not in mistake and "invariant" not in mistake
        errors[mistake] = raised(jit_passes._C.planned_kinds if plans else jit_passes._C.passes)
        assert not raised(jit_passes._C.passes)
        assert {*jit_passes._C.planned_kinds()} == before
    torch.ops.loom.declare("a taken pass")
    errors["a plugin"] = raised(lambda: load_plugin("json"))
    for mistake in LATER:
        torch.ops.loom.declare(mistake)
        name = mistake.removesuffix(" of two").replace(" ", "_")
        errors[mistake] = raised(partial(run_alone, getattr(torch.ops.loom, name)))
    print(json.dumps(errors))


def test_mistakes_in_declarations(library: Path) -> None:
    """A mistake is an error with operator, fault and mend; the process goes on."""
    errors = json.loads(elsewhere(declare, library))
    for mistake, part in {**MISTAKES, **LATER}.items():
        assert part in errors[mistake], mistake
    assert all(errors[mistake].startswith("ArgumentError: a library") for mistake in MISTAKES)
    assert "--plugin json does not import: ArgumentError: a library" in errors["a plugin"]
