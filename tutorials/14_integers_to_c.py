# %% [markdown]
# # From training to C, bit for bit
#
# Hardware engineers need integers to compare a kernel with: a convolution as a correlation and a
# bias, a format for each number on the way, scales that are powers of two. This text trains a
# network on digits for this hardware, lowers it to integers, and writes these as C. It compiles and
# runs the program, and shows that PyTorch, ONNX Runtime and C give equal codes. Files for a
# testbench come last.
#
# Tutorial 06 has the five slots in detail, and tutorial 11 TQT;
# [docs/fixed_point.md](../docs/fixed_point.md) has the target's equations.
#
# Run this file whole (`python tutorials/14_integers_to_c.py`, about half a minute; it needs a C
# compiler, onnx and onnxruntime), or cell by cell in an editor that supports `# %%`. Assertions
# check the claims.

# %%
import json
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from digits import CLASSES, load_digits_tensors, top1, train
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.targets import FixedPoint

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. A network of convolutions and a linear
#
# Each layer has five slots. Without batch norms, the bias of each layer is the one that the
# hardware adds.


# %%
class Net(nn.Module):
    """Four convolutions and a linear: images `[N, 1, 16, 16]` to scores `[N, 10]`."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.down1 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.mix = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.down2 = nn.Conv2d(2 * width, 3 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(3 * width * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.down1(F.relu(self.stem(x))))
        return self.head(F.relu(self.down2(F.relu(self.mix(x)))).flatten(1))


data = load_digits_tensors()
torch.manual_seed(0)
net = Net()
train(net, data, epochs=7)
float_top1 = top1(net, data.test_x, data.test_y)
print(f"float: {float_top1:.2f} %")
assert float_top1 > 95

# %% [markdown]
# ## 2. Five slots, trained
#
#     q8(q16(sum of q8(w) * q8(x)) + q16(b))
#
# The recipe "graffitist" names the formats, and `fake_quantizer="tqt"` trains the threshold of
# each, from which its scale follows, a power of two. `target` describes the hardware's arithmetic.

# %%
target = FixedPoint("shift", rounding="half_even")
qat = jit_passes.quantize_slots(
    torch.jit.script(net), recipe="graffitist", fake_quantizer="tqt", target=target
)
thresholds = [name for name, _ in jit_passes.named_quantization_parameters(qat)]
assert len(thresholds) == 5 * 5
train(qat, data, epochs=2, peak_rate=1e-3)
trained_top1 = top1(qat, data.test_x, data.test_y)
print(f"trained with {len(thresholds)} thresholds: {trained_top1:.2f} %")
assert trained_top1 > float_top1 - 1

# %% [markdown]
# ## 3. Must engines agree?
#
# `convert` gives the reference model: float operators between quantize and dequantize. With powers
# of two, sums below 2^24 steps, and one rounding behind each operator, floats and integers are
# equal. `exactness` checks these conditions with the weights of each layer, before any run.

# %%
reference = jit_passes.convert(qat)
told = jit_passes.exactness(reference, data.test_x[:1])
print(told.summary)
assert told.exact

# %% [markdown]
# ## 4. Integers in TorchScript
#
# The lowered model quantizes its input, and then computes with integers.

# %%
lowered = jit_passes.lower(reference)
images = data.test_x[:64]
assert torch.equal(lowered(images), reference(images))
assert len(reference(images).unique()) > 50
integer_top1 = top1(lowered, data.test_x, data.test_y)
print(f"integers: {integer_top1:.2f} %")
assert integer_top1 == top1(reference, data.test_x, data.test_y)

# %% [markdown]
# ## 5. C
#
# `export_c` writes the lowered model as C99, with test vectors and a Makefile. The program is
# compiled with all warnings as errors, and with gcc's checks for undefined behaviour and memory.
# The program counts the codes that differ from the lowered model.

# %%
folder = Path(tempfile.mkdtemp())
jit_passes.export_c(lowered, folder / "c", images[:1], images[1:8].split(1), name="digits")
header = (folder / "c" / "digits.h").read_text()
print(header[header.index("/*") :])
compiler = shutil.which("gcc")
assert compiler is not None, "this tutorial needs gcc"
flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Werror"]
checks = ["-fsanitize=undefined,address", "-fno-sanitize-recover=all"]
command = [compiler, *flags, *checks, "main.c", "digits.c", "-o", "program"]
subprocess.run(command, cwd=folder / "c", check=True)
ran = subprocess.run(["./program"], cwd=folder / "c", capture_output=True, text=True, check=False)
print(ran.stdout)
# Eight images, and inputs with the lowest codes, the highest and random ones.
assert ran.returncode == 0 and ran.stdout == f"0 of {(8 + 3) * CLASSES} codes differ\n"

# %% [markdown]
# ## 6. Four engines
#
# `conformance` runs the reference model in several engines, and compares the codes of each value
# that an engine shows. At the first difference it names operator, line, both codes and the sum
# before rounding.

# %%
engines = ["fixed_point", "c", "onnxruntime", "onnxruntime_optimized"]
found = jit_passes.conformance(reference, [images], engines)
print(found)
assert found.equal and not found.missing
assert {row.engine for row in found.rows} == set(engines)

# %% [markdown]
# Hardware that rounds halves up gives other codes. Here the trained thresholds and weights are
# lowered for this hardware, and run as an engine of your own.


# %%
def rounds_up(x: Tensor) -> dict[str, Tensor]:
    """An engine of one's own: codes of the result."""
    return {"output": (other(x) / step).round().to(torch.int64)}


torch.manual_seed(0)
half_up = FixedPoint("shift", rounding="half_up")
again = jit_passes.quantize_slots(
    torch.jit.script(net), recipe="graffitist", fake_quantizer="tqt", target=half_up
)
again.load_state_dict(qat.state_dict())
other = jit_passes.lower(jit_passes.convert(again.eval()))
step = float(jit_passes.encodings_of(reference)["head:add_bias"].scale[0])
parted = jit_passes.conformance(reference, [images], [rounds_up])
print(parted.divergences[0])
assert not parted.equal

# %% [markdown]
# ## 7. One kernel at a time
#
# A testbench checks one kernel before it checks a network. `export_vectors` writes operands,
# constants and results of each operator as `.npy` and as hex text, and a manifest with format,
# scale and order of axes of each. The first correlation, by numpy alone:

# %%
jit_passes.export_vectors(lowered, images[:4].split(1), folder / "vectors")
manifest = json.loads((folder / "vectors" / "manifest.json").read_text())
for operator in manifest["operators"][:4]:
    arrays = operator["operands"] + operator["constants"] + operator["results"]
    formats = [f"{entry['name']} {entry['format']}" for entry in arrays if "format" in entry]
    print(f"{operator['name']:20} {operator['function']:10} {', '.join(formats)}")
first = manifest["operators"][0]
entries = {e["name"]: e for e in first["operands"] + first["constants"] + first["results"]}
loaded = {
    name: np.load(folder / "vectors" / entry["npy"]).astype(np.int64)
    for name, entry in entries.items()
}
x, w, y = (loaded[name] for name in ("x", "weight", "y"))
padded = np.pad(x[:, 0], [(0, 0), (0, 0), (1, 1), (1, 1)])
sums = np.zeros(y[:, 0].shape, np.int64)
for row in range(3):
    for column in range(3):
        window = padded[:, :, row : row + 16, column : column + 16]
        sums += np.einsum("nkhw,ck->nchw", window, w[:, :, row, column])
factor = 2.0 ** -int(loaded["shifts"][0]) * int(loaded["multipliers"][0])
codes = np.round(sums * factor).clip(-(2**15), 2**15 - 1)  # numpy rounds halves to even
assert np.array_equal(codes, y[:, 0]) and len(np.unique(y)) > 100
print((folder / "vectors" / entries["weight"]["hex"]).read_text().split()[:9])
shutil.rmtree(folder)
