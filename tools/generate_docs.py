"""Write the tables of the documents from what the package itself knows.

    python -m tools.generate_docs            # writes
    python -m tools.generate_docs --check    # says what is out of date, and fails

A table stands between `<!-- generated: name -->` and `<!-- end -->`. `MAKERS` says which function
makes it. `tests/documentation/test_documents.py` runs the check.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import jit_passes
from jit_passes import _C, Pipeline
from jit_passes.registered import Registered
from tools import command_sessions

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LONG = re.compile(r"\d+\.\d{6,}(e-?\d+)?")
# Their last digit depends on the processor, or on the length of this checkout's path.
MEASURED = re.compile(r"((?<![\d.])\d+\.\d+(?![\d.])|\d+(?=%| KiB))")
WIDTH = 110
# In a graph, the submodule of a region; in a plan, an operator's kind and name.
REGION = re.compile(r"prim::CallMethod\((\w+)")
OPERATOR = re.compile(r"^%\d+ = (\w+)\(.*?\) # (.*?),", re.MULTILINE)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def block(text: str) -> str:
    """Return text in a fence; long lines are cut.

    Numbers have four digits: the further ones differ between processors.
    """
    text = LONG.sub(lambda m: f"{float(m[0]):.4g}", text)
    lines = [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in text.split("\n")]
    return "```\n" + "\n".join(lines).strip("\n") + "\n```"


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def passes() -> str:
    """All registered passes of the package."""
    rows = []
    for name, info in jit_passes.passes.items():
        options = code(str(option) for option in info.options)
        rows.append((f"`{name}`", info.summary, options, code(info.ensures)))
    return table(("pass", "summary", "options", "ensures"), rows)


def invariants() -> str:
    """Invariants that passes and pipelines can require and ensure."""
    rows = [(f"`{name}`", info[0]) for name, info in _C.invariants().items()]
    return table(("invariant", "holds when"), rows)


def pipelines() -> str:
    """Every pipeline that a module of the package defines, and the targets' own."""
    found: dict[str, Pipeline] = {}
    for module in pkgutil.walk_packages(jit_passes.__path__, "jit_passes."):
        if not module.name.endswith("._C"):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Pipeline):
                    found[value.name] = value
    for target in (jit_passes.targets.Stock(), jit_passes.targets.Reference()):
        found[target.lowering().name] = target.lowering()
    rows = [(f"`{name}`", ", ".join(map(str, found[name].steps))) for name in sorted(found)]
    return table(("pipeline", "steps, in order"), rows)


def operators() -> str:
    """The dialect: schemas and summaries."""
    rows = []
    for name, (summary,) in sorted(_C.ops().items()):
        for schema in torch._C._jit_get_schemas_for_operator(f"jit_passes::{name}"):
            rows.append((f"`{str(schema).removeprefix('jit_passes::')}`", summary))
    return table(("operator", "meaning"), rows)


def target(make: str) -> str:
    """A target's capability, as it prints itself."""
    made = eval(make, dict(vars(jit_passes.targets)))
    return f"`print(jit_passes.targets.{make})`:\n\n{block(str(made))}"


def by_name(kinds: Mapping[str, type[Registered]]) -> list[tuple[str, ...]]:
    """Return rows of names, class, options with defaults, and the first line of the docstring."""
    rows = []
    for name, kind in kinds.items():
        options = code(f"{option}={value!r}" for option, value in kind.defaults().items())
        summary = (kind.__doc__ or "").strip().split("\n")[0]
        rows.append((code((name, *kind.aliases)), f"`{kind.__name__}`", options, summary))
    return rows


def calibrations() -> str:
    """Calibration methods by name."""
    return table(
        ("`calibration:`", "class", "parameters", "range"), by_name(jit_passes.observers.methods())
    )


def training_methods() -> str:
    """Methods of training by name."""
    rows = by_name(jit_passes.fake_quantizers.methods())
    return table(("`fake_quantizer=`", "class", "options", "method"), rows)


class Net(nn.Module):
    """A convolution, its batch norm and a relu."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x)))


def stages() -> dict[str, torch.jit.ScriptModule]:
    """Take the net through all stages."""
    torch.manual_seed(0)
    scripted = torch.jit.script(Net().eval())
    target = jit_passes.targets.Stock("x86", reduce_range=False)
    prepared = jit_passes.prepare(scripted, target=target)
    calibrated = jit_passes.calibrate(prepared, [DATA])
    reference = jit_passes.convert(prepared if calibrated is None else calibrated)
    return {
        "prepared": prepared,
        "reference": reference,
        "lowered": jit_passes.lower(reference),
        "planned": jit_passes.quantize_script(scripted, [DATA], target="x86", mode="static"),
        "training": jit_passes.prepare_qat(scripted, target=target),
    }


def life(stage: str) -> Callable[[], str]:
    return lambda: block(jit_passes.format_graph(STAGES[stage]))


def training_life() -> str:
    """The part of the training graph that is about the convolution."""
    lines = jit_passes.format_graph(STAGES["training"]).split("\n")
    names = ("fold_", "deferred_", "train_", "aten::conv2d", "aten::relu")
    return block("\n".join(line for line in lines if any(name in line for name in names)))


def plan_of(name: str) -> Any:
    """Return the compiled plan of a region of the planned net."""
    return getattr(STAGES["planned"], name).compiled


def plan_life() -> str:
    """The graph that calls a plan, and the plan's operators."""
    graph = jit_passes.format_graph(STAGES["planned"])
    plans = [f"{name}.compiled:\n{plan_of(name)}" for name in REGION.findall(graph)]
    return block("\n\n".join([graph.strip("\n"), *plans]))


def step_life() -> str:
    """The steps of a plan for inputs of one size: operators, kernels, and their sources."""
    rows = []
    for name in REGION.findall(jit_passes.format_graph(STAGES["planned"])):
        plan = plan_of(name)
        kinds = {made: kind for kind, made in OPERATOR.findall(str(plan))}
        for step, kernel, sizes, products, _ in plan.profile([DATA]):
            kind = kinds.get(step, kernel)
            run = f"{kind.title()}::run"
            declared = defined("operators", f'.name = "{kind}"')
            computed = defined("kernels", f"{run}(")
            number = f", {products:,} multiply-adds" if products else ""
            sources = f"declared in `{declared}`, computed by `{run}` in `{computed}`"
            rows.append((step or "result", f"{kernel}{number}", str(sizes), sources))
    return table(("step", "kernel", "result", "sources"), rows)


def defined(room: str, text: str) -> str:
    """Return the first source of a room of cpp/x86/ that has a text."""
    paths = sorted((ROOT / "cpp" / "x86" / room).glob("*.cpp"))
    found = next(path for path in paths if text in path.read_text("utf-8"))
    return found.relative_to(ROOT).as_posix()


def shown(value: jit_passes.ValueView) -> str:
    """Return the name of a value, or the number or list that it is."""
    number = value.is_constant and not isinstance(value.constant, torch.Tensor)
    return str(value.constant) if number else value.name


def canonical() -> str:
    """The graph that quantizers annotate."""
    torch.manual_seed(0)
    nodes = jit_passes.normalized_graph(torch.jit.script(Net().eval())).nodes
    rows = [f"{n.name:12} {n.kind:16} {', '.join(map(shown, n.inputs))}" for n in nodes if n.name]
    return block("\n".join(rows))


def session(name: str) -> str:
    """Commands and what they write."""
    return block(command_sessions.outputs()[name])


STAGES: dict[str, torch.jit.ScriptModule] = {}
DATA = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
MAKERS: dict[str, Callable[[], str]] = {
    "passes": passes,
    "invariants": invariants,
    "pipelines": pipelines,
    "operators": operators,
    "calibrations": calibrations,
    "training_methods": training_methods,
    "target_x86": lambda: target('Stock("x86", reduce_range=False)'),
    "target_reference": lambda: target("Reference()"),
    "target_onnxruntime": lambda: target("OnnxRuntime()"),
    "life_canonical": canonical,
    "life_prepared": life("prepared"),
    "life_reference": life("reference"),
    "life_lowered": life("lowered"),
    "life_plan": plan_life,
    "life_steps": step_life,
    "life_training": training_life,
}


MAKERS |= {name: functools.partial(session, name) for name in command_sessions.SESSIONS}


def agree(old: str, new: str) -> bool:
    """Say whether texts are equal but for two units in the last digit of what was measured."""
    olds, news = MEASURED.split(old), MEASURED.split(new)
    if [part.split() for part in olds[::2]] != [part.split() for part in news[::2]]:
        return False
    for a, b in zip(olds[1::2], news[1::2], strict=True):
        unit = 0.1 ** len(a.partition(".")[2])
        if abs(float(a) - float(b)) > 2.1 * unit:
            return False
    return True


def generate(text: str) -> str:
    """Return a document with its tables made anew, where they say something new."""

    def made(found: re.Match[str]) -> str:
        whole, begin, name, end = found.group(0, 1, 2, 3)
        new = f"{begin}{MAKERS[name]()}\n{end}"
        return whole if agree(whole, new) else new

    return MARK.sub(made, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is old"
    )
    check = parser.parse_args().check
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        STAGES.update(stages())
        old = []
        for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
            text = path.read_text(encoding="utf-8")
            new = generate(text)
            if new != text:
                old.append(str(path.relative_to(ROOT)))
                if not check:
                    path.write_text(new, encoding="utf-8")
    verb = "out of date" if check else "written"
    print(f"{verb}: {', '.join(old)}" if old else "all tables are up to date")
    return 1 if old and check else 0


if __name__ == "__main__":
    sys.exit(main())
