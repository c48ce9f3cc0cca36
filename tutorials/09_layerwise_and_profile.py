# %% [markdown]
# # Layer by layer, and without data
#
# Two files say how a model is quantized. A *profile* holds the ranges of its values, made once by
# running the float model on data, for every later quantization of that model. A *configuration*
# holds options for layers. This text makes both for a small residual network, and quantizes it in a
# dozen ways without the data.
#
# Tutorial 01 quantizes with data, all layers alike; tutorial 08 writes a quantizer from scratch.
# The reference of configurations is [docs/configuration.md](../docs/configuration.md).
#
# Run this file whole (`python tutorials/09_layerwise_and_profile.py`, about half a minute), or cell
# by cell in an editor that supports `# %%`. Assertions check the claims.

# %%
import tempfile
import warnings
from pathlib import Path

import torch
from digits import DigitsResNet, load_digits_tensors, top1, train
from torch import Tensor

import jit_passes
from jit_passes import GraphView, JitPassesError, Profile, format_graph
from jit_passes.observers import observer_of
from jit_passes.quantizer import BackendQuantizer, LayerOptions, TensorOptions, from_nni
from jit_passes.targets import PowerOfTwoQuantizer, Reference

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. The float network
#
# The network of tutorial 01.

# %%
data = load_digits_tensors()
torch.manual_seed(0)
network = train(DigitsResNet(width=8), data, epochs=6)
model = torch.jit.script(network)
float_top1 = top1(model, data.test_x, data.test_y)
print(f"float: {float_top1:.2f} % of {len(data.test_y)} held-out digits are right")
assert float_top1 > 97

# %% [markdown]
# ## 2. A profile
#
# `profile` runs the model on batches and records the range and a histogram for each of its tensors.
# Batch normalizations are folded first, as in quantization, and the names are from the folded
# graph. The profile suits any target, any quantizer and any number of bits.

# %%
batches = data.train_x[:256].split(32)
profile = jit_passes.profile(model, batches)
print("\n".join(str(profile).splitlines()[:8]), "\n...")
assert profile.values["relu:relu"].low == 0
assert profile.values["relu:relu"].count == 256 * 8 * 16 * 16  # images, channels, pixels

# %% [markdown]
# Its file is YAML. An entry has the smallest and largest value, the lowest and highest number of
# dimensions, and the histogram, whose bins have a power of two as width: two whole numbers and
# counts. You may edit `min` and `max`. If a value has fewer than 1024 numbers, its range gets
# headroom beyond the edited ends, too: `range: [low, high]` in a configuration sets an exact range.

# %%
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
profile.save(folder / "digits.yaml")
for line in (folder / "digits.yaml").read_text().splitlines()[:20]:
    print(line[:100])
assert Profile.load(folder / "digits.yaml") == profile

# %% [markdown]
# Data may lie on several machines. Profiles of parts add up to exactly the profile of one run over
# everything, for any split and any order.

# %%
shards = [jit_passes.profile(model, batches[:3]), jit_passes.profile(model, batches[3:])]
assert Profile.merge(*shards) == profile
assert shards[1] + shards[0] == profile
assert shards[0] != profile

# %% [markdown]
# ## 3. Quantizing without data
#
# `quantize_script` takes the profile, or the path of its file, in place of data. The result equals
# calibration with the data, to the bit, except for the record of where the ranges came from, and
# for two steps that need data: rounding of weights and correction of biases. A profile of another
# model is refused.

# %%
from_data = jit_passes.quantize_script(model, batches, weight_rounding=None, bias_correction=None)
from_profile = jit_passes.quantize_script(model, profile=folder / "digits.yaml")
assert torch.equal(from_profile(data.test_x), from_data(data.test_x))
assert jit_passes.provenance(from_profile)["profile"]
int8_top1 = top1(from_profile, data.test_x, data.test_y)
print(f"int8: {int8_top1:.2f} %, from data or from the profile")
assert int8_top1 > float_top1 - 1
other = torch.jit.script(DigitsResNet(width=16).eval())
try:
    jit_passes.quantize_script(other, profile=profile)
except JitPassesError as error:
    print(error)
    assert "the profile is of another graph" in str(error)
else:
    raise AssertionError("it is another model's")

# %% [markdown]
# ## 4. Layer by layer
#
# A configuration has options for all operators, and rules for some layers. Later rules win, option
# by option. This one saves weights: 6 bits in general, 8 in the first and last layer, where every
# error counts, and 4 in one of the larger convolutions. A single layer stays in float. Ranges of
# activations have the least squared error.
#
# Modules are selected by their paths, which may be globs. Names need no quotes.

# %%
LAYERS = """\
version: 1
global:
  input: {calibration: mean_squared_error}
  output: {calibration: mean_squared_error}
  weight: {bits: 6}
rules:
  - module: [conv1, fc]
    weight: {bits: 8}
  - module: layer3.0.conv2
    weight: {bits: 4}
  - module: layer2.1.conv1
    keep_float: true
"""
file = folder / "layers.yaml"
file.write_text(LAYERS)

# %% [markdown]
# The target `reference` gives the model in plain, readable operators.


# %%
def largest_codes(module: torch.jit.ScriptModule) -> dict[str, int]:
    """By module, the largest weight as an integer; 0 where the weight is in float."""
    found = {}
    for node in GraphView.of(module).nodes:
        if node.kind in ("aten::conv2d", "aten::linear"):
            maker = node.inputs[1].producer
            quantized = maker.kind.startswith("jit_passes::dequantize")
            found[node.module] = int(maker.inputs[0].constant.abs().max()) if quantized else 0
    return found


layered = jit_passes.quantize_script(model, profile=profile, target="reference", config=file)
codes = largest_codes(layered)
print(codes)
assert codes["conv1"] == codes["fc"] == 127
assert codes["layer3.0.conv2"] == 7 and codes["layer2.1.conv1"] == 0
assert sorted(codes.values()).count(31) == len(codes) - 4
layered_top1 = top1(layered, data.test_x, data.test_y)
print(f"layers.yaml: {layered_top1:.2f} %")
assert layered_top1 > float_top1 - 2

# %% [markdown]
# PyTorch's own kernels take weights of fewer bits too (they are stored as int8), so the file works
# for the target `stock` too. `strict` makes it an error if an operator with weights or a matrix
# product stays in float, unless the file asks for it.

# %%
stock = jit_passes.quantize_script(model, profile=profile, target="stock", config=file, strict=True)
print(jit_passes.coverage(stock))
assert [row.name for row in jit_passes.coverage(stock).float] == ["layer2.1.conv1:conv2d"]
assert top1(stock, data.test_x, data.test_y) > float_top1 - 2

# %% [markdown]
# ## 5. Misspelt
#
# Unknown keys, and names that match no layer, are errors: a silently ignored option would show only
# in the accuracy. The message has file, line and column, and the nearest name.


# %%
def refusal(right: str, wrong: str) -> str:
    """The message for the file with something replaced in it."""
    file.write_text(LAYERS.replace(right, wrong, 1))
    try:
        jit_passes.quantize_script(model, profile=profile, config=file)
    except JitPassesError as error:
        message = str(error).replace(f"{folder}/", "")
        print(message, "\n")
        return message
    raise AssertionError("this was to be refused")


message = refusal("weight: {bits: 6}", "weight: {bit: 6}")
assert "layers.yaml:5:12: " in message and "did you mean 'bits'" in message
message = refusal("layer3.0.conv2", "layer3.0.conv3")
assert "layers.yaml:9:5: module 'layer3.0.conv3' matches nothing" in message
assert "'layer3.0.conv2'" in message
refusal("mean_squared_error", "mean_square_error")
file.write_text(LAYERS)

# %% [markdown]
# ## 6. The same in Python
#
# The target's quantizer takes the options of a file in Python, in the same order, and gives the
# same graph with the same numbers. Only the report differs: it says where the float layer was asked
# for.

# %%
activation = TensorOptions(calibration=observer_of("mean_squared_error"))
quantizer = BackendQuantizer(Reference())
quantizer.set_global(
    LayerOptions(input=activation, output=activation, weight=TensorOptions(bits=6))
)
for name in ("conv1", "fc"):
    quantizer.set_module_name(name, LayerOptions(weight=TensorOptions(bits=8)))
quantizer.set_module_name("layer3.0.conv2", LayerOptions(weight=TensorOptions(bits=4)))
quantizer.skip(module="layer2.1.conv1")
in_python = jit_passes.quantize_script(model, profile=profile, quantizer=quantizer)
assert format_graph(in_python) == format_graph(layered)
with torch.no_grad():
    assert torch.equal(in_python(data.test_x), layered(data.test_x))
print(jit_passes.coverage(layered).float[0].reason.replace(f"{folder}/", ""))
print(jit_passes.coverage(in_python).float[0].reason)

# %% [markdown]
# ## 7. Another calibration, no second look
#
# Each of these methods reads ranges from a histogram, and the histograms are in the profile. At 8
# bits they differ little. At 4 bits there are only 16 codes, and it matters which values are
# clipped. (Weights have 8 bits here, activations the bits of the column.)


# %%
def sqnr(expected: Tensor, actual: Tensor) -> float:
    """Signal to quantization noise ratio in dB: 20 dB is an error of 10 %, 40 dB one of 1 %."""
    noise = (expected - actual).square().sum()
    return float(10 * torch.log10(expected.square().sum() / noise))


METHODS = ("min_max", "histogram", "mean_squared_error", "percentile", "entropy", "klj")
with torch.no_grad():
    expected = model(data.test_x)
found = {}
print("method               8 bits            4 bits")
for method in METHODS:
    for bits in (8, 4):
        activation = {"bits": bits, "calibration": method}
        options = {"version": 1, "global": {"input": activation, "output": activation}}
        few = jit_passes.quantize_script(model, profile=profile, target="reference", config=options)
        with torch.no_grad():
            noise = sqnr(expected, few(data.test_x))
        found[method, bits] = top1(few, data.test_x, data.test_y), noise
    print(f"{method:18}", *("{:6.2f} % {:4.1f} dB ".format(*found[method, b]) for b in (8, 4)))
assert all(found[method, 8][0] > float_top1 - 1 for method in METHODS)
assert all(found[method, 8][1] > 30 for method in METHODS)
assert all(found[method, 4][0] > float_top1 - 5 for method in METHODS)
best = max(METHODS, key=lambda method: found[method, 4][1])
assert found[best, 4][1] > found["min_max", 4][1]

# %% [markdown]
# One image is 0.17 points, so 8 bits cost nothing visible. At 4 bits, clipping nothing (`min_max`)
# has more noise than the best of the others. `histogram` and `mean_squared_error` search for the
# range with the least squared error of each value, in two ways. The error of a value is not the
# error of the model's output. The numbers depend on the trained network, which differs a little
# from processor to processor. So try the methods on your model; each takes a second.


# %% [markdown]
# ## 8. Scales that are powers of two
#
# An FPGA rescales by shifting. `PowerOfTwoQuantizer` is for this hardware: each scale is a power of
# two, zero points are 0, and operands of a sum have one scale. The profile fits without a change.

# %%
shifting = jit_passes.quantize_script(model, profile=profile, quantizer=PowerOfTwoQuantizer())
scales = []
for node in GraphView.of(shifting).nodes:
    if node.kind == "jit_passes::dequantize":
        scales.append(node.inputs[1].constant)
        assert node.inputs[2].constant == 0
    if node.kind == "aten::add":
        left, right = (value.producer for value in node.inputs[:2])
        assert left.inputs[1].constant == right.inputs[1].constant
exponents = torch.tensor(scales, dtype=torch.float64).log2()
print("exponents of the scales:", sorted({int(e) for e in exponents}))
assert len(scales) > 40 and torch.equal(exponents, exponents.round())
print(f"powers of two: {top1(shifting, data.test_x, data.test_y):.2f} %")
assert top1(shifting, data.test_x, data.test_y) > float_top1 - 2

# %% [markdown]
# ## 9. A list for NNI
#
# A configuration for NNI's quantizers can be read too. There, only listed layers are quantized.

# %%
CONFIG_LIST = [
    {"op_types": ["Conv2d"], "quant_types": ["input", "weight"], "quant_bits": 8},
    {"op_names": ["layer3.1.conv2"], "quant_types": ["weight"], "quant_bits": {"weight": 4}},
    {"op_names": ["conv1"], "exclude": True},
]
from_list = jit_passes.quantize_script(
    model, profile=profile, target="reference", config=from_nni(CONFIG_LIST)
)
codes = largest_codes(from_list)
print(codes)
assert codes["fc"] == codes["conv1"] == 0 and codes["layer3.1.conv2"] == 7
assert sorted(codes.values()).count(127) == len(codes) - 3
assert top1(from_list, data.test_x, data.test_y) > float_top1 - 1
temporary.cleanup()
