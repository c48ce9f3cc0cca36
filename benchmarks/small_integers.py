"""How many small models of the tests are integers alone, in TorchScript and in C, and what is not.

The target is `fixed_point` with powers of two. Each model is scripted, calibrated and lowered; its
integers are compared with the reference model, and a program in C with them, compiled by gcc with
all warnings and sanitizers as errors. A model has `--limit` seconds. Usage, from the repository
root::

    python -m benchmarks.small_integers
    python -m benchmarks.small_integers --models conv1d attention_causal

Below the table stand the reasons for which C refuses models, the most frequent first, and up to
four models of each. The program fails if something differs.
"""

from __future__ import annotations

import argparse
import copy
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import jit_passes
from benchmarks import report
from benchmarks.drawn_integers import GCC
from jit_passes import JitPassesError
from jit_passes.targets import FixedPoint
from tests.models import CASES

IN_C, NO_LAYER, LIMIT = "in C", "no layer on integers", "the limit"
_SHOWN = 4  # models of a reason


def outcome(case: Any) -> str:
    """Return how far a model gets: `IN_C`, `NO_LAYER`, a reason of C, or what is wrong."""
    model = case.build("script")
    batches = [case.arguments(8, seed) for seed in range(3)]
    prepared = jit_passes.prepare(model, target=FixedPoint("shift"), method=case.method)
    jit_passes.calibrate(prepared, batches)
    reference = jit_passes.convert(prepared)
    lowered = jit_passes.lower(reference)
    if not any(row.dtype == "int8" for row in jit_passes.coverage(lowered)):
        return NO_LAYER
    given = case.arguments(3, 100)
    found, expected = (_called(some, case.method, given) for some in (lowered, reference))
    if not all(map(torch.equal, found, expected)):
        raise AssertionError("TorchScript differs from the reference model")
    with tempfile.TemporaryDirectory() as folder:
        try:
            jit_passes.export_c(lowered, folder, given, method=case.method)
        except JitPassesError as error:
            return _reason(str(error))
        subprocess.run([*GCC, "main.c", "model.c", "-o", "program"], cwd=folder, check=True)
        subprocess.run(["./program"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return IN_C


def _called(model: Any, method: str, given: Any) -> list[torch.Tensor]:
    """Call a copy of a model on copies, since both may be written to."""
    function = getattr(copy.deepcopy(model), method)
    given = tree_map_only(torch.Tensor, torch.clone, given)
    with torch.no_grad():
        results = function(**given) if isinstance(given, dict) else function(*given)
    return [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]


def _reason(message: str) -> str:
    """Return a reason without names, places and types."""
    message = re.sub(
        r"'([\w.]+:)?(\w+?)(_\w*)?(#\d+)?'( \(.*?:\d+\))?", r"'\2\3'", message, count=1
    )
    return re.sub(r"type \w+", "another type", message).splitlines()[0]


def _stop(*_: Any) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--limit", type=int, default=60, help="seconds for a model")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    seen: dict[str, list[str]] = defaultdict(list)
    wrong = 0
    for case in CASES:
        if not case.script or (given.models and case.name not in given.models):
            continue
        signal.alarm(given.limit)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what stays in float
                seen[outcome(case)].append(case.name)
        except TimeoutError:
            seen[LIMIT].append(case.name)
        except Exception as error:
            wrong += 1
            print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            signal.alarm(0)
    count = sum(map(len, seen.values())) + wrong - len(seen[NO_LAYER])
    header = ("models with layers on integers", IN_C, "that differ or fail", "over the limit")
    print(
        report.table(header, [[f"{n}" for n in (count, len(seen[IN_C]), wrong, len(seen[LIMIT]))]])
    )
    refused = {k: v for k, v in seen.items() if k not in (IN_C, NO_LAYER, LIMIT) and v}
    for reason, names in sorted(refused.items(), key=lambda item: -len(item[1])):
        print(f"{len(names)}  {reason}: {', '.join(names[:_SHOWN])}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
