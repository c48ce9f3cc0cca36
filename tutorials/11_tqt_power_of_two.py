# %% [markdown]
# # Training scales that are powers of two
#
# Some hardware rescales by shifting: every scale is a power of two, with one for each tensor, and
# zero points are 0. This grid is coarse. From one power to the next the range doubles, and the
# largest value alone decides which one is used. TQT, *trained quantization thresholds*, trains
# where each tensor is clipped, a balance between clipping and wide steps, and the weights with it.
#
# This text trains a small MobileNet with 4 bits. Tutorial 10 has the common steps of all methods in
# more detail; [docs/qat.md](../docs/qat.md) has the reference.
#
# Run this file whole (`python tutorials/11_tqt_power_of_two.py`, about half a minute), or cell by
# cell in an editor that supports `# %%`. Assertions check the claims.

# %%
import json
import tempfile
import warnings
from pathlib import Path

import torch
from digits import DigitsMobileNet, load_digits_tensors, shift, top1, train
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView
from jit_passes.targets import PowerOfTwoQuantizer

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
torch.set_num_threads(1)  # results then do not depend on the number of cores

# %% [markdown]
# ## 1. The loss by calibration
#
# The network has depthwise convolutions, with a filter for each channel, and their channels differ
# more than others. Calibrated with a scale for each channel, of any size, 4 bits cost some points;
# one power of two for each tensor costs more than twice as many. First and last layer have 8 bits.

# %%
data = load_digits_tensors()
torch.manual_seed(0)
model = torch.jit.script(train(DigitsMobileNet(width=8), data, epochs=4))
float_top1 = top1(model, data.test_x, data.test_y)
few = {"input": {"bits": 4}, "weight": {"bits": 4}}
many = {"input": {"bits": 8}, "weight": {"bits": 8}}
edges = {"module": ["features.0", "classifier"], **many}
config = {"version": 1, "global": few, "rules": [edges]}
batches = data.train_x[:512].split(64)
any_scale = jit_passes.quantize_script(model, batches, target="reference", config=config)
shifting = jit_passes.quantize_script(
    model, batches, quantizer=PowerOfTwoQuantizer(), config=config
)
any_top1 = top1(any_scale, data.test_x, data.test_y)
static_top1 = top1(shifting, data.test_x, data.test_y)
print(f"float                            {float_top1:.2f} %")
print(f"calibrated, scales per channel   {any_top1:.2f} %")
print(f"calibrated, powers of two        {static_top1:.2f} %")
lost, lost_by_shifting = float_top1 - any_top1, float_top1 - static_top1
assert 2 < lost < 20
assert lost_by_shifting > 2 * lost

# %% [markdown]
# ## 2. Thresholds
#
# The quantizer chooses the places of fake quantization, and scales that are powers of two.
#
#     scale = 2^ceil(log2_threshold) / 2^(bits - 1)
#
# The threshold moves in each step; the scale changes when it crosses a whole number. Thresholds of
# weights begin at three standard deviations; thresholds of activations with the first batch, at the
# value that keeps most of the information (the observer `KLJ`).

# %%
qat = jit_passes.prepare_qat(
    model, PowerOfTwoQuantizer(), fake_quantizer="tqt", bits=4, first_last_bits=8
)
qat.train()
with torch.no_grad():
    qat(batches[0])
thresholds = dict(jit_passes.named_quantization_parameters(qat))
before = {name: float(threshold.detach()) for name, threshold in thresholds.items()}
print(f"{len(thresholds)} thresholds, the first of them:")
for name in list(before)[:5]:
    print(f"  {name:42} {before[name]:6.2f}, so clipped at 2^{-int(-before[name] // 1)}")
assert all("_log2_threshold" in name for name in thresholds)
assert all(abs(value) < 30 for value in before.values())

# %% [markdown]
# ## 3. Two optimizers and a freezer
#
# The recipe of TQT: Adam for weights, and Adam with a larger, repeatedly halved rate for
# thresholds. Adam because the size of a threshold's gradient depends on the number of values it
# clips, and only its sign is reliable.
#
# A threshold near a whole number switches its scale back and forth, and the weights around it never
# settle. `ThresholdFreezer` stops them one by one, the calmest first, on the side where each was
# most of the time. The paper starts this after thousands of steps; here it starts in the second
# half. (`ThresholdFreezer.for_batch_size` has the paper's numbers.)

# %%
EPOCHS, BATCH = 3, 32
STEPS = len(data.train_x) // BATCH
TOTAL = EPOCHS * STEPS
weights = torch.optim.Adam(jit_passes.model_parameters(qat), lr=1e-3)
grid = torch.optim.Adam(thresholds.values(), lr=1e-2)
schedules = (
    torch.optim.lr_scheduler.CosineAnnealingLR(weights, TOTAL),
    torch.optim.lr_scheduler.StepLR(grid, TOTAL // 4, 0.5),
)
interval = TOTAL // 2 // len(thresholds)
freezer = jit_passes.ThresholdFreezer(thresholds.items(), TOTAL // 2, interval, momentum=0.99)

# %% [markdown]
# ## 4. Training
#
# Statistics of batch norms are frozen after the first epoch, as in the paper: thresholds stand
# right behind them, and cannot settle while their input is rescaled with each batch. The freezer
# steps after the optimizers, while gradients are still there.

# %%
generator = torch.Generator().manual_seed(0)
for epoch in range(EPOCHS):
    qat.train()
    if epoch == 1:
        jit_passes.freeze_statistics(qat)
    total = 0.0
    order = torch.randperm(len(data.train_x), generator=generator)
    for picked in order[: STEPS * BATCH].split(BATCH):
        logits = qat(shift(data.train_x[picked], generator))
        loss = F.cross_entropy(logits, data.train_y[picked], label_smoothing=0.05)
        loss.backward()
        weights.step()
        grid.step()
        freezer.step()
        for optimizer, schedule in zip((weights, grid), schedules, strict=True):
            schedule.step()
            optimizer.zero_grad()
        total += loss.item() / STEPS
    qat.eval()
    score = top1(qat, data.test_x, data.test_y)
    print(f"epoch {epoch}: loss {total:.4f}, {score:.2f} %, {len(freezer.frozen)} frozen")
assert len(freezer.frozen) > 5
assert all(not thresholds[name].requires_grad for name in freezer.frozen)

# %% [markdown]
# ## 5. Where thresholds went
#
# Some thresholds move in, and clip more for finer steps; others move out. After crossing a whole
# number, the scale is another one.

# %%
after = {name: float(threshold.detach()) for name, threshold in thresholds.items()}
moves = sorted(before, key=lambda name: after[name] - before[name])
print(f"{'log2 threshold':42} before  after")
for name in moves[:6] + moves[-6:]:
    print(f"{name:42} {before[name]:6.2f} {after[name]:6.2f}")
crossed = [name for name in moves if -(-before[name] // 1) != -(-after[name] // 1)]
print(f"{len(crossed)} of {len(moves)} have another scale than at first")
assert after[moves[0]] < before[moves[0]] - 0.02
assert after[moves[-1]] > before[moves[-1]] + 0.02

# %% [markdown]
# ## 6. Convert
#
# All scales in the reference model are powers of two, also of biases, and zero points are 0.

# %%
reference = jit_passes.convert(qat)
scales = []
for node in GraphView.of(reference).nodes:
    if node.kind == "jit_passes::dequantize":
        scales.append(node.inputs[1].constant)
        assert node.inputs[2].constant == 0
exponents = torch.tensor(scales, dtype=torch.float64).log2()
print("exponents of the scales:", sorted({int(e) for e in exponents}))
assert len(scales) > 40 and torch.equal(exponents, exponents.round())
trained_top1 = top1(reference, data.test_x, data.test_y)
print(f"float                            {float_top1:.2f} %")
print(f"powers of two, calibrated        {static_top1:.2f} %")
print(f"powers of two, trained           {trained_top1:.2f} %")
assert trained_top1 > static_top1 + 2
assert trained_top1 > float_top1 - 5

# %% [markdown]
# ## 7. For the engine
#
# `encodings_of` returns the numbers as plain data, which can be written in forms of other engines:
# see [docs/exports.md](../docs/exports.md).

# %%
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "encodings.json"
    jit_passes.export_calibration(reference, file, "aimet")
    encodings = json.loads(file.read_text())
first = encodings["activation_encodings"][0]
print(first)
for entry in encodings["activation_encodings"] + encodings["param_encodings"]:
    exponents = torch.tensor(entry["scale"], dtype=torch.float64).log2()
    assert torch.equal(exponents, exponents.round())
    assert entry["bw"] in (4, 8, 32)
