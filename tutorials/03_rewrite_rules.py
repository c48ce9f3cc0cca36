# %% [markdown]
# # Writing rewrite rules
#
# A rewrite rule finds a subgraph and puts another one in its place. Rules work on TorchScript
# modules before PyTorch runs them, hence before autograd: the gradient follows from the replacement
# too. Tutorial 02 reads graphs and finds subgraphs; this text replaces them.
#
# Run this file whole (`python tutorials/03_rewrite_rules.py`, some seconds), or cell by cell in an
# editor that supports `# %%`. Assertions check the claims.

# %%
import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import (
    JitPassesError,
    Match,
    PassError,
    Pipeline,
    RewriteRule,
    assert_equivalent,
    format_graph,
    replace_pattern,
    rewrite,
)

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it

# %% [markdown]
# ## 1. The shortest way
#
# `replace_pattern` takes a module and two functions with the same argument names: a pattern and a
# replacement. The result is a new module. The original does not change, and both have the same
# parameters.


# %%
class Block(nn.Module):
    """A linear layer, an activation, and two factors."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels_in, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * 0.5 * 4.0


class Net(nn.Module):
    """Two blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(4, 8), Block(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)))


def relu(x: Tensor):
    return torch.relu(x)


def clamp(x: Tensor):
    return torch.clamp(x, min=0.0)


torch.manual_seed(0)
model = torch.jit.script(Net())
x = torch.randn(16, 4)
clamped = replace_pattern(model, relu, clamp)
print(format_graph(clamped))
assert "aten::relu" not in format_graph(clamped)
assert torch.equal(clamped(x), model(x))
assert clamped.head.weight is model.head.weight

# %% [markdown]
# ## 2. A rule, and what it reports
#
# A `RewriteRule` adds a name. `apply` returns a result: the new module, the matches with their
# stable names and lines of source, and the difference. With `dry_run=True` the module is the
# original one, and the rest says what would happen.

# %%
relu_to_clamp = RewriteRule("relu_to_clamp", relu, clamp)
result = relu_to_clamp.apply(model)
print(result)
print(result.diff(color=False))
assert [match.name for match in result.rewritten] == ["first:relu", "second:relu"]
assert result.diff(color=False).count("+  ") == result.diff(color=False).count("-  ")
assert relu_to_clamp.apply(model, dry_run=True).module is model

# %% [markdown]
# ## 3. Verify
#
# Given example inputs, `verify` runs both modules and compares outputs and gradients, of all
# parameters and of the inputs. Where they differ, it raises an error.


# %%
def gelu(x: Tensor):
    return F.gelu(x)


def clamp_without_gradient(x: Tensor):
    return torch.clamp(x.detach(), min=0.0)


relu_to_clamp.apply(model, verify=(x,))  # the same numbers: no error

errors = []
for replacement in (gelu, clamp_without_gradient):
    try:
        RewriteRule("change", relu, replacement).apply(model, verify=(x,))
    except PassError as error:
        errors.append(str(error))
        print(error)
assert "output differs" in errors[0]
assert "gradient of first.linear.weight differs" in errors[1]

# %% [markdown]
# ## 4. Forward and backward
#
# The second error shows the meaning of "before autograd": the output was right, but the gradient
# was not, because PyTorch differentiates the replacement. Another gradient can be the purpose.
# Rounding has the gradient 0 everywhere, so no layer in front of it learns. *Straight-through*
# rounding passes the gradient on unchanged.
#
# The obvious replacement contains a `round`, and the rule applies to it again, and so on.
# jit_passes notices this, and the error names the remedy.


# %%
class Rounds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.round(x * 4) / 4


def rounded(x: Tensor):
    return torch.round(x)


def straight_through(x: Tensor):
    return x + (torch.round(x) - x).detach()


rounds = torch.jit.script(Rounds())
try:
    RewriteRule("straight_through", rounded, straight_through).apply(rounds)
except PassError as error:
    message = str(error)
    print(message)
assert "'straight_through' -> 'straight_through'" in message and "repeat=False" in message

# %% [markdown]
# With `repeat=False`, a rule skips its own replacements.

# %%
learns = RewriteRule("straight_through", rounded, straight_through, repeat=False).apply(rounds)
gradients = []
for module in (rounds, learns.module):
    values = torch.tensor([0.3, -1.2], requires_grad=True)
    output = module(values)
    output.sum().backward()
    print(output.tolist(), values.grad.tolist())
    assert torch.equal(output, torch.tensor([0.25, -1.25]))
    gradients.append(values.grad.tolist())
assert gradients == [[0.0, 0.0], [1.0, 1.0]]

# %% [markdown]
# ## 5. Computing constants
#
# `* 0.5 * 4.0` is one multiplication too many. In the pattern, `a` and `b` match any number. The
# replacement has a `c`, which the pattern does not have. `compute` supplies it from the match,
# which has, among others, the `constants` for the pattern's inputs.
#
# An input may also stand for a number that is known only when the model runs. `check` refuses
# these: it returns True, or the reason for refusing.


# %%
def two_factors(x: Tensor, a: float, b: float):
    return x * a * b


def one_factor(x: Tensor, c: float):
    return x * c


def both_known(match: Match) -> bool | str:
    return {"a", "b"} <= set(match.constants) or "a factor is not known yet"


def product(match: Match) -> dict[str, float]:
    return {"c": match.constants["a"] * match.constants["b"]}


merge_factors = RewriteRule(
    "merge_factors", two_factors, one_factor, check=both_known, compute=product
)
result = merge_factors.apply(model, verify=(x,))
print(result)
assert len(result.rewritten) == 2
assert format_graph(result.module).count("aten::mul") == 2
assert "first:mul = aten::mul(first:relu, 2.)" in format_graph(result.module)


class Scales(nn.Module):
    def forward(self, x: Tensor, gain: float) -> Tensor:
        return x * gain * 2.0


refused = merge_factors.apply(torch.jit.script(Scales()))
print(refused)
assert refused.refused[0].refused == "a factor is not known yet" and not refused.rewritten

# %% [markdown]
# ## 6. Computing parameters
#
# `compute` may also return a tensor. An `nn.Parameter` becomes a parameter of the module of the
# match, any other tensor a buffer. Here each relu becomes a `prelu` with its own slope. The slope
# starts at 0, so that at first nothing changes. `match.shapes` has the known shapes; therefore
# `weight` is one of the pattern's inputs.


# %%
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor):
    return torch.relu(F.linear(x, weight, bias))


def linear_prelu(x: Tensor, weight: Tensor, bias: Tensor, slope: Tensor):
    return F.prelu(F.linear(x, weight, bias), slope)


def slope_for_each_channel(match: Match) -> dict[str, Tensor]:
    return {"slope": nn.Parameter(torch.zeros(match.shapes["weight"][0]))}


learn_slope = RewriteRule("learn_slope", linear_relu, linear_prelu, compute=slope_for_each_channel)
trainable = learn_slope.apply(model, verify=(x,)).module
print([name for name, _ in trainable.named_parameters()])
added = set(trainable.state_dict()) - set(model.state_dict())
assert added == {"first.linear.slope", "second.linear.slope"}

# %% [markdown]
# The result trains like any module. Make the optimizer after the rewrite, so that it gets the new
# parameters too.

# %%
labels = (x.sum(1) > 0).long()
optimizer = torch.optim.Adam(trainable.parameters(), lr=0.02)
losses = []
for _ in range(60):
    loss = F.cross_entropy(trainable(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
slope = trainable.first.linear.slope
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; slopes {slope.detach().numpy().round(2)}")
assert losses[-1] < losses[0] / 2
assert slope.abs().max() > 0.01
# Shared parameters have been trained in both.
assert model.first.linear.weight is trainable.first.linear.weight

# %% [markdown]
# ## 7. Where a rule applies
#
# Everywhere by default. `modules` are globs over the module path, `module_types` are class names.

# %%
only_first = RewriteRule("relu_to_clamp", relu, clamp, modules="first*").apply(model)
print(only_first)
assert [match.name for match in only_first.rewritten] == ["first:relu"]
assert only_first.refused[0].refused == "module 'second' is not among first*"
assert len(RewriteRule("in_blocks", relu, clamp, module_types="Block").apply(model).rewritten) == 2
assert not RewriteRule("in_linears", relu, clamp, module_types="Linear").apply(model).rewritten

# %% [markdown]
# Operands of commutative operators match in either order: one rule for `x * sigmoid(x)` and for
# `sigmoid(x) * x`. With `commutative=False` a rule takes them as they are written, and `explain`
# says so if only the order differs.


# %%
class Gates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.sigmoid(x)
        return torch.sigmoid(x) * x


def gate(x: Tensor):
    return x * torch.sigmoid(x)


def silu(x: Tensor):
    return F.silu(x)


gates = torch.jit.script(Gates())
gate_to_silu = RewriteRule("gate_to_silu", gate, silu)
assert len(gate_to_silu.apply(gates, verify=(x,)).rewritten) == 2
as_written = replace(gate_to_silu, commutative=False)
assert len(as_written.apply(gates).rewritten) == 1
print(as_written.explain(gates))
assert "in the other order" in as_written.explain(gates).places[1].reason

# %% [markdown]
# ## 8. One rule for several operators
#
# A pattern can be text instead of a function: an expression, with the inputs as `%names`. `%rest`
# as last operand stands for all operands that follow. `match::activation` is a made-up name for any
# of the operators in `alternatives`; in the replacement, it is the operator that matched. This rule
# moves max pooling in front of monotonic activations, which then have less to compute. The result
# is matched again: the second pooling passes two activations.

# %%
ACTIVATION_POOL = "aten::max_pool2d(match::activation(%x), %rest)"
POOL_ACTIVATION = "match::activation(aten::max_pool2d(%x, %rest))"
pool_first = RewriteRule(
    "pool_first",
    ACTIVATION_POOL,
    POOL_ACTIVATION,
    alternatives={"match::activation": ["aten::relu", "aten::sigmoid", "aten::tanh"]},
)
pools = torch.jit.script(nn.Sequential(nn.Tanh(), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2)))
images = torch.randn(2, 3, 8, 8)
result = pool_first.apply(pools, verify=(images,))
print(result.after)
kinds = [line.split(" = ")[1].split("(")[0] for line in result.after.splitlines() if " = " in line]
assert kinds == ["aten::max_pool2d", "aten::max_pool2d", "aten::tanh", "aten::relu"]
assert len(result.rewritten) == 3

# %% [markdown]
# A pattern that cannot work is an error when the rule is first used.

# %%
typo = replace(pool_first, name="typo", pattern=ACTIVATION_POOL.replace("max_pool2d", "max_pol2d"))
try:
    typo.compile()
except JitPassesError as error:
    message = str(error)
    print(message)
assert "rule 'typo'" in message and "aten::max_pool2d" in message

# %% [markdown]
# ## 9. Several results: two projections in one
#
# A pattern may return several values. Attention computes several linear maps of one input; one map
# with stacked weights does it in one operator. The pattern uses `x` twice, so both linears must
# read one value. Their order does not matter here; the matcher finds `key` first, so the new
# operator and its parameters belong to `key`.
#
# The parameters are new, computed from the old ones. The old ones therefore have no gradient, and
# `verify` would object: compare the outputs alone.


# %%
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return torch.softmax(scores, -1) @ x


def two_linears(x: Tensor, w: Tensor, b: Tensor, w2: Tensor, b2: Tensor):
    return F.linear(x, w, b), F.linear(x, w2, b2)


def one_linear(x: Tensor, both_w: Tensor, both_b: Tensor, n: int, n2: int):
    y = F.linear(x, both_w, both_b)
    return y.narrow(-1, 0, n), y.narrow(-1, n, n2)


def stack(match: Match) -> dict[str, object]:
    c = match.constants
    return {
        "both_w": nn.Parameter(torch.cat([c["w"], c["w2"]]).detach()),
        "both_b": nn.Parameter(torch.cat([c["b"], c["b2"]]).detach()),
        "n": len(c["w"]),
        "n2": len(c["w2"]),
    }


merge_linears = RewriteRule("merge_linears", two_linears, one_linear, compute=stack)
attention = torch.jit.script(Attention())
sequence = torch.randn(2, 5, 8)
result = merge_linears.apply(attention)
print(result.diff(color=False))
assert format_graph(result.module).count("aten::linear") == 1
assert_equivalent(attention, result.module, (sequence,), gradients=False)
try:
    merge_linears.apply(attention, verify=(sequence,))
except PassError as error:
    message = str(error)
assert "gradient of query.weight differs" in message

# %% [markdown]
# ## 10. Refused: memory that is written to
#
# Replacing is not always right where operators write in place. `explain` lists all places where the
# pattern could end, and says why it does not apply there; a result lists refused matches. Here
# `neg(neg(x))` equals `x`, but it is a copy: a write to it does not change the caller's tensor, and
# a write to `x` would.


# %%
class WritesToCopy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.neg(torch.neg(x))
        y.add_(1)
        return y


def neg_neg(x: Tensor):
    return torch.neg(torch.neg(x))


def identity(x: Tensor):
    return x


drop_neg_neg = RewriteRule("drop_neg_neg", neg_neg, identity)
writes = torch.jit.script(WritesToCopy())
print(drop_neg_neg.explain(writes))
result = drop_neg_neg.apply(writes)
assert not result.rewritten and "add_" in result.refused[0].refused
values = torch.zeros(2)
result.module(values)
assert values.sum() == 0  # the caller's tensor is as it was

# %% [markdown]
# ## 11. Rules feed each other
#
# `rewrite` takes several rules. Each rule is applied to the results of the others, until nothing
# matches. If two rules match at one operator, the earlier one wins. So small rules add up.


# %%
class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x + x
        return torch.neg(torch.neg(y)) * 2.0 * 0.25


def twice(x: Tensor):
    return x + x


def times_two(x: Tensor):
    return x * 2.0


doubles = torch.jit.script(Doubles())
add_to_mul = RewriteRule("add_to_mul", twice, times_two)
result = rewrite(doubles, [add_to_mul, drop_neg_neg, merge_factors], verify=(x,))
print(result)
print(result.after)
assert result.after.count("aten::") == 1 and "aten::mul(x, 1.)" in result.after
assert len(result.rewritten) == 4

# %% [markdown]
# Rules that undo each other would never end. The error names the cycle.

# %%
mul_to_add = RewriteRule("mul_to_add", times_two, twice)
try:
    rewrite(doubles, [add_to_mul, mul_to_add])
except PassError as error:
    message = str(error)
    print(message)
assert "'add_to_mul' -> 'mul_to_add' -> 'add_to_mul'" in message

# %% [markdown]
# ## 12. Rules as passes
#
# `register` makes a rule a pass, `register_rules` makes several rules one pass. A pass is in the
# table `jit_passes.passes`, can be a step of any `Pipeline`, and can be scheduled (tutorial 05). A
# pipeline also takes steps without a name in that table: a `RuleSet("shorten", [...])`, a rule, or
# a function that takes a `GraphEditor`.

# %%
relu_to_clamp.register("Turn relu into clamp.")
jit_passes.register_rules(
    "shorten", [add_to_mul, drop_neg_neg, merge_factors], summary="Do less arithmetic."
)
print(jit_passes.passes["shorten"])
pipeline = Pipeline("mine", ("shorten", relu_to_clamp, "remove_dead_code"))
print(pipeline)
result = pipeline.run(model, verify=(x,))
print(result)
assert [record.changed for record in result.records[:2]] == [True, True]
assert "aten::relu" not in result.after
try:
    relu_to_clamp.register("Turn relu into clamp.")
except JitPassesError as error:
    print(error)
else:
    raise AssertionError("a name is taken once")

# %% [markdown]
# Next: [04_custom_ops.py](04_custom_ops.py) puts your own operators into a model.
