# %% [markdown]
# # Quantizing a TorchScript module, step by step
#
# A float32 network stores every weight in four bytes and multiplies floats. An int8 network stores
# one byte, and multiplies 8-bit integers. A CPU multiplies several times as many of these per
# second. This text quantizes a small residual network: first one stage at a time, with a look at
# the graph in between, then in a single call.
#
# Run this file whole (`python tutorials/01_quantize_script.py`, about half a minute), or cell by
# cell in an editor that supports `# %%`. Assertions check each step.

# %%
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from digits import DigitsResNet, load_digits_tensors, top1, train

import jit_passes


def sqnr(reference: torch.Tensor, actual: torch.Tensor) -> float:
    """Signal to quantization noise ratio in dB: 20 dB is an error of 10 %, 40 dB one of 1 %."""
    noise = (reference - actual).square().sum()
    return float(10 * torch.log10(reference.square().sum() / noise))


def operators(module: torch.jit.ScriptModule) -> Counter[str]:
    """How often each operator occurs in a module's graph, submodules included."""
    return Counter(re.findall(r" = (\w+::\w+)", str(module.inlined_graph)))


# %% [markdown]
# ## 1. A network worth quantizing
#
# `digits.py` has the data (1797 scanned digits from scikit-learn) and the network: six residual
# blocks of convolution, batch normalization, in-place ReLU. The network trains in seconds.

# %%
data = load_digits_tensors()
torch.manual_seed(0)
model = train(DigitsResNet(width=8), data, epochs=6)
float_top1 = top1(model, data.test_x, data.test_y)
print(f"float32: {float_top1:.2f} % of {len(data.test_y)} held-out digits are right")
assert float_top1 > 97.5

# %% [markdown]
# ## 2. TorchScript
#
# `torch.jit.script` compiles the module into a graph of operators, together with the weights.
# jit_passes works on this graph. The graph contains no Python, so the module's source is not
# needed. A traced module, or a `.pt` file loaded with `torch.jit.load`, works too.
#
# The module must be in eval mode (`train` left it so): in training mode, batch normalization and
# dropout compute something else than in use.

# %%
scripted = torch.jit.script(model)
for name, count in sorted(operators(scripted).items()):
    if name.startswith("aten::"):
        print(f"{count:4d} x {name}")
assert operators(scripted)["aten::batch_norm"] > 0

# %% [markdown]
# ## 3. Scale and zero point
#
# An 8-bit integer has 256 values. To stand for real numbers it needs a ruler: the *scale* is the
# distance between two marks, and the *zero point* is the integer whose mark lies at 0.0:
#
#     real = scale * (integer - zero_point)
#
# Both follow from a range of values. The range is spread over the 256 marks, and the zero point is
# rounded to an integer so that 0.0 is represented exactly: padding and ReLU produce many zeros.

# %%
values = data.train_x[0]
low, high = min(values.min().item(), 0.0), max(values.max().item(), 0.0)
scale = (high - low) / 255
zero_point = round(-low / scale)
integers = (values / scale).round().add(zero_point).clamp(0, 255).to(torch.uint8)
restored = scale * (integers.float() - zero_point)
print(f"values in [{low:.3f}, {high:.3f}]: scale {scale:.5f}, zero point {zero_point}")
print("float ", values[0, 5, 4:9].tolist())
print("int   ", integers[0, 5, 4:9].tolist())
print("back  ", restored[0, 5, 4:9].tolist())
# Rounding to the nearest mark is off by half a step at most; rounding the zero point adds as much
# again at the ends of the range. (1.001: the division above rounds, too.)
assert (restored - values).abs().max() <= scale * 1.001
assert len(integers.unique()) > 16

# %% [markdown]
# If the range is too narrow, values beyond it are clipped; if it is too wide, the marks lie far
# apart. Weights are known, so their ranges are measured, one for every output channel. Values
# *between* the layers depend on the input, so they must be observed.

# %% [markdown]
# ## 4. Prepare: observers go in
#
# `prepare` returns a copy of the module. In the copy, batch normalization is folded into the
# weights of the convolution before it, and an *observer* stands on every value that will become
# int8. An observer computes nothing; it records the range of the values. Your module does not
# change, here or below. The target `stock` is PyTorch's own int8 operators, whose files load with
# torch alone. The default is the fastest target for your processor, whose files may need
# jit_passes.

# %%
prepared = jit_passes.prepare(scripted, target="stock")
images = data.test_x[:64]
with torch.no_grad():
    expected = scripted(images)
    observed = prepared(images)
print(sorted(operators(prepared)))
assert operators(prepared)["aten::batch_norm"] == 0
# Folding moves a multiplication from one operator into another: equal up to float rounding.
torch.testing.assert_close(observed, expected, rtol=1e-3, atol=1e-3)

# %% [markdown]
# ## 5. Calibrate: the observers watch
#
# *Calibration* runs the prepared module on typical inputs, a few hundred. No labels are needed,
# because calibration only finds ranges. Take the inputs from the training set, and preprocess them
# as in use: pictures with the wrong brightness give the wrong range.
#
# Above, the prepared module has already seen 64 images of the test set. To keep the test honest,
# start over with a new copy.

# %%
prepared = jit_passes.prepare(scripted, target="stock")
calibration_data = data.train_x[:512].split(64)
jit_passes.calibrate(prepared, calibration_data)

# %% [markdown]
# ## 6. Convert: the reference model
#
# `convert` replaces each observer by a *quantize* to 8 bits, with the scale and zero point that
# follow from the range, and a *dequantize* back to float. This **reference model** computes the
# int8 model's results, with all of its rounding and clipping, but its convolutions and sums run in
# float, in PyTorch's ordinary operators. The reference model is not faster. Its use is to separate
# two causes of a loss of accuracy: quantization itself shows here, a backend's kernels do not.

# %%
reference = jit_passes.convert(prepared)
for name, count in sorted(operators(reference).items()):
    if not name.startswith("prim::"):
        print(f"{count:4d} x {name}")
reference_top1 = top1(reference, data.test_x, data.test_y)
print(f"reference: {reference_top1:.2f} %")
assert any("dequantize" in name for name in operators(reference))
assert operators(reference)["aten::conv2d"] > 0
assert reference_top1 >= float_top1 - 0.5

# %% [markdown]
# ## 7. Lower: int8 kernels
#
# `lower` converts the reference model for a backend. The target `stock` uses the operators of
# torch: one `quantized::conv2d` replaces *dequantize, convolution, ReLU, quantize*. This operator
# takes 8-bit integers, adds in 32 bits and returns 8 bits. The ReLU costs nothing: its range begins
# at 0, and the kernel clips to the range anyway. The integer weights are packed for the kernel.
# Only the outer quantize and dequantize steps are left: at the input, at the result, and around the
# global average pool in front of the classifier. The pool is computed in float because the average
# of many values needs finer steps than its operand has.

# %%
lowered = jit_passes.lower(reference, target="stock")
for name, count in sorted(operators(lowered).items()):
    if not name.startswith("prim::"):
        print(f"{count:4d} x {name}")
assert operators(lowered)["aten::conv2d"] == 0
assert sum(n for name, n in operators(lowered).items() if "quantized::conv2d" in name) == 15
assert operators(lowered)["aten::quantize_per_tensor"] == 2

# %% [markdown]
# The reference and the lowered model agree up to single steps (a kernel may round a tie
# differently), and both differ from float by the noise of 8 bits.

# %%
with torch.no_grad():
    from_reference, from_lowered = reference(images), lowered(images)
print(f"lowered against reference: {sqnr(from_reference, from_lowered):.1f} dB")
print(f"lowered against float:     {sqnr(expected, from_lowered):.1f} dB")
assert sqnr(from_reference, from_lowered) > 25
assert sqnr(expected, from_lowered) > 20

# %% [markdown]
# ## 8. Coverage: what is int8, and why is the rest not
#
# Operators without an int8 form in the target stay float, with a dequantize before them and a
# quantize behind. `coverage` lists every operator with weights, its line of source, and the reason
# if it stayed float.

# %%
coverage = jit_passes.coverage(lowered)
print(coverage)
left_float = [row for row in coverage if row.dtype == "float"]
print("left float:", [(row.name, row.reason) for row in left_float] or "nothing")
assert all(row.reason for row in left_float)
assert sum(row.dtype == "int8" and row.kind == "conv2d" for row in coverage) >= 13

# %% [markdown]
# ## 9. All stages in one call
#
# `quantize_script` does all of the above: prepare, calibrate, convert, lower. Between calibrate and
# convert it also rounds weights by the inputs of their layers and corrects biases, where that
# helps.
# Without these two steps the model is equal to ours.

# %%
quantized = jit_passes.quantize_script(
    scripted, calibration_data, target="stock", weight_rounding=None, bias_correction=None
)
with torch.no_grad():
    assert torch.equal(quantized(images), from_lowered)
    # `scripted` still is the float module that it was.
    assert torch.equal(scripted(images), expected)

# %% [markdown]
# ## 10. Save, and load without jit_passes
#
# The result is an ordinary ScriptModule. Its file holds the packed 8-bit weights, and torch alone
# loads it, in Python or in C++.

# %%
LOAD = """
import sys, torch
module, images = torch.jit.load(sys.argv[1]), torch.load(sys.argv[2])
torch.save(module(images), sys.argv[3])
assert "jit_passes" not in sys.modules
"""

with tempfile.TemporaryDirectory() as folder:
    float_file, int8_file, x_file, y_file = (
        str(Path(folder) / name) for name in ("float.pt", "int8.pt", "x.pt", "y.pt")
    )
    torch.jit.save(scripted, float_file)
    torch.jit.save(quantized, int8_file)
    torch.save(data.test_x, x_file)
    subprocess.run([sys.executable, "-c", LOAD, int8_file, x_file, y_file], check=True)
    logits = torch.load(y_file)
    sizes = [Path(name).stat().st_size / 1024 for name in (float_file, int8_file)]

int8_top1 = 100.0 * (logits.argmax(1) == data.test_y).double().mean().item()
print(f"file:  {sizes[0]:.0f} KiB float, {sizes[1]:.0f} KiB int8")
print(f"top-1: {float_top1:.2f} % float, {int8_top1:.2f} % int8")
assert sizes[1] < sizes[0] / 2
assert int8_top1 >= float_top1 - 0.5
