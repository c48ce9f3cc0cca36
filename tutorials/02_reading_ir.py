# %% [markdown]
# # Reading TorchScript IR and matching subgraphs
#
# TorchScript turns a Python function into a graph of operators. To change a model (fuse two
# operators, insert one, quantize), first read this graph, and then select a part of it. This text
# reads graphs, from the smallest one up, and finds subgraphs with a pattern. Tutorial 03 changes
# them.
#
# Run this file whole (`python tutorials/02_reading_ir.py`, some seconds), or cell by cell in an
# editor that supports `# %%`. Assertions check each step.

# %%
import linecache
import warnings

import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphView, NodeView, Pipeline, RewriteRule, format_graph

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it

# %% [markdown]
# ## 1. The smallest graph
#
# A graph has *inputs*, *nodes* in the order in which they run, and *outputs*.
#
# - A **value** (`%x.1`, `%4`) is computed once, by one node, and read by others. Each value has a
#   type. Its number has no meaning, and changes with the graph.
# - A **node** is an operator with operands and results. `aten::` is PyTorch's own library; `prim::`
#   is the language itself: constants, lists, branches, calls.
# - A **constant** is a node as well. Its value is an *attribute* of the node, in square
#   brackets: `prim::Constant[value=1]`. Operands are computed while the graph runs; attributes are
#   fixed when it is made.
# - Behind `#` stands the place in the source: file, line and column.


# %%
def shrink(x: Tensor, gain: float) -> Tensor:
    return torch.relu(x * gain) + 1


graph = torch.jit.script(shrink).graph
print(graph)
kinds = [node.kind() for node in graph.nodes()]
assert kinds == ["prim::Constant", "aten::mul", "aten::relu", "aten::add"]
assert [value.type().annotation_str for value in graph.inputs()] == ["Tensor", "float"]

# %% [markdown]
# Python has one `+`, PyTorch has several operators `aten::add`. The *schema* of a node names the
# operator and its operands. This one computes `self + alpha * other`. A graph contains every
# default, so `alpha` is there. Equal constants are shared, so the value 1 is operand twice.

# %%
one, mul, relu, add = graph.nodes()
print(add.schema())
assert "add.Scalar(Tensor self, Scalar other, Scalar alpha=1)" in add.schema()
_, other, alpha = add.inputs()
assert other == alpha == one.output() and one.output().toIValue() == 1

# %% [markdown]
# ## 2. Modules: attributes and calls
#
# A module is an object with attributes. The graph's first input is the module, `self`. The graph
# reads submodules, parameters and other attributes with `prim::GetAttr`. A call of a submodule is a
# node, `prim::CallMethod`.


# %%
class Block(nn.Module):
    """A convolution, a factor and a relu."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x) * 0.5)


class Net(nn.Module):
    """Two blocks, a branch with a loop, and an average."""

    axes: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = Block(), Block()
        self.axes = [2, 3]
        self.gain = 2.0

    def forward(self, x: Tensor, steps: int = 2) -> Tensor:
        x = self.body(self.stem(x))
        if steps > 0:
            for _ in range(steps):
                x = x + self.gain
        else:
            x = -x
        return x.mean(self.axes)


torch.manual_seed(0)
net = Net().eval()
scripted = torch.jit.script(net)
print(scripted.graph)
calls = scripted.graph.findAllNodes("prim::CallMethod")
assert [call.s("name") for call in calls] == ["forward", "forward"]

# %% [markdown]
# `format_graph` prints a shorter graph: constants stand where they are used, attributes are called
# by their path, types and places are left out.

# %%
print(format_graph(scripted))
assert "prim::CallMethod(stem, x)" in format_graph(scripted)
assert len(format_graph(scripted)) < len(str(scripted.graph)) / 2

# %% [markdown]
# ## 3. Inlining, and names that last
#
# The inside of the blocks is in their own graphs. *Inlining* replaces the calls by these graphs, so
# that patterns can match across the borders of modules. jit_passes inlines before any pass or rule
# looks at the graph. A pipeline without passes does only this. The parameters stay where they are,
# and are the same tensors.

# %%
inlined = Pipeline("inline", ()).run(scripted).module
print(format_graph(inlined))
assert "prim::CallMethod" not in format_graph(inlined)
assert inlined.stem.conv.weight is scripted.stem.conv.weight is net.stem.conv.weight
x = torch.rand(1, 3, 4, 4)
assert torch.equal(inlined(x), scripted(x))

# %% [markdown]
# Values are now called after the node that makes them: `stem.conv:conv2d` is the result of the
# operator `conv2d` in the module `stem.conv`. If one module has several of a kind, `#1`, `#2`
# follow. Unlike `%30`, this *stable name* stays valid in later files, in error messages, and in
# reports.
#
# `GraphView` is the graph as plain Python data: nodes, their operands and results, and readers. The
# view also knows the origin of a node: the module, its class, the line of *your* code (the operator
# itself stands in PyTorch's `conv.py`).

# %%
view = GraphView.of(inlined)


def node_named(name: str) -> NodeView:
    """The node of that stable name."""
    return next(node for node in view.nodes if node.name == name)


conv = node_named("body.conv:conv2d")
print(conv)
print(conv.module, conv.module_type, conv.source)
assert (conv.module, conv.module_type) == ("body.conv", "Conv2d")
file, line = conv.source.rsplit(":", 1)
assert linecache.getline(file, int(line)).strip() == "return torch.relu(self.conv(x) * 0.5)"

# %% [markdown]
# A value leads up to its producer, and down to its users.

# %%
producer = conv.inputs[0].producer
user, operand = conv.output.uses[0]
print(producer.name, "->", conv.name, "->", user.name, "operand", operand)
assert producer is node_named("stem:relu")
assert (user, operand) == (node_named("body:mul"), 0)

# %% [markdown]
# ## 4. Constants and attributes
#
# Operands of a convolution are lists of numbers. The compiler builds them while the graph runs
# (`prim::ListConstruct`); inlining with jit_passes makes them constants, since they never change.
# Attributes are no constants, be they numbers, lists or weights: a program may assign another
# value. `self.axes` and `self.gain` are read each time.

# %%
stride, padding = conv.inputs[3].constant, conv.inputs[4].constant
print("stride", stride, "padding", padding)
assert (stride, padding) == ([1, 1], [1, 1])
assert scripted.inlined_graph.findNode("prim::ListConstruct") is not None
assert inlined.graph.findNode("prim::ListConstruct") is None
axes = node_named("mean").inputs[1]
assert not axes.is_constant and axes.producer.kind == "prim::GetAttr"
inlined.axes = [2]
assert inlined(x).shape == (1, 3, 4)
inlined.axes = [2, 3]

# %% [markdown]
# ## 5. Branches and loops
#
# `prim::If` and `prim::Loop` are nodes that hold *blocks*: lists of nodes with their own inputs and
# outputs. A block may read values from outside; from outside, only the outputs of a block can be
# read.
#
# - `If` has two blocks. Its result comes from the block that ran.
# - `Loop` has one. Its operands are the highest number of rounds, whether to begin at all, and the
#   values for the first round. The block takes the number of the round and the values from the last
#   round; it returns whether to continue, and the values for the next round. So `x = x + gain`,
#   which Python assigns again and again, becomes a new value each round.

# %%
loop = node_named("Loop")
branch = node_named("If")
print([(node.name, node.block) for node in view.nodes if node.name in ("gt", "add", "neg", "If")])
assert branch.block == 0 and loop.block != 0  # the loop stands in a block of the branch
assert len({node_named(name).block for name in ("add", "neg", "If")}) == 3
add = node_named("add")
assert add.inputs[0].producer is None and add.output.is_result  # from one round to the next

# %% [markdown]
# ## 6. Scripted against traced
#
# Scripting compiles the source. Tracing runs it once with an example, and records the operators.
# The trace knows one path only: the branch is decided, the loop is two additions, and `steps` is no
# input. Some operators have other names (`_convolution`), and Python's numbers have become tensors,
# `<Double[] 0.5>`.

# %%
traced = torch.jit.trace(net, x)
traced_text = format_graph(Pipeline("inline", ()).run(traced).module)
print(traced_text)
assert "prim::If" in format_graph(inlined) and "prim::If" not in traced_text
assert traced_text.count("aten::add(") == 2
assert "stem:mul = aten::mul(stem.conv:_convolution, <Double[] 0.5>)" in traced_text
assert torch.equal(traced(x), scripted(x))
assert not torch.equal(scripted(x, 3), scripted(x))  # what the trace cannot do

# %% [markdown]
# ## 7. Finding a subgraph
#
# A *pattern* is a small graph, most easily written as a function. Its arguments stand for any value
# of their type. A rule consists of a pattern and a replacement; `explain` never replaces anything,
# so for searching the pattern can stand for both.
#
# The search starts at the pattern's last operator, here relu, and goes up. `explain` looks at all
# relus of the model, and says how far the search came from there, and why it ended. A match is
# named after the pattern's first operator, a failed search after the last one.


# %%
def scaled_relu(x: Tensor, factor: float):
    return torch.relu(x * factor)


search = RewriteRule("scaled_relu", scaled_relu, scaled_relu)
found = search.explain(scripted)
print(found)
assert [place.name for place in found.places] == ["stem:mul", "body:mul"]
assert all(place.reason == "" for place in found.places)

# %% [markdown]
# The traced model has no match: its factors are tensors. The reason says so, and leads to the
# pattern that fits.


# %%
def scaled_relu_traced(x: Tensor, factor: Tensor):
    return torch.relu(x * factor)


print(search.explain(traced))
assert all("is of type Tensor, not float" in p.reason for p in search.explain(traced).places)
search_traced = RewriteRule("scaled_relu_traced", scaled_relu_traced, scaled_relu_traced)
assert all(place.reason == "" for place in search_traced.explain(traced).places)

# %% [markdown]
# With a replacement, the rule says what it *would* do: `dry_run=True` returns the matches, the
# lines that would change, and the unchanged module.


# %%
def clamped(x: Tensor, factor: float):
    return torch.clamp(x * factor, min=0.0)


planned = RewriteRule("relu_to_clamp", scaled_relu, clamped).apply(scripted, dry_run=True)
print(planned)
print(planned.diff(color=False))
# Matches have the names of the places found above.
assert [match.name for match in planned.matches] == ["stem:mul", "body:mul"]
assert planned.module is scripted and "aten::clamp" not in format_graph(scripted)

# %% [markdown]
# ## 8. Near misses
#
# A first pattern often finds nothing. This model has five places that look like `relu(x * 0.5)`,
# and only one matches.


# %%
class NearMisses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        fits = torch.relu(x * 0.5)
        number = torch.relu(x * 0.25)
        operator = torch.relu(x + 0.5)
        half = x * 0.5
        used_twice = torch.relu(half) + half
        in_place = torch.relu_(x * 0.5)
        return fits + number + operator + used_twice + in_place


def half_relu(x: Tensor):
    return torch.relu(x * 0.5)


near_misses = torch.jit.script(NearMisses())
found = RewriteRule("half_relu", half_relu, half_relu).explain(near_misses)
print(found)
reasons = {place.name: place.reason for place in found.places}
assert reasons["mul"] == ""
assert "is 0.25, not 0.5" in reasons["relu#1"]
assert "has aten::add" in reasons["relu#2"]
assert "is used by aten::add" in reasons["relu#3"]
assert len(reasons) == 4

# %% [markdown]
# - *Another number*: a number in the pattern must be equal. An argument takes any number.
# - *Another operator* at that place.
# - *Used twice*: another operator needs the product, so it would remain after a replacement. A
#   pattern that also returns the product matches here.
# - *In place*: `relu_` is another operator, and no candidate.
#
# `alternatives` covers the last case: it lists the operators that a name may stand for.

# %%
either = RewriteRule(
    "half_relu",
    half_relu,
    half_relu,
    alternatives={"aten::relu": ["aten::relu", "aten::relu_"]},
)
found = either.explain(near_misses)
print(found)
assert sum(place.reason == "" for place in found.places) == 2
assert len(found.places) == 5

# %% [markdown]
# ## 9. Patterns as text
#
# A function cannot express everything. `conv2d` has seven operands; a pattern for any stride and
# padding need not list them. In IR text, an input without a type takes anything; `%rest` as last
# operand takes all operands that follow; and a name of your own, `match::convolution`, stands for
# the operators listed. This pattern finds scripted and traced convolutions alike.

# %%
CONVOLUTION_SCALED = """
graph(%x, %weight, %factor, %rest):
  %y = match::convolution(%x, %weight, %rest)
  %z = aten::mul(%y, %factor)
  return (%z)
"""
scaled_convolution = RewriteRule(
    "scaled_convolution",
    CONVOLUTION_SCALED,
    CONVOLUTION_SCALED,
    alternatives={"match::convolution": ["aten::conv2d", "aten::_convolution"]},
)
for model in (scripted, traced):
    found = scaled_convolution.explain(model)
    print(found)
    assert [place.name.split(".")[0] for place in found.places] == ["stem", "body"]
    assert all(place.reason == "" for place in found.places)

# %% [markdown]
# ## 10. In-place operators
#
# An operator whose name ends in `_` writes to the memory of its operand. Values that share this
# memory change with it, and the graph does not show it: no line says that `x` has changed after
# `add_`. `GraphView` marks values that some operator may write to, directly or through a view.


# %%
class WritesBetween(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 0.5
        x.add_(1)
        return torch.relu(y)


class WritesThroughView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 0.5
        y[0].zero_()
        return torch.relu(y)


between = torch.jit.script(WritesBetween())
through_view = torch.jit.script(WritesThroughView())
print(format_graph(between))
assert GraphView.of(between).inputs[0].written
written = [n.name for n in GraphView.of(through_view).nodes if any(v.written for v in n.outputs)]
print("written:", written)
assert "mul" in written  # by zero_, through the view that select makes
assert not any(value.written for node in view.nodes for value in node.outputs)

# %% [markdown]
# In both functions, product and relu match the pattern, but neither may be replaced. In the first,
# the replacement stands where relu stands, and would read `x` after the write. In the second,
# another operator changes the product in between.

# %%
for model in (between, through_view):
    place = search.explain(model).places[0]
    print(place.reason)
    assert place.matched == 2 and place.reason
    assert not RewriteRule("relu_to_clamp", scaled_relu, clamped).apply(model).rewritten
assert "writes to what" in search.explain(between).places[0].reason

# %% [markdown]
# Most in-place operators are harmless: the `relu_` of `nn.ReLU(inplace=True)` overwrites a value
# that is not read again. The pass `replace_inplace` turns these into functional ones, where PyTorch
# can prove that the result is equal. The pass keeps the write to `x`, which the caller sees.

# %%
functional = jit_passes.run_pass("replace_inplace", near_misses)
found = RewriteRule("half_relu", half_relu, half_relu).explain(functional)
assert len(found.places) == 5  # relu_ has become relu
assert "aten::add_" in format_graph(jit_passes.run_pass("replace_inplace", between))

# %% [markdown]
# Next: [03_rewrite_rules.py](03_rewrite_rules.py) replaces the matches.
