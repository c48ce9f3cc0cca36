# %% [markdown]
# # Less loss without training: improve
#
# Some tools between calibration and training change ranges, channels, codes of weights and biases.
# Each tool helps some networks and harms others. `improve` tries them in the order of cost, and
# keeps a tool only if the loss falls on held-back data. The result is a model and a recipe, a few
# lines of YAML that make the same model without the search.
#
# This text improves a small MobileNet with weights of 4 bits.
# [docs/accuracy.md](../docs/accuracy.md) has the reference, and figures of a network with ImageNet
# weights.
#
# Run this file whole (`python tutorials/15_improve.py`, about half a minute), or cell by cell in an
# editor that supports `# %%`. Assertions check the claims.

# %%
import tempfile
import warnings
from pathlib import Path

import torch
from digits import DigitsMobileNet, load_digits_tensors, top1, train

import jit_passes

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. The loss by calibration
#
# Weights have 4 bits and one scale for each tensor; the first and the last layer have 8. Depthwise
# convolutions suffer most: each channel has its own filter, and all share one scale.

# %%
data = load_digits_tensors()
torch.manual_seed(0)
model = torch.jit.script(train(DigitsMobileNet(width=8), data, epochs=4))
batches = data.train_x[:128].split(16)
config = {
    "version": 1,
    "global": {"weight": {"bits": 4, "channelwise": False}},
    "rules": [{"module": ["features.0", "classifier"], "weight": {"bits": 8}}],
}
how = {"target": "reference", "progress": False}
plain = jit_passes.quantize_script(model, batches, config=config, **how)
float_top1 = top1(model, data.test_x, data.test_y)
plain_top1 = top1(plain, data.test_x, data.test_y)
print(f"float {float_top1:.2f} %, calibrated {plain_top1:.2f} %")
assert plain_top1 < float_top1 - 2

# %% [markdown]
# ## 2. The search
#
# No labels are needed: the loss is the error of the outputs against the float model. Every fourth
# batch is held back. Six batches calibrate the steps, and the two others measure them. In the end
# the steps that are kept make the model of all eight.

# %%
improved = jit_passes.improve(model, batches, config=config, **how)
for row in improved.table():
    print("{:44}{:>10}{:>10}  {:16}{:>6}".format(*row))
print(improved.summary)
kept = [step.name for step in improved.steps if step.kept]
improved_top1 = top1(improved.model, data.test_x, data.test_y)
print(f"improved {improved_top1:.2f} %")
assert len(kept) < len(improved.steps)  # not all tools help
assert improved.score > improved.quantized + 5  # dB
assert improved_top1 > float_top1 - 1

# %% [markdown]
# Rows of one kind, such as the ranges of weights, are alternatives: all begin at one score, and the
# best is kept. The next rows are measured on top of it. The last rows leave each kept step out
# again: a range that helped at first may harm the rounding that came later.
#
# ## 3. The recipe
#
# The text of the result is a configuration. The keys under `stages` are arguments of
# `quantize_script`; options under `global` and `rules` are ordinary options of a configuration.
# Comments show the search.

# %%
print(improved)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "recipe.yaml"
    improved.save(path)
    again = jit_passes.quantize_script(model, batches, config=path, **how)
with torch.no_grad():
    assert torch.equal(again(data.test_x), improved.model(data.test_x))

# %% [markdown]
# ## 4. A budget
#
# With a budget the search ends as soon as the loss is small enough. If all steps together are not
# enough, single layers get other options, as in `tune`.

# %%
enough = jit_passes.improve(model, batches, budget=improved.quantized + 2, config=config, **how)
print(enough.summary)
assert enough.score >= enough.least and len(enough.steps) < len(improved.steps)

# %% [markdown]
# ## What next
#
# - The accuracy on labelled data instead of the error of outputs:
#   `improve(model, batches, accuracy)`.
# - A run that can be interrupted: `resume="scores.jsonl"`, and `time=600` for ten minutes.
# - In a shell: `jit-passes improve model.pt --data calib.npz -o int8.pt --recipe recipe.yaml`.
# - Weights of 3 bits and fewer need training: [tutorial 10](10_lsq_training.py).
