# %% [markdown]
# # Inserting custom operators
#
# Hardware often needs an operator that PyTorch does not have: the chip's own multiplication, an
# approximation of a function, a rounding with its own gradient. This text defines an operator of
# this kind in Python, inserts it into a scripted model by a rule, trains the model with it, and
# saves it.
#
# Run this file whole (`python tutorials/04_custom_ops.py`, about twenty seconds), or cell by cell
# in an editor that supports `# %%`. Assertions check the claims.

# %%
import copy
import inspect
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import fixed_point
import torch
from digits import load_digits_tensors, top1, train
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphEditor, JitPassesError, PassError, RewriteRule, format_graph

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it

# %% [markdown]
# ## 1. The operator
#
# The chip of this text computes in eight bits of *fixed point*: a number is an integer from -128 to
# 127 times a step, and the step is a power of two. The operator `to_fixed` rounds a float as the
# chip would. The operator has three parts:
#
# - The function itself. `torch.library.custom_op` reads the *schema* from its annotations, and
#   gives it a name for TorchScript, `fixed_point::to_fixed`. `mutates_args=()` promises that it
#   writes to none of its arguments.
# - `register_fake` describes the result without computing it, for `torch.compile` and
#   `torch.export`.
# - `register_autograd` defines its gradient. Rounding has the gradient 0 nearly everywhere, and no
#   layer in front of it would learn; so this gradient passes through, except where a value was
#   clipped.
#
# The definition is in its own file, `fixed_point.py`. Section 7 says why.

# %%
print(inspect.getsource(fixed_point))
schema = str(torch.ops.fixed_point.to_fixed.default._schema)
print(schema)
assert schema == "fixed_point::to_fixed(Tensor x, SymInt fraction_bits) -> Tensor"

# %% [markdown]
# ## 2. Does it keep its promises?
#
# `opcheck` runs an operator with sample inputs and compares its behaviour with its declaration: it
# does not write to its arguments, the fake result has the right shape, the gradient is registered
# where autograd finds it. `opcheck` cannot check whether the gradient is right; the next cell does.

# %%
samples = (torch.tensor([0.30, -0.07, 100.0], requires_grad=True), 4)
checks = torch.library.opcheck(fixed_point.to_fixed, samples)
print(checks)
assert set(checks.values()) == {"SUCCESS"}

rounded = fixed_point.to_fixed(*samples)
rounded.sum().backward()
print(rounded.tolist(), samples[0].grad.tolist())
assert torch.equal(rounded, torch.tensor([5, -1, 127]) / 16)
assert samples[0].grad.tolist() == [1, 1, 0]

# %% [markdown]
# ## 3. Into a model, by a rule
#
# A model for handwritten digits, trained in float and scripted. A rule rounds the input and the
# weight of each linear layer. The replacement contains a linear layer, too; `repeat=False` keeps
# the rule from matching it. Rules share parameters between the original and the new module, so this
# cell passes a copy: the float model must not change.

# %%
data = load_digits_tensors()
torch.manual_seed(0)
float_model = nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10))
train(float_model, data, epochs=5)
scripted = torch.jit.script(float_model)
float_top1 = top1(scripted, data.test_x, data.test_y)


def linear(x: Tensor, weight: Tensor, bias: Tensor):
    return F.linear(x, weight, bias)


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor):
    to_fixed = torch.ops.fixed_point.to_fixed
    return F.linear(to_fixed(x, 4), to_fixed(weight, 2), bias)


rule = RewriteRule("fixed_linear", linear, fixed_linear, repeat=False)
result = rule.apply(torch.jit.script(copy.deepcopy(float_model)))
print(result)
print(result.after)
parameters = dict(scripted.named_parameters())
assert len(result.rewritten) == 2
assert result.after.count("fixed_point::to_fixed") == 4

# %% [markdown]
# The steps are coarse, 1/16 for activations and 1/4 for weights, and most weights are smaller than
# a step. Coarse steps cost accuracy.

# %%
fixed = result.module
fixed_top1 = top1(fixed, data.test_x, data.test_y)
print(f"top-1: {float_top1:.2f} % float, {fixed_top1:.2f} % fixed point")
assert fixed_top1 < float_top1 - 5
assert parameters["1.weight"].abs().median() < 1 / 4

# %% [markdown]
# ## 4. Training with it
#
# The rule ran before autograd, so the new model's gradient goes through `to_fixed`, with the
# backward function from above. `train` needs no change.

# %%
probe = fixed(data.train_x[:8]).sum()
gradients = torch.autograd.grad(probe, list(fixed.parameters()))
assert all(gradient.abs().sum() > 0 for gradient in gradients)

train(fixed, data, epochs=6, peak_rate=4e-3)
tuned_top1 = top1(fixed, data.test_x, data.test_y)
print(f"top-1: {tuned_top1:.2f} % fixed point, after training with it")
assert tuned_top1 > float_top1 - 1
assert top1(scripted, data.test_x, data.test_y) == float_top1

# %% [markdown]
# ## 5. When operator and use do not fit
#
# TorchScript has types, and knows the schema of the operator. A replacement written as a function
# is compiled when the rule is first used, which finds a wrong call.


# %%
def forgets_bits(x: Tensor, weight: Tensor, bias: Tensor):
    return F.linear(torch.ops.fixed_point.to_fixed(x), weight, bias)


def gives_float(x: Tensor, weight: Tensor, bias: Tensor):
    return F.linear(torch.ops.fixed_point.to_fixed(x, 0.5), weight, bias)


messages = []
for wrong in (forgets_bits, gives_float):
    try:
        RewriteRule(wrong.__name__, linear, wrong).compile()
    except JitPassesError as error:
        messages.append(str(error))
        print(error)
assert "Argument fraction_bits not provided" in messages[0]
assert "Expected a value of type 'int'" in messages[1]

# %% [markdown]
# IR text is not compiled. The check comes after the rewrite: every new node must be a valid call of
# an operator. The error names the module, `1`, its line, and the schema.

# %%
LINEAR = """
graph(%x, %weight, %bias):
  %y = aten::linear(%x, %weight, %bias)
  return (%y)
"""
FIXED_LINEAR = """
graph(%x, %weight, %bias):
  %bits : float = prim::Constant[value=0.5]()
  %fixed = fixed_point::to_fixed(%x, %bits)
  %y = aten::linear(%fixed, %weight, %bias)
  return (%y)
"""
try:
    RewriteRule("wrong_type", LINEAR, FIXED_LINEAR, repeat=False).apply(scripted)
except PassError as error:
    message = str(error)
    print(message)
assert "fixed_point::to_fixed does not take (Tensor, float)" in message

# %% [markdown]
# An operator without `register_autograd` computes, and fails in backward. `verify` runs both
# passes, and so finds it before the training does.


# %%
@torch.library.custom_op("fixed_point::no_gradient", mutates_args=())
def no_gradient(x: Tensor) -> Tensor:
    return torch.round(x)


def linear_of_rounded(x: Tensor, weight: Tensor, bias: Tensor):
    return F.linear(torch.ops.fixed_point.no_gradient(x), weight, bias)


rule = RewriteRule("no_gradient", linear, linear_of_rounded, repeat=False)
try:
    rule.apply(scripted, verify=(data.test_x[:2],))
except RuntimeError as error:
    message = str(error)
    print(message)
assert "no autograd formula was registered" in message

# %% [markdown]
# ## 6. Into a model, by a pass
#
# If a rule is not enough, use a pass. A pass in Python is a function that gets a `GraphEditor`: the
# nodes as in `GraphView`, and operations that change them. This pass chooses the bits of the
# fraction for each layer by its largest weight. The operator stands in front of the weights only.


# %%
@jit_passes.register_pass("round_weights", summary="Round linear weights to fixed point.")
def round_weights(graph: GraphEditor) -> None:
    """Put to_fixed in front of the weight of each linear."""
    for node in graph.nodes:
        if node.kind == "aten::linear":
            largest = parameters[f"{node.module}.weight"].abs().max()
            bits = int(torch.floor(torch.log2(127 / largest)))
            fixed_weight = graph.insert(
                "fixed_point::to_fixed", [node.inputs[1], bits], before=node
            )
            graph.set_input(node, 1, fixed_weight.output)


rounded_weights = jit_passes.run_pass("round_weights", scripted)
print(format_graph(rounded_weights))
fine_top1 = top1(rounded_weights, data.test_x, data.test_y)
print(f"top-1: {fine_top1:.2f} % with these weights, before any training with them")
assert fine_top1 > float_top1 - 1
assert format_graph(rounded_weights).count("fixed_point::to_fixed") == 2
for name in ("1.weight", "3.weight"):
    weight = parameters[name].detach()
    bits = int(torch.floor(torch.log2(127 / weight.abs().max())))
    worst = (fixed_point.to_fixed(weight, bits) - weight).abs().max()
    assert worst <= weight.abs().max() / 127  # half a step, and a step is below twice that

# %% [markdown]
# ## 7. Saving and loading
#
# A saved module holds the operator's name, not its code. A process that loads the file must define
# the operator first. Therefore the definition is in `fixed_point.py`; a user would import your
# package.

# %%
LOAD = """
import sys, torch
try:
    torch.jit.load(sys.argv[1])
except RuntimeError as error:
    print(error)
import fixed_point
module, x = torch.jit.load(sys.argv[1]), torch.load(sys.argv[2])
torch.save(module(x), sys.argv[3])
"""

environment = {**os.environ, "PYTHONPATH": str(Path(fixed_point.__file__).parent)}
with tempfile.TemporaryDirectory() as folder:
    files = [str(Path(folder) / name) for name in ("fixed.pt", "x.pt", "y.pt")]
    torch.jit.save(fixed, files[0])
    torch.save(data.test_x[:4], files[1])
    command = [sys.executable, "-W", "ignore", "-c", LOAD, *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    print("\n".join(line for line in run.stdout.splitlines() if "op:" in line))
    assert "Unknown builtin op: fixed_point::to_fixed" in run.stdout
    with torch.no_grad():
        assert torch.equal(torch.load(files[2]), fixed(data.test_x[:4]))

# %% [markdown]
# ## 8. In C++
#
# An operator in Python needs Python wherever the model runs, and holds its lock. In C++ it needs
# neither: `TORCH_LIBRARY` declares it, and a library is loaded in place of the import. For rules
# and passes there is no difference. Tutorial 07 builds a C++ library, with an operator, its
# gradient and a pass.
#
# Next: [05_when_passes_run.py](05_when_passes_run.py).
