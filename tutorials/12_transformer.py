# %% [markdown]
# # A transformer to int8
#
# Transformers lose more at 8 bits than convolutional networks, mostly for one reason: behind a
# layer norm, a few channels are 20 to 100 times larger than the rest. A single scale for all
# channels must reach the largest, and the others are left with almost no digits.
#
# This text takes a transformer from a `.pt` file to int8 in one call, then shows three ways to
# quantize, the loss of each, the operator that causes it, and the remedy.
#
# Run this file whole (`python tutorials/12_transformer.py`, about half a minute), or cell by cell
# in an editor that supports `# %%`. Assertions check the claims.

# %%
import os
import tempfile
import warnings
from pathlib import Path

import torch
from digits import load_digits_tensors, top1, train
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. A file
#
# A small vision transformer: the 16 rows of a scanned digit are its tokens.

# %%
WIDTH, HEADS = 64, 4


class Layer(nn.Module):
    """Attention and two linear layers, each behind a layer norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Reader(nn.Module):
    """Rows of pixels to the logits of ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(16, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.squeeze(1)) + self.position
        return self.head(self.norm(self.layers(x)).mean(1))


data = load_digits_tensors()
torch.manual_seed(0)
reader = train(Reader(), data, epochs=8, peak_rate=2e-3)

# %% [markdown]
# A network that trains for seconds has no large channels. Large models grow them in long training.
# This cell makes them: two channels behind each norm become 100 and 60 times larger, and the
# weights that read them as much smaller. The network computes the same result, except for rounding.

# %%
size = torch.ones(WIDTH)
size[[5, 40]] = torch.tensor([100.0, 60.0])
with torch.no_grad():
    for layer in reader.layers:
        for norm, linear in ((layer.norm1, layer.qkv), (layer.norm2, layer.up)):
            norm.weight *= size
            norm.bias *= size
            linear.weight /= size

folder = Path(tempfile.mkdtemp())
example = data.test_x[:2]
torch.jit.save(torch.jit.trace(reader.eval(), example), folder / "float.pt")
del reader

# %% [markdown]
# From here on only the file is used, no source. `batches` are a few hundred typical inputs.

# %%
model = torch.jit.load(folder / "float.pt")
batches = data.train_x[:256].split(64)
with torch.no_grad():
    expected = model(data.test_x)


def report(name: str, quantized: torch.jit.ScriptModule) -> float:
    """Print accuracy and SQNR of the logits; return the SQNR, in dB."""
    with torch.no_grad():
        noise = (quantized(data.test_x) - expected).square().sum()
    sqnr = float(10 * torch.log10(expected.square().sum() / noise))
    print(f"{name:28s} {top1(quantized, data.test_x, data.test_y):6.2f} %  {sqnr:5.1f} dB")
    return sqnr


print(f"{'float':28s} {top1(model, data.test_x, data.test_y):6.2f} %")

# %% [markdown]
# ## 2. One call
#
# `quantize_script` reads the graph, gives each operator the mode that suits it, and evens out large
# channels first. The report says which mode each operator has, and why.

# %%
auto = jit_passes.quantize_script(model, batches)
auto_sqnr = report("auto", auto)
print(jit_passes.coverage(auto))
assert {row.mode for row in jit_passes.coverage(auto).int8} == {"dynamic"}
assert auto_sqnr > 30

# %% [markdown]
# The next sections show the steps behind it.
#
# ## 3. Static, and its loss
#
# In the mode `static` one range is calibrated for each value. `smooth=None` leaves large channels
# as they are. `compare` runs both models side by side. The table has for each value the error
# inherited from earlier values, and its own. The last line names the first operator that stands
# out.

# %%
raw = {"mode": "static", "smooth": None}
static = jit_passes.quantize_script(model, batches, target="reference", **raw)
static_sqnr = report("static", static)
comparison = jit_passes.compare(model, static, batches)
print(comparison)
assert comparison.first is not None
assert comparison.first.name.endswith("qkv:linear")
assert static_sqnr < 20

# %% [markdown]
# It is the first linear behind a norm, and all others like it have the same loss. The cause is not
# its weights, which have a scale for each row, but its input: the columns of the weights are small
# where the channels of the input are large.
#
# ## 4. Smoothing
#
# `smooth` divides each channel of a norm by a factor, and multiplies the weights that read it by
# that factor. The float model does not change, and both sides can then be quantized well. By
# default `quantize_script` smooths norms whose largest channel is more than four times the median
# one.

# %%
smoothed = jit_passes.smooth(model, batches)
with torch.no_grad():
    torch.testing.assert_close(smoothed(example), model(example), rtol=1e-3, atol=1e-4)
smooth_sqnr = report("smoothed, static", jit_passes.quantize_script(smoothed, batches, **raw))
assert smooth_sqnr > static_sqnr + 15
by_itself = report("static", jit_passes.quantize_script(model, batches, mode="static"))
assert abs(by_itself - smooth_sqnr) < 3

# %% [markdown]
# ## 5. Dynamic
#
# In the mode `dynamic` inputs of linears are quantized while the model runs, each time by its own
# largest and smallest number. No data is needed. Everything between the linears stays in float.
# Large channels are harmful to a dynamic range too, so smoothing helps here as well. Gain and shift
# of a norm tell without data how large its channels are.

# %%
plain = jit_passes.quantize_script(model, mode="dynamic", smooth=None)
dynamic_sqnr = report("dynamic, not smoothed", plain)
both = jit_passes.quantize_script(model, mode="dynamic", target="stock")
both_sqnr = report("dynamic", both)
assert both_sqnr > dynamic_sqnr + 15
print(jit_passes.coverage(both))

# %% [markdown]
# Modes mix: rules say where an operator is dynamic. A rule with a module covers everything in it.

# %%
rules = [{"module": "layers.0", "mode": "dynamic"}]
config = {"version": 1, "global": {"mode": "static"}, "rules": rules}
mixed = jit_passes.quantize_script(model, batches, config=config)
report("one layer dynamic", mixed)
modes = {row.name: row.mode for row in jit_passes.coverage(mixed)}
assert modes["layers.0.up:linear"] == "dynamic"
assert modes["layers.1.up:linear"] == "static"

# %% [markdown]
# ## 6. A file again
#
# Files of `stock` load with torch alone; files of `x86` need `import jit_passes`. `coverage` says
# which one it is.

# %%
torch.jit.save(both, folder / "int8.pt")
kilobytes = [os.path.getsize(folder / name) / 1024 for name in ("float.pt", "int8.pt")]
print(f"float {kilobytes[0]:.0f} KiB, int8 {kilobytes[1]:.0f} KiB")
assert kilobytes[1] < 0.5 * kilobytes[0]

# %% [markdown]
# ## When accuracy falls
#
# 1. `compare` for the target `reference`: which operator stands out, and by how many dB?
# 2. A linear behind a layer norm: `smooth` with another strength, such as 0.7, for all norms.
# 3. One operator: `keep_float`, more bits or `mode: dynamic` for it, by a rule.
# 4. A little everywhere: another `calibration:` in a configuration, or training, as in tutorial 10.
