# %% [markdown]
# # Splitting convolutions, and quantizing each slot
#
# An accelerator computes a convolution in several steps. It multiplies and adds small integers,
# rescales the sum, adds a bias, and rescales again. Each of these places has its own width of
# numbers. To train a model for this chip, quantize each place separately, in a model whose
# gradients still flow. This text splits a convolution, quantizes its five slots, checks one of them
# by hand in double precision, and trains. (Tutorial 01 quantizes a finished model.)
#
# Run this file whole (`python tutorials/06_split_convolution.py`, about half a minute), or cell by
# cell in an editor that supports `# %%`. Assertions check the claims.

# %%
import copy
import tempfile
import warnings
from pathlib import Path

import torch
from digits import DigitsResNet, load_digits_tensors, top1, train
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesError, Pipeline, format_graph, quantize_slots, run_pass
from jit_passes.observers import MovingAverageMinMax
from jit_passes.quantizer import TensorOptions
from jit_passes.targets import FixedPoint, Stock

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. Two operators instead of one
#
# The pass `split_conv_bias` turns every convolution into
#
# - `jit_passes::correlation`, the sum of products without the bias, and
# - `jit_passes::add_bias`, one number for each channel,
#
# so that the value between them can be inspected and quantized. The pass works in one to three
# dimensions, and for transposed convolutions, too. (A bias may be None; `_unwrap_optional` states
# that this one is not.) `verify` compares outputs and gradients with the original module.


# %%
class Convolves(nn.Module):
    """One convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


torch.manual_seed(0)
one = Pipeline("inline", ()).run(torch.jit.script(Convolves())).module
x = torch.randn(2, 32, 8, 8)
split = run_pass("split_conv_bias", one, verify=(x,))
print(format_graph(one))
print(format_graph(split))
assert "aten::conv2d" in format_graph(one) and "aten::conv2d" not in format_graph(split)
assert "conv:correlation = jit_passes::correlation(x, conv.weight, [1, 1]" in format_graph(split)
assert "= jit_passes::add_bias(conv:correlation" in format_graph(split)

# %% [markdown]
# Two lines show it. The parameters are the original ones, and so are the gradients.

# %%
weight, bias = one.conv.weight, one.conv.bias
by_hand = F.conv2d(x, weight, padding=1) + bias.reshape(1, 4, 1, 1)
torch.testing.assert_close(split(x), by_hand)
assert split.conv.weight is weight and split.conv.bias is bias
wanted = torch.autograd.grad(one(x).square().sum(), [weight, bias])
found = torch.autograd.grad(split(x).square().sum(), [weight, bias])
torch.testing.assert_close(found, wanted)

# %% [markdown]
# `merge_conv_bias` undoes the split.

# %%
merged = run_pass("merge_conv_bias", split, verify=(x,))
assert format_graph(merged) == format_graph(one)
assert torch.equal(merged(x), one(x))

# %% [markdown]
# ## 2. Five slots
#
# A split convolution has five places for a quantization:
#
#     y = q_sum(q_correlation(sum of q_weight(w) * q_input(x)) + q_bias(b))
#
# `quantize_slots` splits, and inserts *fake quantization* in the given slots: rounding to the grid
# of an integer, and back, in float. Its gradient is 1 where nothing was clipped and 0 elsewhere, so
# the model trains. A slot is a number of bits, or `TensorOptions`, with the words of
# configurations:
#
# | option | meaning |
# | --- | --- |
# | `bits`, `signed` | the integers: 8 signed bits are -128 to 127 |
# | `scheme` | `symmetric`, `affine` (with a zero point), `power_of_two` |
# | `channelwise` | whether there is a scale for each channel |
# | `rounding` | `half_even`, `half_away`, `half_up`, `floor`, `ceil`, `toward_zero` |
# | `calibration` | `MovingAverageMinMax(0.1)`: how much a batch counts in the range |
# | `scale`, `range` | if known beforehand |
#
# Defaults are 8 signed bits with a symmetric scale.

# %%
FAKE_QUANTIZE = "= jit_passes::fake_quantize_moving_average("
quantized = quantize_slots(
    one,
    input=TensorOptions(scheme="affine"),
    weight=TensorOptions(channelwise=True, rounding="half_away"),
    bias=16,
)
print(format_graph(quantized))
assert format_graph(quantized).count(FAKE_QUANTIZE) == 3
try:
    TensorOptions(rounding="stochastic")
except ValueError as error:
    print(error)
else:
    raise AssertionError("no rounding has this name")

# %% [markdown]
# Ranges are buffers beside the parameters. Weights and biases are measured whenever they are used.
# Activations have a moving average over the training batches, which is fixed in eval mode. Before
# the first batch there is none, and the model raises an error.

# %%
print({name: tuple(buffer.shape) for name, buffer in quantized.named_buffers()})
quantized.eval()
try:
    quantized(x)
except RuntimeError as error:
    message = str(error).strip().splitlines()[-1]
    print(message)
assert "run a batch in training mode first" in message
quantized.train()(x)
assert quantized.conv.input_range.tolist() == [x.min().item(), x.max().item()]
quantized.eval()(x / 10)
assert quantized.conv.input_range.tolist() == [x.min().item(), x.max().item()]

# %% [markdown]
# ## 3. The recipe "graffitist"
#
# A recipe names all five at once. This one, after the training tool Graffitist, is for chips that
# rescale by shifting:
#
#     q8(q16(sum of q8(w) * q8(x)) + q16(b))
#
# All are signed, and each scale is a power of two: the smallest that clips nothing. Slots beside
# the recipe override it.

# %%
recipe = quantize_slots(one, recipe="graffitist").train()
output = recipe(x)
ranges = {name: buffer for name, buffer in recipe.named_buffers() if name.endswith("_range")}
print({name: [round(v, 3) for v in buffer.tolist()] for name, buffer in ranges.items()})
assert len(ranges) == 5

# %% [markdown]
# ## 4. One convolution by hand
#
# Arithmetic on double-precision numbers can check the claim. The scale follows from the range: the
# power of two for which the largest number still fits. The integer codes follow from the scale.


# %%
def scale_of(bounds: Tensor, bits: int) -> Tensor:
    """The smallest power of two with which nothing within the bounds is clipped."""
    low, high = bounds.double()
    steps = 2.0 ** (bits - 1)
    return 2.0 ** torch.ceil(torch.log2(torch.maximum(high / (steps - 1), low / -steps)))


def codes(value: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The integers; halves are rounded to even."""
    steps = 2 ** (bits - 1)
    return torch.round(value.double() / scale).clamp(-steps, steps - 1)


scales = {
    slot: scale_of(getattr(recipe.conv, f"{slot}_range"), bits)
    for slot, bits in (("input", 8), ("weight", 8), ("correlation", 16), ("bias", 16), ("sum", 8))
}
print({slot: f"2^{int(torch.log2(scale))}" for slot, scale in scales.items()})
assert all(float(torch.log2(scale)).is_integer() for scale in scales.values())

x_codes = codes(x, scales["input"], 8)
w_codes = codes(weight.detach(), scales["weight"], 8)
b_codes = codes(bias.detach(), scales["bias"], 16)
products = F.conv2d(x_codes, w_codes, padding=1)  # a sum of integers, exact in double
correlation = codes(products * scales["input"] * scales["weight"], scales["correlation"], 16)
with_bias = correlation * scales["correlation"] + (b_codes * scales["bias"]).reshape(1, 4, 1, 1)
expected = codes(with_bias, scales["sum"], 8) * scales["sum"]
assert torch.equal(output.double(), expected)
print("equal to the bit; codes of the result:", codes(output, scales["sum"], 8)[0, 0, 0].tolist())

# %% [markdown]
# Since all scales are powers of two, no multiplication is left between the steps: rescaling the sum
# of products is a shift by the difference of the exponents.

# %%
shift = int(torch.log2(scales["correlation"] / (scales["input"] * scales["weight"])))
print("bits by which the sums are shifted right:", shift)
assert shift > 0
assert torch.equal(torch.round(products / 2**shift).clamp(-(2**15), 2**15 - 1), correlation)

# %% [markdown]
# ## 5. Training a network with it
#
# The residual network of tutorial 01. Its 15 convolutions have no bias (a batch normalization
# follows), so each has four slots. The linear at the end has all five. The quantized model has the
# parameters of the float model, the very same tensors: training one trains the other. To compare
# several models, copy the float model first.

# %%
data = load_digits_tensors()
torch.manual_seed(0)
model = train(DigitsResNet(width=8), data, epochs=6)
float_top1 = top1(model, data.test_x, data.test_y)


def fresh() -> torch.jit.ScriptModule:
    """A scripted copy of the float model."""
    return torch.jit.script(copy.deepcopy(model))


tuned = quantize_slots(fresh(), recipe="graffitist")
print("fake quantizations:", format_graph(tuned).count(FAKE_QUANTIZE))
train(tuned, data, epochs=1, peak_rate=1e-3)
tuned_top1 = top1(tuned, data.test_x, data.test_y)
print(f"top-1: {float_top1:.2f} % float, {tuned_top1:.2f} % graffitist, fine-tuned")
assert tuned_top1 > float_top1 - 1
assert format_graph(tuned).count("jit_passes::correlation") == 15 + 1
assert format_graph(tuned).count(FAKE_QUANTIZE) == 15 * 4 + 5

# %% [markdown]
# ## 6. The price of fewer bits
#
# Here only weights and inputs are quantized, with fewer and fewer bits. The first column is after
# four batches in training mode, which set the ranges (and count in the statistics of batch
# normalization, as usual); no weight has changed. The second is after one epoch of fine-tuning. A
# single image is 0.17 points, so small differences mean nothing.

# %%
results = {}
for bits in (8, 4, 3, 2):
    few = quantize_slots(
        fresh(),
        input=TensorOptions(
            bits=bits, signed=False, scheme="affine", calibration=MovingAverageMinMax(0.1)
        ),
        weight=TensorOptions(bits=bits, channelwise=True),
    )
    few.train()
    with torch.no_grad():
        for batch in data.train_x[:256].split(64):
            few(batch)
    before = top1(few.eval(), data.test_x, data.test_y)
    after = top1(train(few, data, epochs=1, peak_rate=1e-3), data.test_x, data.test_y)
    results[bits] = (before, after)
    print(f"{bits} bits: {before:6.2f} %, fine-tuned {after:6.2f} %")
assert results[8][0] > float_top1 - 1
assert results[4][1] > float_top1 - 2 and results[3][1] > float_top1 - 3
assert results[2][0] < float_top1 - 20  # two bits are four values
assert results[2][1] > results[2][0] + 10

# %% [markdown]
# ## 7. Some layers only
#
# `where` takes patterns of module paths. Usually the first layers are excepted: here only the last
# stage has two bits.

# %%
unsigned = TensorOptions(bits=2, signed=False)
last_stage = quantize_slots(fresh(), input=unsigned, weight=2, where="layer3.*")
buffers = [name for name, _ in last_stage.named_buffers() if name.endswith("_range")]
print(buffers[:4], "...")
assert buffers and all(name.startswith("layer3.") for name in buffers)
try:
    quantize_slots(fresh(), weight=2, where="layer4.*")
except JitPassesError as error:
    print(error)
else:
    raise AssertionError("no layer has this name")

# %% [markdown]
# ## 8. Saving in the middle of training
#
# Ranges are buffers, and the fake quantization is part of the graph, so `torch.jit.save` keeps the
# whole model; save the optimizer's state beside it, as usual. Before loading, import jit_passes:
# the file names its operators. Training continues as if it had not stopped.


# %%
def steps(
    module: torch.jit.ScriptModule, optimizer: torch.optim.Optimizer, first: int, last: int
) -> None:
    """Train on some batches."""
    module.train()
    for i in range(first, last):
        batch = slice(64 * i, 64 * i + 64)
        loss = F.cross_entropy(module(data.train_x[batch]), data.train_y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adam(module: torch.jit.ScriptModule) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=1e-3)


through = quantize_slots(fresh(), recipe="graffitist")
through_optimizer = adam(through)
steps(through, through_optimizer, 0, 4)
with tempfile.TemporaryDirectory() as folder:
    torch.jit.save(through, str(Path(folder) / "model.pt"))
    torch.save(through_optimizer.state_dict(), Path(folder) / "optimizer.pt")
    resumed = torch.jit.load(str(Path(folder) / "model.pt"))
    resumed_optimizer = adam(resumed)
    resumed_optimizer.load_state_dict(torch.load(Path(folder) / "optimizer.pt"))
steps(through, through_optimizer, 4, 8)
steps(resumed, resumed_optimizer, 4, 8)
state, resumed_state = through.state_dict(), resumed.state_dict()
assert list(state) == list(resumed_state)
assert all(torch.equal(state[name], resumed_state[name]) for name in state)
print(f"{len(state)} tensors are equal to the bit after 4 + 4 steps, stopped or not")

# %% [markdown]
# ## 9. To integers
#
# `convert` makes the reference model of the trained one: quantize and dequantize at each slot, with
# integers as weights and biases. The reference model computes the results of the trained model in
# eval mode, to the bit, and `parity` shows it value by value. A hardware compiler reads it node by
# node: the 16-bit sum of products of section 4 is there, between two quantizations.

# %%
reference = jit_passes.convert(tuned)
test_x = data.test_x[:64]
assert torch.equal(reference(test_x), tuned.eval()(test_x))
report = jit_passes.parity(tuned, reference, [test_x])
print(report["conv1:correlation"])
print(report.summary)
assert report.equal
print(jit_passes.coverage(reference))
shown = {encoding.name: encoding for encoding in jit_passes.encodings_of(reference)}
assert shown["conv1:correlation"].bits == 16 and shown["conv1.weight"].bits == 8

# %% [markdown]
# The scales may train too, as in Graffitist: `fake_quantizer="tqt"` gives each slot a threshold
# that is a parameter.

# %%
thresholds = quantize_slots(fresh(), recipe="graffitist", fake_quantizer="tqt")
names = [name for name, _ in jit_passes.named_quantization_parameters(thresholds)]
print(len(names), names[:4], "...")
assert "conv1.correlation_log2_threshold" in names

# %% [markdown]
# PyTorch's own operators add the bias before they round, so they have no place for a correlation.
# With the target `stock`, a layer is quantized if input, weight and sum have supported formats, and
# becomes one operator again. Activations have 7 bits there on processors without VNNI, where
# PyTorch's kernels add pairs of products in 16 bits.

# %%
bits = 7 if Stock().reduce_range else 8
for_stock = quantize_slots(fresh(), input=bits, weight=8, sum=bits, target="stock")
train(for_stock, data, epochs=1, peak_rate=1e-3)
lowered = jit_passes.lower(jit_passes.convert(for_stock))
assert format_graph(lowered).count("= quantized::conv2d(") == 15
assert format_graph(lowered).count("= quantized::linear(") == 1
assert "jit_passes::" not in format_graph(lowered)
lowered_top1 = top1(lowered, data.test_x, data.test_y)
print(f"top-1 on PyTorch's operators: {lowered_top1:.2f} %")
assert lowered_top1 > float_top1 - 1.5

# %% [markdown]
# `FixedPoint` computes with integers alone, from the input to the last code. The sums of the
# residual blocks and the mean are quantized too. Each batch norm becomes part of the convolution in
# front of it: the slot "weight" quantizes the weight times its factor, and "bias" its shift. Its
# statistics are fixed, so training takes longer to settle. With powers of two, model, reference and
# integers are equal.

# %%
for_integers = quantize_slots(fresh(), recipe="graffitist", target=FixedPoint("shift"))
train(for_integers, data, epochs=3, peak_rate=1e-3)
integers = jit_passes.lower(jit_passes.convert(for_integers.eval()))
assert torch.equal(integers(test_x), for_integers(test_x))
integers_top1 = top1(integers, data.test_x, data.test_y)
print(f"top-1 on integers alone: {integers_top1:.2f} %")
assert integers_top1 > float_top1 - 1.5

# %% [markdown]
# The recipe does not work for `stock`: an error says so before training.

# %%
warnings.filterwarnings("ignore", category=jit_passes.JitPassesWarning)
try:
    quantize_slots(fresh(), recipe="graffitist", target="stock")
except JitPassesError as error:
    print(error)
else:
    raise AssertionError("a correlation of its own has no place there")

# %% [markdown]
# Next: [07_cpp_pass_package.py](07_cpp_pass_package.py) builds a pass and an operator in C++.
