# %% [markdown]
# # Training with four bits
#
# With 8 bits, a network can be quantized after training, at almost no loss. With 4 bits there are
# 16 codes, and calibration alone costs accuracy. A short further training with quantization in
# place adapts the weights. LSQ, *learned step size quantization*, trains the scales as well.
#
# This text trains the residual network of tutorial 01 like this: the added parameters, an optimizer
# for them, a schedule, stopping and continuing, and the result. [docs/qat.md](../docs/qat.md)
# compares the methods; tutorial 11 trains scales that are powers of two.
#
# Run this file whole (`python tutorials/10_lsq_training.py`, about half a minute), or cell by cell
# in an editor that supports `# %%`. Assertions check the claims.

# %%
import copy
import tempfile
import warnings
from pathlib import Path

import torch
from digits import DigitsResNet, load_digits_tensors, shift, top1, train
from torch import Tensor
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView
from jit_passes.targets import X86Quantizer

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. The float network
#
# A trained network, scripted. A traced or loaded model works too, as long as its parameters are
# still parameters: `torch.jit.freeze` makes constants of them.

# %%
data = load_digits_tensors()
torch.manual_seed(0)
network = train(DigitsResNet(width=8), data, epochs=6)
model = torch.jit.script(copy.deepcopy(network))  # what trains from it trains its parameters
float_top1 = top1(model, data.test_x, data.test_y)
print(f"float: {float_top1:.2f} % of {len(data.test_y)} held-out digits are right")
assert float_top1 > 97

# %% [markdown]
# ## 2. The result of calibration alone
#
# Weights, and inputs of convolutions and linears, get 4 bits. The first and the last layer, where
# every error counts, get 8. Training begins at the nearest codes, so calibration has them too:

# %%
few = {"input": {"bits": 4}, "weight": {"bits": 4}}
many = {"input": {"bits": 8}, "weight": {"bits": 8}}
config = {"version": 1, "global": few, "rules": [{"module": ["conv1", "fc"], **many}]}
batches = data.train_x[:512].split(64)
calibrated = jit_passes.quantize_script(
    model, batches, target="reference", config=config, weight_rounding=None
)
calibrated_top1 = top1(calibrated, data.test_x, data.test_y)
print(f"4 bits, calibrated: {calibrated_top1:.2f} %")

# %% [markdown]
# ## 3. Prepare
#
# `prepare_qat` replaces `prepare`. In place of observers it inserts *fake quantization*: round to
# the nearest code, clip at the last one, and back to float. `bits` and `first_last_bits` express
# the configuration above.

# %%
qat = jit_passes.prepare_qat(
    model, fake_quantizer="lsq", bits=4, first_last_bits=8, target="reference"
)
own = dict(model.named_parameters())
added = dict(jit_passes.named_quantization_parameters(qat))
for name in list(added)[:6]:
    print(f"{name:32} {list(added[name].shape)}  {added[name].detach().flatten()[:3].tolist()}")
print(f"{len(own)} parameters of the model, {len(added)} of its quantization")
assert added["conv1.weight_scale"].shape == (8,)  # one for each output channel
assert added["conv1.weight_scale"].isfinite().all()

# %% [markdown]
# A weight is known, so its scales have values at once; the scale of an activation is infinite until
# a batch comes. The model's own parameters have kept their names, and are the same tensors:
# training this model trains the float model too. (To keep that, script a copy.)

# %%
assert added["conv1.input_scale"].isinf().all()
found = dict(qat.named_parameters())
assert own.keys() <= found.keys() and found.keys() == own.keys() | added.keys()
assert all(found[name].data_ptr() == tensor.data_ptr() for name, tensor in own.items())

# %% [markdown]
# Batch norms are still there, and train as usual. The weight in front is quantized as it will be
# after its batch norm is folded into it: `fold_factor` is the factor of the weight, `fold_bias` the
# folded bias, and `train_bias` rounds this bias to the steps of the integer sum. The three
# operators `deferred_...` switch: in training mode they are weight, bias and batch norm, in eval
# mode the folded weight, the rounded bias, and nothing. Here is the first convolution:

# %%
for node in GraphView.of(qat, parameters=True).nodes:
    if node.module in ("conv1", "bn1") and node.kind.split("::")[0] != "prim":
        print(node.kind, "->", node.output.name)

# %% [markdown]
# ## 4. An optimizer
#
# Build it after `prepare_qat`, which adds the scales. (An optimizer from before trains weights
# only, and `jit_passes` warns at its second step.) Scales have their own group: weight decay would
# pull them towards 0. The paper has the rate 0.01 for 2 to 4 bits, and 0.001 for 8: a scale of 8
# bits is so small that a step could take it past 0. This network is small too: its scales have a
# tenth of the rate of its weights, and a hundredth in the first and the last layer, which have 8
# bits.

# %%
EPOCHS, BATCH = 4, 32
STEPS = len(data.train_x) // BATCH


def optimizer_of(qat: torch.jit.ScriptModule, rate: float = 0.01) -> torch.optim.Optimizer:
    """SGD as in the paper."""
    coarse, fine = [], []
    for name, scale in jit_passes.named_quantization_parameters(qat):
        (fine if name.startswith(("conv1.", "fc.")) else coarse).append(scale)
    return torch.optim.SGD(
        [
            {"params": jit_passes.model_parameters(qat), "weight_decay": 1e-4},
            {"params": coarse, "weight_decay": 0.0, "lr": rate / 10},
            {"params": fine, "weight_decay": 0.0, "lr": rate / 100},
        ],
        lr=rate,
        momentum=0.9,
    )


optimizer = optimizer_of(qat)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS)
groups = [len(group["params"]) for group in optimizer.param_groups]
assert groups[0] == len(own) and sum(groups[1:]) == len(added)

# %% [markdown]
# ## 5. The first batches: float values only
#
# In training mode the first batch sets the scales of activations. `disable_fake_quantize` lets the
# model compute in float meanwhile, so that each layer sees the values of the trained network, and
# not the errors of layers in front.

# %%
qat.train()
jit_passes.disable_fake_quantize(qat)
with torch.no_grad():
    for images in batches[:4]:
        looked = qat(images)
jit_passes.enable_fake_quantize(qat)
begun = {name: parameter.detach().clone() for name, parameter in added.items()}
print("conv1.input_scale", begun["conv1.input_scale"].item())
assert all(parameter.isfinite().all() for parameter in begun.values())

# %% [markdown]
# ## 6. Training
#
# An ordinary loop. In eval mode the model is quantized too, and its scales are fixed.


# %%
def run_epoch(
    qat: torch.jit.ScriptModule,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    seed: int,
) -> Tensor:
    """One pass over the training half; returns the mean loss."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train_x), generator=generator)
    total = torch.zeros(())
    for picked in order[: STEPS * BATCH].split(BATCH):
        logits = qat(shift(data.train_x[picked], generator))
        loss = F.cross_entropy(logits, data.train_y[picked], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach() / STEPS
    return total


def report(epoch: int, loss: Tensor) -> None:
    """Print what an epoch came to."""
    qat.eval()
    print(f"epoch {epoch}: loss {loss:.4f}, {top1(qat, data.test_x, data.test_y):.2f} %")
    qat.train()


for epoch in range(2):
    report(epoch, run_epoch(qat, optimizer, schedule, epoch))
moved = {name: (parameter.detach() / begun[name] - 1) for name, parameter in added.items()}
for name in list(moved)[:6]:
    print(f"{name:32} moved by up to {100 * moved[name].abs().max():.2f} %")
assert all(change.abs().max() > 0 for change in moved.values())
assert max(change.abs().max() for change in moved.values()) > 0.01

# %% [markdown]
# ## 7. Stopping, and going on
#
# A training model is a ScriptModule: `torch.jit.save` writes it with its scales, switches and mode.
# The optimizer and its schedule have their own states. Load all three to continue, without
# `prepare_qat` and without the Python code of the network.

# %%
with tempfile.TemporaryDirectory() as folder:
    torch.jit.save(qat, str(Path(folder) / "qat.pt"))
    states = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save(states, Path(folder) / "states.pt")
    resumed = torch.jit.load(str(Path(folder) / "qat.pt"))
    states = torch.load(Path(folder) / "states.pt")
other = optimizer_of(resumed)
other_schedule = torch.optim.lr_scheduler.CosineAnnealingLR(other, EPOCHS * STEPS)
other.load_state_dict(states["optimizer"])
other_schedule.load_state_dict(states["schedule"])

report(2, run_epoch(qat, optimizer, schedule, 2))
run_epoch(resumed, other, other_schedule, 2)
for (name, one), (_, two) in zip(qat.named_parameters(), resumed.named_parameters(), strict=True):
    assert torch.equal(one, two), name
print("the model that was saved and loaded trains to the same bits")

# %% [markdown]
# ## 8. The last epoch
#
# In use, a batch norm is a factor in the weight, made of its running statistics. With
# `freeze_statistics` it normalizes by these in training too, so that weights adapt to the final
# factor. Observers have nothing left to do, so `disable_observers` stops them.

# %%
jit_passes.freeze_statistics(qat)
jit_passes.disable_observers(qat)
statistics = qat.bn1.running_mean.clone()
report(3, run_epoch(qat, optimizer, schedule, 3))
assert torch.equal(qat.bn1.running_mean, statistics)
print("scales that a step took below 0, and that were put back:", jit_passes.scale_corrections(qat))

# %% [markdown]
# ## 9. Convert
#
# `convert` takes a trained model like a calibrated one, and gives the reference model: weights and
# biases as integers, batch norms folded, the trained scales in quantize and dequantize. The
# reference model equals the trained model in eval mode, and `parity` compares them value by value.

# %%
qat.eval()
reference = jit_passes.convert(qat)
trained_top1 = top1(qat, data.test_x, data.test_y)
reference_top1 = top1(reference, data.test_x, data.test_y)
print(f"float             {float_top1:.2f} %")
print(f"4 bits calibrated {calibrated_top1:.2f} %")
print(f"4 bits trained    {trained_top1:.2f} %, converted {reference_top1:.2f} %")
codes = {}
for node in GraphView.of(reference).nodes:
    if node.kind == "aten::conv2d":
        codes[node.module] = int(node.inputs[1].producer.inputs[0].constant.abs().max())
print("largest weight as an integer:", codes)
assert codes["conv1"] > 8 and all(code <= 8 for name, code in codes.items() if name != "conv1")
assert reference_top1 > float_top1 - 2
assert jit_passes.scale_corrections(qat) == 0
found = jit_passes.parity(qat, reference, [data.test_x[:64]])
print("trained and converted:", found.summary)
assert found.equal and reference_top1 == trained_top1
assert reference_top1 >= calibrated_top1 - 0.5

# %% [markdown]
# ## 10. Eight bits for PyTorch's kernels
#
# The quantizer for PyTorch's x86 kernels trains the model for `quantized::conv2d`, and the result
# is lowered to it. A single epoch from the float weights is enough here; there is little to repair.

# %%
model = torch.jit.script(network)
qat = jit_passes.prepare_qat(model, X86Quantizer(), fake_quantizer="lsq")
optimizer = optimizer_of(qat, rate=0.001)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
qat.train()
print(f"loss {run_epoch(qat, optimizer, schedule, 0):.4f}")
reference = jit_passes.convert(qat)
int8 = jit_passes.lower(reference)
print(jit_passes.coverage(int8))
int8_top1 = top1(int8, data.test_x, data.test_y)
print(f"float {float_top1:.2f} %, int8 {int8_top1:.2f} %")
assert not jit_passes.coverage(int8).float
assert "quantized::conv2d" in str(int8.inlined_graph)
assert int8_top1 > float_top1 - 1
