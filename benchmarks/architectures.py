"""Whether models of timm become int8, family by family: a table, and what fails.

Weights are random, with BatchNorm statistics from data, so SQNR says that nothing is wrong, not how
accurate a model is. Usage, from the repository root, with timm and torchvision installed::

    python -m benchmarks.architectures --targets x86 stock --forms traced scripted
    python -m benchmarks.architectures --models dla34 efficientnet_b0
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import jit_passes
from benchmarks import report
from benchmarks.measure import sqnr_db
from benchmarks.runtimes import first_line
from benchmarks.runtimes.base import THREADS

# Words in names of small variants, the smallest first.
_SMALL = (
    "test",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "tiny",
    "_xs",
    "mini",
    "_t",
    "small",
    "_s",
    "_0",
    "18",
    "b0",
)
_MOST = 300  # pixels along an axis; larger models are made for 224, or given 256
_BATCHES, _BATCH = 4, 2
_SIZES = (2, 1, 3)  # of batches that are compared

Make = Callable[..., nn.Module]


def timm() -> Any:
    """The package.

    Raises:
        SystemExit: it is missing.
    """
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise SystemExit(f"this needs timm: pip install timm torchvision ({error})") from None


def smallest_of_families(timm: Any) -> list[str]:
    """One model for each module of timm, by its name the smallest."""

    def rank(name: str) -> tuple[int, int, str]:
        known = [place for place, word in enumerate(_SMALL) if word in name]
        return (known[0] if known else len(_SMALL), len(name), name)

    families = (timm.list_models(module=module) for module in timm.list_modules())
    return [min(names, key=rank) for names in families if names]


def made(name: str, create: Make) -> tuple[nn.Module, Sequence[int]]:
    """A model in eval mode, and the size of its inputs without the batch."""
    torch.manual_seed(0)
    model = create(name, pretrained=False)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    if size[1] > _MOST:
        try:
            model, size = create(name, pretrained=False, img_size=224), (3, 224, 224)
        except TypeError:  # it takes any size
            size = (3, 256, 256)
    model.train()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(4, *size))
    return model.eval(), size


def images(count: int, size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Smooth images with a little noise."""
    coarse = torch.randn(count, 3, size[1] // 16, size[2] // 16, generator=generator)
    smooth = interpolate(coarse, list(size[1:]), mode="bilinear")
    return 1.5 * smooth + 0.2 * torch.randn(count, *size, generator=generator)


def in_form(form: str, model: nn.Module, x: Tensor) -> torch.jit.ScriptModule:
    if form == "scripted":
        return torch.jit.script(model)
    traced: torch.jit.ScriptModule = torch.jit.trace(model, x, check_trace=False)
    return traced


def first(result: Any) -> Tensor:
    """The first tensor of what a model returns."""
    while not isinstance(result, Tensor):
        result = result[0]
    return result


def row(
    model: torch.jit.ScriptModule,
    float_model: nn.Module,
    data: list[Tensor],
    compared: list[Tensor],
    target: str,
) -> list[str]:
    """Operators in int8 and all, plans, the smallest SQNR, seconds, and a reason for float."""
    start = time.perf_counter()
    quantized = jit_passes.quantize_script(model, data, target=target, progress=False)
    seconds = time.perf_counter() - start
    coverage = jit_passes.coverage(quantized)
    plans = sum(hasattr(module, "compiled") for module in quantized.modules())
    with torch.no_grad():
        sqnr = min(sqnr_db(first(float_model(x)), first(quantized(x))) for x in compared)
    reason = next((f"{row.kind}: {row.reason}" for row in coverage.float), "")
    return [
        f"{len(coverage.int8)} of {len(coverage)}",
        str(plans),
        f"{sqnr:.1f}",
        f"{seconds:.1f}",
        reason[:120],
    ]


def rows(
    names: Sequence[str], forms: Sequence[str], targets: Sequence[str], create: Make
) -> Iterator[list[str]]:
    """A row for each model, form and target, with the error where there is one."""
    for name in names:
        try:
            model, size = made(name, create)
        except Exception as error:  # whatever a model raises, the others are still tried
            yield [name, "float", "", first_line(error), "", "", "", ""]
            continue
        generator = torch.Generator().manual_seed(1)
        data = [images(_BATCH, size, generator) for _ in range(_BATCHES)]
        compared = [images(count, size, generator) for count in _SIZES]
        for form in forms:
            try:
                with torch.no_grad():
                    script = in_form(form, model, compared[1])
            except Exception as error:  # as above
                yield [name, form, "", first_line(error), "", "", "", ""]
                continue
            for target in targets:
                try:
                    yield [name, form, target, *row(script, model, data, compared, target)]
                except Exception as error:  # as above
                    yield [name, form, target, f"FAILED: {first_line(error)}", "", "", "", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", help="names of timm; by default one of each family")
    parser.add_argument("--targets", nargs="+", default=["x86", "stock"])
    parser.add_argument(
        "--forms", nargs="+", choices=("traced", "scripted"), default=["traced", "scripted"]
    )
    options = parser.parse_args()
    package = timm()
    torch.set_num_threads(THREADS)
    names = options.models or smallest_of_families(package)
    header = ["model", "form", "target", "int8", "plans", "SQNR dB", "seconds", "a reason"]
    print(report.table(header, []))
    failed = 0
    for cells in rows(names, options.forms, options.targets, package.create_model):
        failed += cells[3].startswith("FAILED")
        print(report.table(header, [cells]).splitlines()[-1], flush=True)
    raise SystemExit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main()
