"""Transformers with weights of 4 and 8 bits in groups, beside ONNX Runtime and PyTorch.

    python -m benchmarks.few_bits [--model decoder] [--only x86_dynamic_4_32 onnxruntime_4_32]
    python -m benchmarks.few_bits --model wide --only x86_dynamic_4_32 x86_weight_only_4_32

The model `blocks` is eight times `x + linear(gelu(linear(layer_norm(x))))`, 1024 wide and 4096
within, with 1, 16 and 128 rows. `decoder` has 12 layers, 768 wide, of 50,257 words, and keeps keys
and values; it takes a token behind 128 others, and a prompt of 128. Six channels of each layer norm
are 20 times as large. `wide` is eight linears of 4096 inputs and outputs with one row, whose
weights leave the caches: its table has the bytes of weights that are read in a second, and a copy's
bytes, read and written.

Each runtime has a process of its own, and two threads. A round runs all of them once, and takes the
median of its calls. The table has the least of the rounds, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.runtimes.base import THREADS

WIDTH, HIDDEN, BLOCKS = 1024, 4096, 8
ROWS = (1, 16, 128)
WIDE = 4096
WORDS, LAYERS, HEADS, SIZE, PAST = 50_257, 12, 12, 64, 128  # of the decoder
CALLS, SECONDS = 30, 2.0  # of a case, at most

Inputs = tuple[Tensor, ...]
Call = Callable[..., Any]
Made = tuple[Call, int]  # and the bytes of its file


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.heads = HEADS
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        with torch.no_grad():
            for norm in (self.norm1, self.norm2):
                norm.weight[torch.randperm(width)[:6]] *= 20

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        y = F.scaled_dot_product_attention(q, keys, values, mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), keys, values


class Decoder(nn.Module):
    """Words [1, T] and caches [layers, 1, heads, P, size] to logits of the last word and caches."""

    def __init__(self) -> None:
        super().__init__()
        width = HEADS * SIZE
        self.embed = nn.Embedding(WORDS, width)
        self.position = nn.Parameter(0.1 * torch.randn(2 * PAST, width))
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, words: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count, past = words.shape[1], keys.shape[3]
        x = self.embed(words) + self.position[past : past + count]
        mask = torch.ones(count, past + count, dtype=torch.bool).tril(past)
        new_keys: list[Tensor] = []
        new_values: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, keys[i], values[i], mask)
            new_keys.append(k)
            new_values.append(v)
        return self.head(self.norm(x[:, -1])), torch.stack(new_keys), torch.stack(new_values)


@dataclass(frozen=True)
class Workload:
    """A model, its inputs by the name of a case, and axes of inputs that change."""

    make: Callable[[], nn.Module]
    cases: Mapping[str, Callable[[], Inputs]]
    axes: Mapping[str, Mapping[int, str]]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().eval()


def rows_of(count: int, width: int = WIDTH) -> Callable[[], Inputs]:
    return lambda: (torch.randn(count, width),)


def words_of(count: int, past: int) -> Callable[[], Inputs]:
    cache = (LAYERS, 1, HEADS, past, SIZE)
    return lambda: (torch.randint(WORDS, (1, count)), torch.randn(cache), torch.randn(cache))


WORKLOADS = {
    "blocks": Workload(
        lambda: nn.Sequential(*(Block() for _ in range(BLOCKS))),
        {f"{rows} rows": rows_of(rows) for rows in ROWS},
        {"x": {0: "rows"}},
    ),
    "decoder": Workload(
        Decoder,
        {f"a word behind {PAST}": words_of(1, PAST), f"a prompt of {PAST}": words_of(PAST, 0)},
        {"words": {1: "words"}, "keys": {3: "past"}, "values": {3: "past"}},
    ),
    "wide": Workload(
        lambda: nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(BLOCKS))),
        {"1 row": rows_of(1, WIDE)},
        {"x": {0: "rows"}},
    ),
}


class Packed(nn.Module):
    """A linear layer by PyTorch's own kernel of 4 bits, in bfloat16."""

    def __init__(self, linear: nn.Linear, group: int) -> None:
        super().__init__()
        weight = linear.weight.detach()
        outputs, inputs = weight.shape
        groups = weight.reshape(outputs, -1, group)
        low, high = groups.amin(2), groups.amax(2)
        scale = (high - low) / 15
        codes = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15)
        codes = codes.reshape(outputs, inputs).int()
        zero = low + 8 * scale  # the kernel computes (code - 8) scale + zero
        self.scales = torch.stack([scale.t(), zero.t()], 2).bfloat16().contiguous()
        self.codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        self.group, self.outputs, self.bias = group, outputs, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16(), self.codes, self.group, self.scales
        )
        return y.float() + self.bias


Maker = Callable[[Workload, Path], Made]


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def torch_float(workload: Workload, folder: Path) -> Made:
    frozen = torch.jit.freeze(torch.jit.script(workload.model()))
    frozen.save(str(folder / "model.pt"))
    return frozen, size(folder)


def torch_int4(group: int) -> Maker:
    def make(workload: Workload, folder: Path) -> Made:
        made = workload.model()
        for module in list(made.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, Packed(child, group))
        return made, sum(
            tensor.nbytes for module in made.modules() for tensor in tensors_of(module)
        )

    return make


def tensors_of(module: nn.Module) -> list[Tensor]:
    packed = [module.codes, module.scales] if isinstance(module, Packed) else []
    return [*packed, *module.parameters(recurse=False)]


def ours(target: str, mode: str, bits: int, group: int | None, scheme: str = "symmetric") -> Maker:
    def make(workload: Workload, folder: Path) -> Made:
        import jit_passes

        weight: dict[str, Any] = {"bits": bits, "scheme": scheme}
        weight |= {"group_size": group} if group else {}
        rules = [{"op": "embedding", "weight": {"bits": 8, "channelwise": True}}]
        config = {"version": 1, "global": {"mode": mode, "weight": weight}, "rules": rules}
        if workload is not WORKLOADS["decoder"]:
            del config["rules"]
        scripted = torch.jit.script(workload.model())
        quantized = jit_passes.quantize_script(scripted, target=target, config=config)
        quantized.save(str(folder / "model.pt"))
        return torch.jit.load(str(folder / "model.pt")), size(folder)

    return make


def onnxruntime(group: int, level: int, symmetric: bool = True) -> Maker:
    def make(workload: Workload, folder: Path) -> Made:
        import onnx
        import onnxruntime as runtime
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        with tempfile.TemporaryDirectory() as plain:
            exported = Path(plain) / "float.onnx"
            example = next(iter(workload.cases.values()))()
            torch.onnx.export(
                workload.model(), example, str(exported), dynamo=False, opset_version=17,
                input_names=list(workload.axes), dynamic_axes=workload.axes,
            )  # fmt: skip
            quantizer = MatMulNBitsQuantizer(
                as_products(onnx.load(exported)), bits=4, block_size=group, is_symmetric=symmetric,
                accuracy_level=level,
            )  # fmt: skip
            quantizer.process()
            quantizer.model.save_model_to_file(str(folder / "model.onnx"))
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = THREADS, 3
        session = runtime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

        def call(*inputs: Tensor) -> tuple[Tensor, ...]:
            arrays = (x.numpy() for x in inputs)
            given = dict(zip(workload.axes, arrays, strict=True))
            return tuple(map(torch.from_numpy, session.run(None, given)))

        return call, size(folder)

    return make


def as_products(graph: Any) -> Any:
    """Return an ONNX model whose `Gemm` are products and sums, the only ones it quantizes."""
    import onnx
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    nodes = []
    for node in graph.graph.node:
        if node.op_type != "Gemm":
            nodes.append(node)
            continue
        weight = numpy_helper.to_array(constants[node.input[1]]).T.copy()
        constants[node.input[1]].CopyFrom(numpy_helper.from_array(weight, node.input[1]))
        product = f"{node.output[0]}_product"
        nodes.append(onnx.helper.make_node("MatMul", node.input[:2], [product], f"{node.name}_p"))
        nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], node.output, node.name))
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    return graph


RUNTIMES: dict[str, Maker] = {
    "torch_float": torch_float,
    "x86_dynamic_8": ours("x86", "dynamic", 8, None),
    "x86_dynamic_4_32": ours("x86", "dynamic", 4, 32),
    "x86_dynamic_4_128": ours("x86", "dynamic", 4, 128),
    "x86_dynamic_4_32_affine": ours("x86", "dynamic", 4, 32, "affine"),
    "x86_weight_only_4_32": ours("x86", "weight_only", 4, 32),
    "x86_weight_only_8": ours("x86", "weight_only", 8, None),
    "stock_weight_only_4_32": ours("stock", "weight_only", 4, 32),
    "onnxruntime_4_32": onnxruntime(32, 4),
    "onnxruntime_4_128": onnxruntime(128, 4),
    "onnxruntime_4_32_affine": onnxruntime(32, 4, symmetric=False),
    "onnxruntime_4_32_float": onnxruntime(32, 0),
    "torch_int4_32": torch_int4(32),
}


def run(model: str, name: str) -> dict[str, Any]:
    """Return times by case, the error of the first result, and the size of the file."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    workload = WORKLOADS[model]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        call, file_bytes = RUNTIMES[name](workload, Path(folder))
        times: dict[str, float] = {}
        for case, make in workload.cases.items():
            inputs = make()
            taken: list[float] = []
            for _ in range(3):
                call(*inputs)
            begun = perf_counter()
            while len(taken) < CALLS and perf_counter() - begun < SECONDS:
                start = perf_counter()
                call(*inputs)
                taken.append(perf_counter() - start)
            times[case] = median(taken)
        wanted, found = first(workload.model()(*inputs)), first(call(*inputs))
        noise = (found - wanted).square().sum()
        decibels = float(10 * torch.log10(wanted.square().sum() / noise))
    return {"times": times, "sqnr": decibels, "bytes": file_bytes}


def copied() -> float:
    """Return the bytes that a copy reads and writes in a second."""
    torch.set_num_threads(THREADS)
    source = torch.ones(1 << 28, dtype=torch.uint8)
    target, taken = torch.empty_like(source), []
    for _ in range(CALLS):
        start = perf_counter()
        target.copy_(source)
        taken.append(perf_counter() - start)
    return 2 * source.nbytes / min(taken)


def first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=list(WORKLOADS), default="blocks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(RUNTIMES), default=list(RUNTIMES))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(run(arguments.model, arguments.worker)))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(arguments.rounds):
        for name in arguments.only:
            command = [sys.executable, "-m", "benchmarks.few_bits", "--model", arguments.model]
            done = subprocess.run([*command, "--worker", name], capture_output=True, text=True)
            if done.returncode:
                reason = done.stderr.strip().splitlines()[-1]
                print(f"{name} left out: {reason}", file=sys.stderr)
                continue
            found.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
    cases = list(WORKLOADS[arguments.model].cases)
    wide = arguments.model == "wide"
    titles = ["runtime", *cases, "SQNR", "file", *(["weights in a second"] if wide else [])]
    print(row(titles), row(["---"] * len(titles)), sep="\n")
    for name, results in found.items():
        times = [min(result["times"][case] for result in results) for case in cases]
        cells = [f"`{name}`", *(f"{1e3 * seconds:.2f}" for seconds in times)]
        cells += [f"{results[0]['sqnr']:.1f} dB", f"{results[0]['bytes'] / 1e6:.1f} MB"]
        cells += [f"{results[0]['bytes'] / times[0] / 1e9:.1f} GB/s"] if wide else []
        print(row(cells))
    if wide:
        print(row(["a copy", "", "", "", f"{copied() / 1e9:.1f} GB/s"]))


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
