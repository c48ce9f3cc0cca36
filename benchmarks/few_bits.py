"""Blocks of a transformer with weights of 4 and 8 bits in groups, beside ONNX Runtime and PyTorch.

    python -m benchmarks.few_bits [--rounds 3] [--only x86_dynamic_4_32 onnxruntime_4_32]

Eight blocks `x + linear(gelu(linear(layer_norm(x))))`, 1024 wide and 4096 within, two threads. Each
runtime has a process of its own; a round runs all of them once, and takes the median of its calls.
The table has the least of the rounds, in milliseconds, by the number of rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
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
CALLS, SECONDS = 30, 2.0  # of a number of rows, at most

Call = Callable[[Tensor], Tensor]
Made = tuple[Call, int]  # and the bytes of its file


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


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


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS))).eval()


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def torch_float(folder: Path) -> Made:
    frozen = torch.jit.freeze(torch.jit.script(model()))
    frozen.save(str(folder / "model.pt"))
    return frozen, size(folder)


def torch_int4(group: int) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        made = model()
        for block in made:
            for name in ("up", "down"):
                setattr(block, name, Packed(getattr(block, name), group))
        torch.save(made.state_dict(), folder / "model.pt")
        return torch.compiler.disable(made), size(folder)

    return make


def ours(target: str, mode: str, bits: int, group: int | None) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        import jit_passes

        weight: dict[str, Any] = {"bits": bits} | ({"group_size": group} if group else {})
        config = {"version": 1, "global": {"mode": mode, "weight": weight}}
        scripted = torch.jit.script(model())
        quantized = jit_passes.quantize_script(scripted, target=target, config=config)
        quantized.save(str(folder / "model.pt"))
        return torch.jit.load(str(folder / "model.pt")), size(folder)

    return make


def onnxruntime(group: int, level: int) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        import onnx
        import onnxruntime as runtime
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        with tempfile.TemporaryDirectory() as plain:
            exported = Path(plain) / "float.onnx"
            torch.onnx.export(
                model(), (torch.randn(2, WIDTH),), str(exported), dynamo=False, opset_version=17,
                input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
            )  # fmt: skip
            quantizer = MatMulNBitsQuantizer(
                as_products(onnx.load(exported)), bits=4, block_size=group, is_symmetric=True,
                accuracy_level=level,
            )  # fmt: skip
            quantizer.process()
            quantizer.model.save_model_to_file(str(folder / "model.onnx"))
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = THREADS, 3
        session = runtime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), size(folder)

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


RUNTIMES: dict[str, Callable[[Path], Made]] = {
    "torch_float": torch_float,
    "x86_dynamic_8": ours("x86", "dynamic", 8, None),
    "x86_dynamic_4_32": ours("x86", "dynamic", 4, 32),
    "x86_dynamic_4_128": ours("x86", "dynamic", 4, 128),
    "x86_weight_only_4_32": ours("x86", "weight_only", 4, 32),
    "x86_weight_only_8": ours("x86", "weight_only", 8, None),
    "stock_weight_only_4_32": ours("stock", "weight_only", 4, 32),
    "onnxruntime_4_32": onnxruntime(32, 4),
    "onnxruntime_4_128": onnxruntime(128, 4),
    "onnxruntime_4_32_float": onnxruntime(32, 0),
    "torch_int4_32": torch_int4(32),
}


def run(name: str) -> dict[str, Any]:
    """Return times by the number of rows, the error, and the size of the file."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        call, file_bytes = RUNTIMES[name](Path(folder))
        exact = model()
        times: dict[int, float] = {}
        for rows in ROWS:
            x = torch.randn(rows, WIDTH)
            taken: list[float] = []
            for _ in range(3):
                call(x)
            begun = perf_counter()
            while len(taken) < CALLS and perf_counter() - begun < SECONDS:
                start = perf_counter()
                call(x)
                taken.append(perf_counter() - start)
            times[rows] = median(taken)
        x = torch.randn(64, WIDTH)
        wanted = exact(x)
        noise = (call(x) - wanted).square().sum()
        decibels = float(10 * torch.log10(wanted.square().sum() / noise))
    return {"times": times, "sqnr": decibels, "bytes": file_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(RUNTIMES), default=list(RUNTIMES))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(run(arguments.worker)))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(arguments.rounds):
        for name in arguments.only:
            command = [sys.executable, "-m", "benchmarks.few_bits", "--worker", name]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                reason = done.stderr.strip().splitlines()[-1]
                print(f"{name} left out: {reason}", file=sys.stderr)
                continue
            found.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
    print("| runtime | " + " | ".join(f"{rows} rows" for rows in ROWS) + " | SQNR | file |")
    print("| --- " * (len(ROWS) + 3) + "|")
    for name, results in found.items():
        times = [min(result["times"][str(rows)] for result in results) for rows in ROWS]
        cells = [f"{1e3 * seconds:.2f}" for seconds in times]
        cells += [f"{results[0]['sqnr']:.1f} dB", f"{results[0]['bytes'] / 1e6:.1f} MB"]
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
