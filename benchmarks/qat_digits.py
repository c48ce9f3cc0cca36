"""Accuracy of trained quantization at few bits, beside calibration alone, on scanned digits.

Usage, from the repository root, with the packages that the tutorials need::

    python -m benchmarks.qat_digits                                  # everything; half an hour
    python -m benchmarks.qat_digits --nets resnet --bits 4 --repeats 1 --methods lsq
    python -m benchmarks.qat_digits --oscillations --nets mobilenet --bits 3 2

The data are scikit-learn's 1797 digits, of which 597 are held out: one of them is 0.17 points. The
networks are those of ``tutorials/digits.py``, half as wide, trained once in float for each repeat;
every method starts from there.

=============  ==================================================================================
resnet         residual blocks
mobilenet      inverted residuals with depthwise convolutions, and ReLU in place of ReLU6
uneven         the same trained mobilenet with channels of widely different range in front of the
               depthwise convolutions: each is divided by 2^-4 to 2^4, at random, and its depthwise
               weight multiplied. It computes the same function, as ReLU has no upper end, and its
               float accuracy is mobilenet's. Folded depthwise weights of real MobileNets differ so
               (Nagel et al., arXiv:1906.04721, figure 2); a small network that trains for half a
               minute has no reason to. SGD diverges on it, as gradients differ as much as
               channels, so it has the rows without SGD only.
=============  ==================================================================================

Weights of convolutions and linears, and what these read, have the bits of the column; in the first
and the last layer 8, and 8 for sums, whatever the method. Per tensor or channel:

==================  =============================================================================
PTQ                 calibration on 512 images: affine, weights with a scale for each channel
PTQ, 2^n            calibration: one power of two for each tensor, zero points 0, unsigned behind a
                    relu
STE                 affine as PTQ; ranges follow the data, weights train
LSQ                 the same; scales train (arXiv:1902.08153)
LSQ+                the same; scales and offsets train (arXiv:2004.09576)
TQT, 2^n            powers of two as in "PTQ, 2^n"; thresholds train (arXiv:1903.08066)
==================  =============================================================================

Recipes. STE, LSQ and LSQ+, as the LSQ paper has it for pretrained networks: SGD with momentum 0.9
at rate 0.001 for 8 bits and 0.01 for fewer, cosine decay, weight decay 1e-4 for weights and none
for what quantization adds. Statistics of batch norms are frozen for the last quarter of the epochs.
TQT: two Adams, thresholds at 1e-2 halved in steps, weights at 1e-3 with cosine decay (the paper's
1e-6 is for hundreds of thousands of steps), statistics frozen after the first epoch, thresholds
frozen one by one from the middle on. All train for the same number of
epochs, on images moved by up to a pixel.

``--oscillations`` trains with LSQ alone, as above, and compares remedies for weights that jump
between two codes, with the share of weights that oscillate in the end:

================  ===============================================================================
LSQ               none
statistics move   none, and statistics of batch norms are not frozen for the last quarter
damped            the squared distance from codes is in the loss, by 0 to 0.1 as half a cosine
frozen            weights that jump more often than a limit, 0.04 to 0.01, are held at a code
from GPTQ         weights start at the codes of sequential GPTQ, ranges of weights by
                  ``output_error`` and of activations by squared error
from GPTQ,        both
frozen
from GPTQ,        weights have the smallest code too: -2 to 1 with 2 bits, where the other rows
all codes         have -1 to 1
================  ===============================================================================

Its second column is the accuracy once more after statistics of batch norms are estimated anew.

Accuracy is that of the converted model (``jit_passes.convert``), which would be deployed, with
biases in steps of the accumulator, input scale times weight scale. Below the tables is the largest
difference between a converted model and the one that trained, in eval mode.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from tqdm import tqdm

import jit_passes
from benchmarks import report
from jit_passes.fake_quantizers import LSQ
from jit_passes.targets import PowerOfTwoQuantizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tutorials"))
from digits import (
    Digits,
    DigitsMobileNet,
    DigitsResNet,
    InvertedResidual,
    load_digits_tensors,
    shift,
    top1,
    train,
)

NETS = {"resnet": ("conv1", "fc"), "mobilenet": ("features.0", "classifier")}
"""The first and the last layer of each network that is trained in float."""
NETS["uneven"] = NETS["mobilenet"]
METHODS = {
    "ptq": "PTQ",
    "ptq_power_of_two": "PTQ, 2^n",
    "moving_average": "STE",
    "lsq": "LSQ",
    "lsq_plus": "LSQ+",
    "tqt": "TQT, 2^n",
}
REMEDIES = {
    "lsq": "LSQ",
    "lsq-moving": "statistics move",
    "lsq-damped": "damped",
    "lsq-frozen": "frozen",
    "lsq-started": "from GPTQ",
    "lsq-started-frozen": "from GPTQ, frozen",
    "lsq-started-all": "from GPTQ, all codes",
}
UNEVEN_METHODS = ("ptq", "ptq_power_of_two", "tqt")
"""Those that do without SGD."""
BITS = (8, 4, 3, 2)

_WIDTH = 8
_BATCH = 32
_EDGE_BITS = 8
_CALIBRATION_IMAGES = 512
_OCTAVES = 4  # channels of the uneven network are scaled by up to 2 to this, up and down


@dataclass(frozen=True)
class Job:
    """One training, or one calibration.

    Attributes:
        net: a key of NETS.
        seed: of the float network, and of the order of images.
        method: a key of METHODS or REMEDIES, or "float".
        bits: 0 for "float".
        epochs: of training with quantization, or in float.
    """

    net: str
    seed: int
    method: str
    bits: int
    epochs: int


@dataclass(frozen=True)
class Result:
    """Percentages of held-out digits.

    Attributes:
        converted: the reference model.
        trained: the model that trained, in eval mode; for the others as converted.
        corrections: how many scales were put back above 0.
        estimated: as converted, with statistics of batch norms estimated anew.
        oscillating, frozen: shares of the weights.
    """

    converted: float
    trained: float
    corrections: int = 0
    estimated: float = 0.0
    oscillating: float = 0.0
    frozen: float = 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the tables."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _options(arguments)
    print(report.command("benchmarks.qat_digits", arguments), flush=True)
    seeds = range(options.repeats)
    parents = list(dict.fromkeys("mobilenet" if n == "uneven" else n for n in options.nets))
    floats = [Job(n, s, "float", 0, options.float_epochs) for n in parents for s in seeds]
    jobs = [
        Job(net, seed, method, bits, options.epochs)
        for bits in options.bits
        for net in options.nets
        for method in options.methods
        for seed in seeds
        if net != "uneven" or method in UNEVEN_METHODS
    ]
    context = get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.processes, context, _start) as pool,
        tqdm(total=len(floats) + len(jobs), disable=None) as bar,
    ):
        found = _run_all(pool, _train_float, floats, Path(folder), bar)
        found |= _run_all(pool, _quantize, jobs, Path(folder), bar)
    print(_remedies(found, options) if options.oscillations else _text(found, options))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.qat_digits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--methods", nargs="+", choices={**METHODS, **REMEDIES})
    parser.add_argument("--oscillations", action="store_true", help="compare remedies for these")
    parser.add_argument("--bits", nargs="+", type=int, default=BITS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16, help="of training with quantization")
    parser.add_argument("--float-epochs", type=int, default=10)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    options.methods = options.methods or list(REMEDIES if options.oscillations else METHODS)
    return options


def _start() -> None:
    """Set up a process: results do not depend on the number of cores."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it


def _run_all(
    pool: ProcessPoolExecutor,
    function: Callable[[Job, Path], Result],
    jobs: Sequence[Job],
    folder: Path,
    bar: tqdm,
) -> dict[Job, Result]:
    """The results of all jobs."""
    pending = {pool.submit(function, job, folder): job for job in jobs}
    found = {}
    for future in as_completed(pending):
        job = pending[future]
        try:
            found[job] = future.result()
        except RuntimeError as error:  # diverged: the rows go without it
            bar.write(f"{job}: {str(error).splitlines()[-1]}", file=sys.stderr)
            bar.update()
            continue
        bar.write(f"{job}: {found[job]}", file=sys.stderr)
        bar.update()
    return found


def _path(folder: Path, net: str, seed: int) -> Path:
    """The file of a float network."""
    return folder / f"{net}-{seed}.pt"


def _train_float(job: Job, folder: Path) -> Result:
    """Train a network in float and save it; of a mobilenet also the uneven one."""
    data = load_digits_tensors()
    torch.manual_seed(job.seed)
    if job.net == "resnet":
        model: nn.Module = DigitsResNet(_WIDTH)
    else:
        model = _with_relu(DigitsMobileNet(_WIDTH))
    train(model, data, epochs=job.epochs, seed=job.seed, progress=False)
    torch.jit.save(torch.jit.script(model), str(_path(folder, job.net, job.seed)))
    score = top1(model, data.test_x, data.test_y)
    if job.net == "mobilenet":
        make_uneven(model, job.seed)
        torch.jit.save(torch.jit.script(model), str(_path(folder, "uneven", job.seed)))
        assert abs(top1(model, data.test_x, data.test_y) - score) < 0.2, "not the same function"
    return Result(score, score)


def _with_relu(model: nn.Module) -> nn.Module:
    """The model with ReLU for ReLU6, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU6):
                setattr(parent, name, nn.ReLU(inplace=True))
    return model


@torch.no_grad()
def make_uneven(model: nn.Module, seed: int) -> None:
    """Scale channels in front of depthwise convolutions, and take it back in their weights."""
    generator = torch.Generator().manual_seed(seed)
    for block in model.modules():
        if isinstance(block, InvertedResidual):
            norm, depthwise = block.conv[1], block.conv[3]
            octaves = (2 * torch.rand(norm.num_features, generator=generator) - 1) * _OCTAVES
            factor = octaves.exp2()
            norm.weight /= factor
            norm.bias /= factor
            depthwise.weight *= factor.reshape(-1, 1, 1, 1)


def _quantize(job: Job, folder: Path) -> Result:
    """Calibrate or train a quantized network, and convert it."""
    torch.manual_seed(job.seed)  # dropout
    data = load_digits_tensors()
    model = torch.jit.load(str(_path(folder, job.net, job.seed)))
    if job.method.startswith("ptq"):
        score = _calibrate(model, data, job)
        return Result(score, score)
    kind, *remedies = job.method.split("-")
    qat = (
        _started(model, data, job) if "started" in remedies else _prepare(model.train(), job, kind)
    )
    oscillations = jit_passes.Oscillations(qat) if kind == "lsq" else None
    steps = len(data.train_x) // _BATCH
    rate = 1e-3 if job.bits >= 8 else 1e-2
    recipe: Recipe = (
        Tqt(qat, steps, job.epochs) if job.method == "tqt" else Sgd(qat, steps, job.epochs, rate)
    )
    generator = torch.Generator().manual_seed(job.seed)
    done = 0
    for epoch in range(job.epochs):
        if "moving" not in remedies:
            recipe.begin(epoch)
        order = torch.randperm(len(data.train_x), generator=generator)
        for picked in order[: steps * _BATCH].split(_BATCH):
            logits = qat(shift(data.train_x[picked], generator))
            loss = F.cross_entropy(logits, data.train_y[picked], label_smoothing=0.05)
            past = (1 - math.cos(math.pi * done / (steps * job.epochs))) / 2  # 0 to 1
            if oscillations is not None and "damped" in remedies:
                loss = loss + 0.1 * past * oscillations.dampening()
            loss.backward()
            recipe.step()
            if oscillations is not None:
                oscillations.step(0.04 - 0.03 * past if "frozen" in remedies else None)
            done += 1
    qat.eval()
    models = (jit_passes.convert(qat), qat)
    scores = [top1(found, data.test_x, data.test_y) for found in models]
    corrections = jit_passes.scale_corrections(qat)
    if oscillations is None:
        return Result(*scores, corrections)
    images = torch.randperm(len(data.train_x), generator=generator)
    anew = [shift(data.train_x[picked], generator) for picked in images.split(64)[:-1]]
    jit_passes.estimate_statistics(qat, anew, progress=False)
    estimated = top1(jit_passes.convert(qat), data.test_x, data.test_y)
    return Result(*scores, corrections, estimated, oscillations.share, oscillations.frozen)


def _calibrate(model: Any, data: Digits, job: Job) -> float:
    """The accuracy that calibration gives."""
    config = _configuration(job)
    reference = jit_passes.quantize_script(
        model,
        data.train_x[:_CALIBRATION_IMAGES].split(64),
        quantizer=_quantizer(job.method),
        target="reference",
        config=config,
        weight_rounding=None,
        bias_correction=None,
    )
    return top1(reference, data.test_x, data.test_y)


def _configuration(job: Job, **weight: Any) -> dict[str, Any]:
    """The bits of a job, for calibration."""
    first_last = {"input": {"bits": _EDGE_BITS}, "weight": {"bits": _EDGE_BITS}}
    return {
        "version": 1,
        "global": {"input": {"bits": job.bits}, "weight": {"bits": job.bits, **weight}},
        "rules": [{"module": list(NETS[job.net]), **first_last}],
    }


def _started(model: Any, data: Digits, job: Job) -> torch.jit.ScriptModule:
    """The model that trains from the codes of sequential GPTQ."""
    codes = {"narrow_range": False} if job.method.endswith("-all") else {}
    config = _configuration(job, calibration="output_error", **codes)
    images = list(data.train_x[:_CALIBRATION_IMAGES].split(64))
    prepared = jit_passes.prepare(model.eval(), target="reference", mode="static", config=config)
    prepared = jit_passes.calibrate(prepared, images, progress=False)
    rounded = jit_passes.round_weights(prepared, images, how="gptq_sequential", progress=False)
    qat = jit_passes.prepare_qat(
        model.train(), fake_quantizer=LSQ(activations="mean_squared_error"), target="reference",
        config=config,
    )  # fmt: skip
    jit_passes.start_from(qat, rounded)
    return qat


def _prepare(model: Any, job: Job, method: str) -> torch.jit.ScriptModule:
    """The model that trains."""
    return jit_passes.prepare_qat(
        model,
        _quantizer(job.method),
        fake_quantizer=method,
        bits=job.bits,
        first_last_bits=_EDGE_BITS,
        target="reference",
    )


def _quantizer(method: str) -> PowerOfTwoQuantizer | None:
    """The quantizer; None for the target's own."""
    return PowerOfTwoQuantizer(unsigned=True) if method in ("ptq_power_of_two", "tqt") else None


class Recipe(Protocol):
    """How a model is trained."""

    def begin(self, epoch: int) -> None:
        """Go into an epoch."""

    def step(self) -> None:
        """Go one step down, and forget the gradients."""


class Sgd:
    """The recipe of STE, LSQ and LSQ+: SGD and cosine decay."""

    def __init__(self, qat: torch.jit.ScriptModule, steps: int, epochs: int, rate: float) -> None:
        self._qat, self._epochs = qat, epochs
        groups = [{"params": jit_passes.model_parameters(qat), "weight_decay": 1e-4}]
        if added := jit_passes.quantization_parameters(qat):
            groups.append({"params": added, "weight_decay": 0.0})
        self._optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9)
        self._schedule = CosineAnnealingLR(self._optimizer, steps * epochs)

    def begin(self, epoch: int) -> None:
        """Freeze statistics for the last quarter."""
        if epoch == self._epochs - self._epochs // 4:
            jit_passes.freeze_statistics(self._qat)

    def step(self) -> None:
        """Go one step down."""
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()


class Tqt:
    """The recipe of TQT: weights and thresholds with an Adam each, and freezing."""

    def __init__(self, qat: torch.jit.ScriptModule, steps: int, epochs: int) -> None:
        self._qat = qat
        total = steps * epochs
        self._optimizers = (
            torch.optim.Adam(jit_passes.model_parameters(qat), lr=1e-3),
            torch.optim.Adam(jit_passes.quantization_parameters(qat), lr=1e-2),
        )
        self._schedules = (
            CosineAnnealingLR(self._optimizers[0], total),
            StepLR(self._optimizers[1], max(total // 4, 1), 0.5),
        )
        named = list(jit_passes.named_quantization_parameters(qat))
        interval = max(total // 2 // len(named), 1)
        self._freezer = jit_passes.ThresholdFreezer(named, total // 2, interval, momentum=0.99)

    def begin(self, epoch: int) -> None:
        """Freeze statistics after the first epoch."""
        if epoch == 1:
            jit_passes.freeze_statistics(self._qat)

    def step(self) -> None:
        """Go one step down, and freeze a threshold if it is time."""
        for optimizer in self._optimizers:
            optimizer.step()
        self._freezer.step()
        for optimizer, schedule in zip(self._optimizers, self._schedules, strict=True):
            schedule.step()
            optimizer.zero_grad()


def _text(found: dict[Job, Result], options: argparse.Namespace) -> str:
    """One table for each network, and what there is to say below."""
    parts = []
    columns = sorted(options.bits, reverse=True)
    for net in options.nets:
        parent = "mobilenet" if net == "uneven" else net
        floats = [r.converted for j, r in found.items() if (j.net, j.method) == (parent, "float")]
        methods = [m for m in options.methods if any((j.net, j.method) == (net, m) for j in found)]
        rows = [["float", _spread(floats)] + [""] * (len(columns) - 1)]
        for method in methods:
            scores = [
                [
                    result.converted
                    for job, result in found.items()
                    if (job.net, job.method, job.bits) == (net, method, bits)
                ]
                for bits in columns
            ]
            rows.append([METHODS[method], *map(_spread, scores)])
        parts.append(report.table([net, *(f"{bits} bits" for bits in columns)], rows))
    job, result = max(found.items(), key=lambda item: abs(item[1].converted - item[1].trained))
    apart = abs(result.converted - result.trained)
    parts.append(
        f"Largest difference between trained and converted: {apart:.2f}"
        + (f" ({METHODS[job.method]}, {job.net}, {job.bits} bits)" if apart else "")
        + f"; scales put back above 0: {sum(r.corrections for r in found.values())}"
    )
    return "\n\n".join(parts)


def _remedies(found: dict[Job, Result], options: argparse.Namespace) -> str:
    """One table for each network and number of bits."""
    parts = []
    for net in options.nets:
        for bits in sorted(options.bits, reverse=True):
            rows = []
            for method in options.methods:
                key = (net, method, bits)
                results = [r for job, r in found.items() if (job.net, job.method, job.bits) == key]
                shares = [[100 * r.oscillating for r in results], [100 * r.frozen for r in results]]
                scores = [[r.converted for r in results], [r.estimated for r in results]]
                rows.append([REMEDIES[method], *map(_spread, scores), *map(_spread, shares)])
            head = [f"{net}, {bits} bits", "top-1", "statistics anew", "% oscillate", "% frozen"]
            parts.append(report.table(head, rows))
    return "\n\n".join(parts)


def _spread(scores: Sequence[float]) -> str:
    """The mean, and the smallest and largest; nothing for none."""
    if not scores:
        return ""
    mean = sum(scores) / len(scores)
    return f"{mean:.2f} ({min(scores):.2f} to {max(scores):.2f})"


if __name__ == "__main__":
    main()
