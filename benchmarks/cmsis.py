"""Programs in C that call CMSIS-NN, beside the ones with loops of their own, by model.

Codes of activations are int8, scales any, rounding `half_up` and then `double_round`. CMSIS-NN is
compiled for this processor with `-O2`, its C code without vector instructions. Usage, from the
repository root, with CMSIS-NN's sources in a folder::

    python -m benchmarks.cmsis --sources CMSIS-NN
    python -m benchmarks.cmsis --sources CMSIS-NN --models keywords

Columns: rounding; operators that CMSIS-NN computes, of all with weights, sums, products and pools;
copies that change the order of channels; codes of results at which C differs from TorchScript, for
five test vectors; bytes between operators, with loops and with CMSIS-NN; milliseconds for a vector,
likewise. The program fails if a code differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import torch

import jit_passes
from benchmarks import report
from benchmarks.inputs import realistic
from benchmarks.integers import CASES, VECTORS, Case, _of_children
from jit_passes.export.c.arena import plan_arena
from jit_passes.export.c.cmsis import with_cmsis
from jit_passes.export.c.reading import read_program
from jit_passes.targets import FixedPoint

MODELS = ("keywords", "digits_resnet", "digits_mobilenet", "unet", "encoder", "tagger",
          "mobilenet_v2", "resnet18")  # fmt: skip
ROUNDINGS = ("half_up", "double_round")
SIGNED = {"version": 1, "global": {"input": {"signed": True}, "output": {"signed": True}}}
_HEADER = (
    "model", "rounding", "CMSIS-NN", "copies", "C differs", "arena", "with CMSIS-NN",
    "ms", "with CMSIS-NN",
)  # fmt: skip
_HEAVY = ("conv2d", "linear", "add", "add_rescaled", "multiply", "max_pool2d", "matmul")


def rows(case: Case, sources: Path) -> list[list[str]]:
    """Return two lines of the table."""
    torch.manual_seed(0)
    net = realistic(case.make(), [case.batch(8, 100 + i) for i in range(4)])
    sample = case.batch(1, 7)
    model = torch.jit.trace(net, sample)
    return [[case.title, *_row(case, model, rounding, sources)] for rounding in ROUNDINGS]


def _row(case: Case, model: torch.jit.ScriptModule, rounding: str, sources: Path) -> list[str]:
    target = FixedPoint(rounding=rounding, steps=case.steps)
    batches = [case.batch(8, i) for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jit_passes.JitPassesWarning)
        lowered = jit_passes.quantize_script(model, batches, target=target, config=SIGNED)
    sample = case.batch(1, 7)
    program, _, _ = read_program(lowered, (sample,), "forward")
    translated = with_cmsis(program)
    plain, theirs = (Counter(call.kernel for call in some.calls) for some in (program, translated))
    own = sum(count for kernel, count in theirs.items() if kernel.startswith("cmsis_"))
    told, times = "", []
    for kernels in ("plain", "cmsis"):
        with tempfile.TemporaryDirectory() as name:
            jit_passes.export_c(lowered, name, sample, [case.batch(1, 8)], kernels=kernels)
            make = ["make", "-s", "-C", name, f"CMSIS_NN={sources.resolve()}", "model_test"]
            subprocess.run(make, check=True)
            start = _of_children()
            done = subprocess.run(
                ["./model_test"], cwd=name, capture_output=True, text=True, check=False
            )
            times.append(f"{1e3 * (_of_children() - start) / VECTORS:.1f}")
            told = done.stdout.strip().splitlines()[-1]
    return [
        rounding,
        f"{own} of {sum(plain[kernel] for kernel in _HEAVY)}",
        f"{theirs['copy'] - plain['copy']}",
        told.removesuffix(" codes differ"),
        *(f"{plan_arena(some).size:,}" for some in (program, translated)),
        *times,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--sources", type=Path, required=True, help="folder of CMSIS-NN")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    given = parser.parse_args()
    found = []
    for name in given.models:
        for line in rows(CASES[name], given.sources):
            found.append(line)
            print(" | ".join(line), file=sys.stderr, flush=True)
    print(report.table(_HEADER, found))
    print(report.machine_facts())
    sys.exit(any(not line[4].startswith("0 of") for line in found))


if __name__ == "__main__":
    main()
