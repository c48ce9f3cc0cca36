"""Torchvision's classifiers in int8 by default, beside three other quantizers.

Weights are random, statistics of batch norms come from 256 pictures, and all quantizers have the
same weights and pictures. The first table has the mean over the test's pictures of
10 log10(|y|^2 / |y - q|^2), in decibels, where y are the scores of the float model and q are the
quantized ones. Usage, from the repository root::

    pip install -r requirements/benchmarks.txt torchvision==0.28.0 torchao==0.18.0
    python -m benchmarks.classifiers --scores scores.jsonl
    python -m benchmarks.classifiers --models resnet18 swin_t --size 224

Each model has a process of its own. `--scores` keeps results in a file, and a later run has only
the models that the file lacks. `--improve` adds `improve=True`, no step of which begins after a
minute.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from benchmarks import report
from benchmarks.inputs import images, realistic
from benchmarks.measure import sqnr_db
from benchmarks.runtimes import RUNTIMES, Runtime, Workload, first_line
from benchmarks.runtimes.base import THREADS, missing_requirement
from benchmarks.runtimes.jit_passes import JitPassesRuntime
from benchmarks.runtimes.pt2e import Pt2eRuntime

_MODULE = "benchmarks.classifiers"
_OURS = "jit_passes"
_DEFAULT = JitPassesRuntime(target="x86", mode="auto")
_PEERS: dict[str, Runtime] = {
    name: RUNTIMES[name] for name in ("quantize_jit_x86", "onnxruntime") if name in RUNTIMES
} | {"pt2e": Pt2eRuntime()}
_IMPROVED = "improve"
_QUANTIZERS: dict[str, Runtime] = {
    _OURS: _DEFAULT,
    **_PEERS,
    _IMPROVED: JitPassesRuntime(target="x86", mode="auto", improve=60),
}
_CALIBRATION, _BATCH, _TEST = 16, 4, 32  # pictures
# Pictures and batches of batch norms: with fewer, deep networks amplify what is unlike them.
_STATISTICS, _TIMES = 64, 4
_LEAST = {"maxvit_t": 224, "vit_h_14": 98}  # pixels along an axis
_LAYER_SCALE = 0.1  # of ConvNeXt, whose initial 1e-6 would leave nothing but residual sums


@dataclass
class Scores:
    """The SQNR of each test picture, by quantizer, and the errors of quantizers that fail."""

    model: str
    size: int
    decibels: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def cell(self, name: str) -> str:
        if name in self.decibels:
            return f"{mean(self.decibels[name]):.1f}"
        return self.errors.get(name, report.MISSING)

    def gains(self, peer: str) -> list[float]:
        """Decibels of this package less the peer's, picture by picture."""
        pairs = zip(self.decibels[_OURS], self.decibels[peer], strict=True)
        return [ours - theirs for ours, theirs in pairs]

    def best(self) -> str | None:
        peers = [name for name in _PEERS if name in self.decibels]
        return max(peers, key=lambda name: mean(self.decibels[name]), default=None)

    def row(self) -> list[str]:
        cells = [self.model, str(self.size), *map(self.cell, (_OURS, _IMPROVED, *_PEERS))]
        best = self.best()
        if best is None or _OURS not in self.decibels:
            return [*cells, report.MISSING]
        gains = self.gains(best)
        error = stdev(gains) / len(gains) ** 0.5
        return [*cells, f"{mean(gains):+.2f} ± {error:.2f}"]


def classifiers() -> list[str]:
    models = importlib.import_module("torchvision.models")
    names: list[str] = models.list_models(module=models)
    return names


def made(name: str, size: int) -> nn.Module:
    """A model with random weights, in eval mode."""
    torch.manual_seed(0)
    options: dict[str, Any] = {}
    if name in {"googlenet", "inception_v3"}:
        options = {"aux_logits": False, "init_weights": False}
    elif name.startswith("vit"):
        options = {"image_size": size}
    elif name.startswith("maxvit"):
        options = {"input_size": (size, size)}
    model: nn.Module = importlib.import_module("torchvision.models").get_model(
        name, weights=None, **options
    )
    for module in model.modules():
        if hasattr(module, "layer_scale"):
            nn.init.constant_(module.layer_scale, _LAYER_SCALE)
        if isinstance(module, nn.Linear) and not module.weight.any():  # the head of ViT
            nn.init.trunc_normal_(module.weight, std=0.02)
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0  # statistics of batch norms are those of the whole network
    batches = [images(_STATISTICS, 100 + batch, size) for batch in range(_TIMES)]
    return realistic(model, batches, drawn=False)


def scores_of(result: Any) -> torch.Tensor:
    """The scores of a result; scripts of GoogLeNet and Inception return a tuple with them."""
    found: torch.Tensor = getattr(result, "logits", result)
    return found


def measured(name: str, size: int, quantizers: Sequence[str]) -> Scores:
    """Some quantizers on one model.

    Raises:
        Exception: the model cannot be scripted.
    """
    torch.set_num_threads(THREADS)
    size = max(size, _LEAST.get(name, 0))
    scores = Scores(name, size)
    model = made(name, size)
    calibration = list(images(_CALIBRATION, 200, size).split(_BATCH))
    test = images(_TEST, 300, size).split(_BATCH)
    with torch.no_grad():
        expected = torch.cat([model(x) for x in test])
    workload = Workload(model, torch.jit.script(model), calibration)
    for key in quantizers:
        runtime = _QUANTIZERS[key]
        missing = missing_requirement(runtime)
        if missing:
            scores.errors[key] = missing
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                predict = runtime.build(workload, Path(folder)).specialize(test[0])
                actual = torch.cat([scores_of(predict(x)).clone() for x in test])
            except Exception as error:  # whatever a peer raises, the others are still compared
                report.progress(f"{name}, {key}: {first_line(error)}")
                scores.errors[key] = f"fails: {type(error).__name__}"
                continue
        scores.decibels[key] = [sqnr_db(y, q) for y, q in zip(expected, actual, strict=True)]
    return scores


def in_its_process(name: str, size: int, quantizers: Sequence[str]) -> Scores:
    """`measured` in a process that ends behind it, and gives its memory back.

    All quantizers share the process. If one of them crashes, each gets its own.
    """
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(measured, name, size, quantizers).result()
    except BrokenProcessPool:
        if len(quantizers) == 1:
            return Scores(name, size, errors={quantizers[0]: "crashes"})
    each = [in_its_process(name, size, (key,)) for key in quantizers]
    decibels = {key: found for one in each for key, found in one.decibels.items()}
    errors = {key: error for one in each for key, error in one.errors.items()}
    return Scores(name, max(one.size for one in each), decibels, errors)


def summary(all_scores: Sequence[Scores]) -> str:
    """Medians and extremes of the gain over each peer, and over the best one of each model."""
    rows = []
    for peer in (*_PEERS, None):
        gains = {
            scores.model: mean(scores.gains(other))
            for scores in all_scores
            if _OURS in scores.decibels and (other := peer or scores.best()) in scores.decibels
        }
        if gains:
            worst = min(gains, key=lambda name: gains[name])
            rows.append(
                [
                    peer or "the best of each model",
                    str(len(gains)),
                    f"{median(gains.values()):+.2f}",
                    str(sum(gain > 0 for gain in gains.values())),
                    str(sum(gain < -0.5 for gain in gains.values())),
                    f"{gains[worst]:+.2f}, {worst}",
                ]
            )
    header = ("peer", "models", "median gain, dB", "ahead", "more than 0.5 dB behind", "worst")
    return report.table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    command = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--models", nargs="+", help="names of torchvision; by default all")
    parser.add_argument("--size", type=int, default=96, help="pixels along an axis")
    parser.add_argument(
        "--scores", type=Path, help="a file of results, which a later run continues"
    )
    parser.add_argument("--improve", action="store_true", help="with `improve=True` too")
    options = parser.parse_args(command)
    quantizers = [key for key in _QUANTIZERS if options.improve or key != _IMPROVED]
    try:
        names = options.models or classifiers()
    except ImportError as error:
        raise SystemExit(f"this needs torchvision: {error}") from None
    kept: dict[str, Scores] = {}
    if options.scores and options.scores.exists():
        lines = options.scores.read_text(encoding="utf-8").splitlines()
        kept = {found.model: found for found in (Scores(**json.loads(line)) for line in lines)}
    for name in tqdm([name for name in names if name not in kept], unit="model"):
        try:
            scores = in_its_process(name, options.size, quantizers)
        except Exception as error:  # a model that cannot be scripted, or needs more memory
            report.progress(f"{name} is left out: {first_line(error)}")
            continue
        kept[name] = scores
        if options.scores:
            with options.scores.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(scores)) + "\n")
    found = [kept[name] for name in names if name in kept]
    header = ("model", "pixels", _OURS, _IMPROVED, *_PEERS, "gain over the best peer")
    print(report.command(_MODULE, command))
    print(report.table(header, [scores.row() for scores in found]))
    print()
    print(summary(found))


if __name__ == "__main__":
    main()
