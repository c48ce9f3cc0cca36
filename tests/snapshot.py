"""Digests of the files that quantizing, training and profiling give, to compare two checkouts.

A change of structure must not change results. From the repository root, before and after it::

    PYTHONPATH=. .venv/bin/python -m tests.snapshot save before.json
    PYTHONPATH=. .venv/bin/python -m tests.snapshot compare before.json

The models are those of `tests/models`, scripted and traced, and the benchmark networks on small
images. Each is quantized for two targets, trained for two steps and converted, and profiled. A
file is compared as it is, and once more without the report that the stages keep in it, so a row
says whether what the model computes has changed, or only what is said about it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import jit_passes
from benchmarks.models import MODELS, ModelSpec
from tests.models import BASIC, Case

REPORT = "jit_passes_report"
IMAGE_SIZE = 64
Batches = list[Any]
Digest = dict[str, str]
Build = Callable[[], torch.jit.ScriptModule]
Draw = Callable[[], Batches]


def sha(content: bytes) -> str:
    """Return the first half of the SHA-256 of the content."""
    return hashlib.sha256(content).hexdigest()[:32]


def digest(model: torch.jit.ScriptModule) -> Digest:
    """Return the digests of a module's file, with the report in it and without."""
    whole = io.BytesIO()
    torch.jit.save(model, whole)
    if model._c.hasattr(REPORT):
        model._c.setattr(REPORT, "")
    bare = io.BytesIO()
    torch.jit.save(model, bare)
    return {"file": sha(whole.getvalue()), "without report": sha(bare.getvalue())}


def trained(build: Build, draw: Draw, fake_quantizer: str) -> Digest:
    """Return the digest of a model that took two steps and was converted."""
    qat = jit_passes.prepare_qat(build(), fake_quantizer=fake_quantizer, bits=4).train()
    optimizer = torch.optim.SGD(qat.parameters(), lr=1e-3)
    for batch in draw():
        torch.manual_seed(0)
        optimizer.zero_grad()
        total(call(qat, batch)).backward()
        optimizer.step()
    return digest(jit_passes.convert(qat))


def call(model: Any, batch: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments, or a dict of them."""
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def total(result: Any) -> torch.Tensor:
    """Return a scalar that depends on every floating point tensor in a result."""
    if isinstance(result, torch.Tensor):
        return result.square().mean() if result.is_floating_point() else torch.zeros(())
    items = result.values() if isinstance(result, dict) else result
    nested = isinstance(result, dict | list | tuple)
    return sum((total(item) for item in items), torch.zeros(())) if nested else torch.zeros(())


def profiled(build: Build, draw: Draw) -> Digest:
    """Return the digest of a profile's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        jit_passes.profile(build(), draw()).save(path)
        return {"file": sha(path.read_bytes())}


def quantized(build: Build, draw: Draw, target: str, method: str) -> Digest:
    """Return the digest of the quantized model."""
    return digest(jit_passes.quantize_script(build(), draw(), target=target, method=method))


def models() -> Iterator[tuple[str, Build, Draw, str]]:
    """Yield name, constructor, constructor of batches, and method of each model."""
    for case in BASIC:
        for frontend in case.frontends:
            build = partial(case.build, frontend)
            yield f"{case.name}-{frontend}", build, partial(drawn, case), case.method
    for name, spec in MODELS.items():
        sides = 1 if name == "audio" else 2
        crop = (slice(None), slice(None), *[slice(0, IMAGE_SIZE)] * sides)
        yield f"{name}-script", partial(scripted, spec), partial(cropped, spec, crop), "forward"


def drawn(case: Case) -> Batches:
    return [case.arguments(2, seed) for seed in (1, 2)]


def scripted(spec: ModelSpec) -> torch.jit.ScriptModule:
    return torch.jit.script(spec.build())


def cropped(spec: ModelSpec, crop: tuple[slice, ...]) -> Batches:
    return [spec.inputs(2, seed)[crop] for seed in (1, 2)]


def jobs(pattern: str) -> Iterator[tuple[str, str, Callable[[], Digest]]]:
    """Yield name of the model, what is done with it, and what does it."""
    for name, build, draw, method in models():
        if pattern not in name:
            continue
        for target in ("stock", "reference"):
            yield name, target, partial(quantized, build, draw, target, method)
        if method == "forward":
            for fake_quantizer in ("lsq", "moving_average"):
                yield name, fake_quantizer, partial(trained, build, draw, fake_quantizer)
            yield name, "profile", partial(profiled, build, draw)


def in_child(run: Callable[[], Digest]) -> Digest:
    """Run it in a process of its own: names of types depend on what was compiled before."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        torch.manual_seed(0)
        try:
            result = run()
        except Exception as error:  # an error is a result too
            result = {"error": f"{type(error).__name__}: {error}".split("\n")[0]}
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(content) if content else {"error": f"the process ended with {status}"}


def snapshot(pattern: str) -> dict[str, dict[str, Digest]]:
    """Return the digests of all results whose model's name holds the pattern."""
    found: dict[str, dict[str, Digest]] = {}
    for name, what, run in jobs(pattern):
        found.setdefault(name, {})[what] = in_child(run)
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Print what differs, and return whether nothing does."""
    rows = [
        (name, what, old, after[name][what])
        for name in before.keys() & after.keys()
        for what, old in before[name].items()
        if what in after[name]
    ]
    different = sorted(row for row in rows if row[2] != row[3])
    for name, what, old, new in different:
        keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
        errors = [side["error"] for side in (old, new) if "error" in side]
        print(f"{name:40} {what:15} {', '.join(keys)} {' -> '.join(errors)}")
    only = before.keys() ^ after.keys()
    print(f"{len(rows)} results of {len(before.keys() & after.keys())} models: "
          f"{len(different)} differ; models in one only: {len(only)}")  # fmt: skip
    return not different and not only


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--models", default="", help="part of the names of the models to take")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = snapshot(arguments.models)
    if arguments.action == "save":
        arguments.file.write_text(json.dumps(found, indent=1))
        return 0
    before = json.loads(arguments.file.read_text())
    chosen = {name: rows for name, rows in before.items() if arguments.models in name}
    return 0 if compare(chosen, found) else 1


if __name__ == "__main__":
    sys.exit(main())
