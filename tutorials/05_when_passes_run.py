# %% [markdown]
# # When passes run
#
# TorchScript turns a function into a graph, and PyTorch runs that graph. A pass can change it at
# three moments:
#
#     torch.jit.script ──> graph ──> differentiate ──> fuse ──> run
#                            │             │           │
#              before autograd   after autograd   after fusion
#
# The moment decides which graph the pass sees, and whether the gradient follows. This text runs one
# pass at each of the three moments.
#
# Run this file whole (`python tutorials/05_when_passes_run.py`, some seconds), or cell by cell in
# an editor that supports `# %%`. Assertions check the claims.

# %%
import warnings

import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphEditor, GraphView, Pipeline, Stage

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it

# %% [markdown]
# ## 1. A pass
#
# It turns every relu into a gelu. The two are easy to tell apart: at -1, relu and its slope are 0,
# but gelu and its slope are not.


# %%
@jit_passes.register_pass("relu_to_gelu", summary="Turn relu into gelu.")
def relu_to_gelu(graph: GraphEditor) -> None:
    """Replace each relu."""
    for node in graph.nodes:
        if node.kind == "aten::relu":
            gelu = graph.insert("aten::gelu", [node.inputs[0], "none"], before=node)
            graph.replace(node.output, gelu.output)
            graph.remove(node)


def value_and_slope(function, at: float) -> tuple[float, float]:
    """The value of a function of one tensor, and its gradient."""
    x = torch.tensor([at], requires_grad=True)
    y = function(x)
    y.sum().backward()
    return round(y.item(), 4), round(x.grad.item(), 4)


RELU = value_and_slope(torch.relu, -1.0)
GELU = value_and_slope(nn.functional.gelu, -1.0)
print("at -1, value and slope: relu", RELU, " gelu", GELU)
assert RELU == (0.0, 0.0)
assert GELU == (-0.1587, -0.0833)

# %% [markdown]
# ## 2. By hand: before autograd
#
# `run_pass` takes a compiled module, and returns a new one. PyTorch has not run it yet, so its
# gradient will be derived from the new graph. Before autograd is the right moment for nearly
# everything: value and gradient fit together, and the pass has the module with its parameters.

# %%
plain = torch.jit.script(nn.ReLU())
by_hand = jit_passes.run_pass("relu_to_gelu", plain)
print(jit_passes.format_graph(by_hand))
assert value_and_slope(plain, -1.0) == RELU
assert value_and_slope(by_hand, -1.0) == GELU

# %% [markdown]
# A `Pipeline` runs several passes in a row. The result has the changes of each of them, and `diff`
# shows the lines of the graph that changed.

# %%
pipeline = Pipeline("to_gelu", ("relu_to_gelu", "remove_dead_code", "pool_constants"))
result = pipeline.run(plain)
print(result)
print(result.diff(color=False))
assert "aten::gelu" in result.diff(color=False)
assert result.records[0].changed and not result.records[1].changed

# %% [markdown]
# ## 3. By schedule: before autograd
#
# `run_pass` needs the module. `scheduled` does not: it runs the pass on every function that
# `torch.jit.script` and `torch.jit.trace` compile inside the block, in this thread. A library that
# scripts its own modules needs no change.


# %%
class Net(nn.Module):
    """A layer and a relu."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


net = Net()
with jit_passes.scheduled("relu_to_gelu") as handle:
    scripted = torch.jit.script(net)
    traced = torch.jit.trace(net, torch.randn(2, 4))
outside = torch.jit.script(net)

print(jit_passes.diff_graphs(outside, scripted, color=False))
for module in (scripted, traced):
    assert "aten::gelu" in jit_passes.format_graph(module)
assert "aten::gelu" not in str(outside.inlined_graph)
# The parameters are shared with `net`, so that training one trains the other.
assert scripted.linear.weight is net.linear.weight

# %% [markdown]
# The handle counts how often the pass ran, and how many of these graphs changed. At the end of the
# block, PyTorch's functions are restored.

# %%
print(handle)
assert (handle.runs, handle.changed) == (2, 2)
assert jit_passes.scheduled_passes() == ()

# %% [markdown]
# ## 4. After autograd
#
# PyTorch does not differentiate a graph when it is compiled, but after it has seen its inputs. The
# *executor* works like this, for each graph:
#
# 1. At the first call it runs the graph and records shapes, and whether gradients are needed: it
#    profiles.
# 2. At the second call it prepares the graph. If gradients are needed, it cuts out the parts that
#    it can differentiate. Each becomes a `prim::DifferentiableGraph`, with a forward and a backward
#    graph, and each of these is prepared by the same two steps, when it is called.
# 3. From then on it runs the prepared graph.
#
# A pass of the stage `AFTER_AUTOGRAD` gets a graph in step 2, after it has been differentiated. If
# gradients are needed, it does not get operators outside of these parts, nor a single operator,
# which PyTorch does not cut out. So the function below has two operators.
#
# The function `where` sees every graph before the pass runs, and decides whether it should. This
# one always agrees, and records the graphs.

# %%
seen: list[str] = []


def note(view: GraphView) -> bool:
    """Say yes, and keep the operators of the graph."""
    seen.append(" ".join(n.kind for n in view.nodes if n.kind.startswith("aten::")))
    return True


def late(x: Tensor) -> Tensor:
    """A relu and a product."""
    return torch.relu(x) * 2.0


compiled = torch.jit.script(late)
with jit_passes.scheduled("relu_to_gelu", stage=Stage.AFTER_AUTOGRAD, where=note) as handle:
    for call in range(4):
        found = value_and_slope(compiled, -1.0)
        print(f"call {call + 1}: value and slope {found}, graphs seen so far: {len(seen)}")
for operators in seen:
    print("saw:", operators)

# %% [markdown]
# The forward part came at the third call: the second prepared the whole graph, the third its part,
# which had to be profiled first. The backward graph came by itself, and holds no relu:
# the slope of relu is a comparison with 0 and a product.
#
# So the value changed, and the slope did not. Therefore **a pass after autograd must compute the
# same results**, only faster, or on other hardware. Otherwise training goes wrong silently.

# %%
assert handle.changed == 1
assert "aten::relu" in seen[0] and "aten::relu" not in seen[1]
value, slope = value_and_slope(compiled, -1.0)
assert abs(value - 2 * GELU[0]) < 1e-3
assert slope == 2 * RELU[1] == 0.0

# %% [markdown]
# ## 5. Prepared models stay prepared
#
# The block has ended, and `compiled` still computes gelu: the executor keeps prepared graphs.
# Likewise, a pass does not reach a graph that was prepared before it was scheduled.
#
# Calling `torch.jit.script` again does not help. PyTorch keeps compiled functions, and the compiled
# methods of modules of one class, with their prepared graphs. Schedule passes before the first
# call, or let PyTorch forget prepared graphs, with a method that is meant for debugging.


# %%
def early(x: Tensor) -> Tensor:
    """A relu."""
    return torch.relu(x)


x = torch.tensor([-1.0])
ready = torch.jit.script(early)
for _ in range(2):
    ready(x)
with jit_passes.scheduled("relu_to_gelu", stage=Stage.AFTER_AUTOGRAD) as handle:
    assert ready(x).item() == RELU[0]
    assert torch.jit.script(early)(x).item() == RELU[0]
    assert handle.runs == 0  # it was never asked
    ready._debug_flush_compilation_cache()
    for _ in range(2):
        ready(x)
    assert handle.runs == 1
    assert round(ready(x).item(), 4) == GELU[0]

# %% [markdown]
# ## 6. After fusion
#
# Last, *fusers* merge neighbouring operators into one kernel. On CPUs this is oneDNN's fuser, which
# must be switched on. A pass of the stage `AFTER_FUSION` sees the remaining graph, without the
# inside of a fused kernel. Without a gradient, graphs come whole.


# %%
def fusable(x: Tensor, y: Tensor) -> Tensor:
    """Operators that oneDNN has kernels for."""
    return torch.relu(x * y).exp()


graphs: dict[Stage, str] = {}


def note_stage(stage: Stage):
    """Return a `where` that keeps the graph and says no."""

    def where(view: GraphView) -> bool:
        graphs[stage] = " ".join(n.kind for n in view.nodes if n.kind != "prim::Constant")
        return False

    return where


torch.jit.enable_onednn_fusion(True)
before, behind = Stage.AFTER_AUTOGRAD, Stage.AFTER_FUSION
with (
    torch.no_grad(),
    jit_passes.scheduled("relu_to_gelu", stage=before, where=note_stage(before)),
    jit_passes.scheduled("relu_to_gelu", stage=behind, where=note_stage(behind)),
):
    compiled = torch.jit.script(fusable)
    for _ in range(2):
        compiled(torch.randn(4, 4), torch.randn(4, 4))
torch.jit.enable_onednn_fusion(False)
for stage, operators in graphs.items():
    print(f"{stage.value}: {operators}")
assert graphs[before] == "aten::mul aten::relu aten::exp"
if torch.backends.mkldnn.is_available():
    assert "prim::oneDNNFusionGroup" in graphs[behind]
    assert "aten::relu" not in graphs[behind]

# %% [markdown]
# ## 7. Handles
#
# `schedule` is for the whole process, all threads, until its handle is removed. Handles can be
# switched off and on. Passes of a stage run in the order of their handles, lower numbers first. A
# name, a `Pipeline`, a `RewriteRule` or a function can be scheduled.


# %%
def pattern(x: Tensor) -> Tensor:
    """The pattern of the rule."""
    return torch.sigmoid(torch.relu(x))


def replacement(x: Tensor) -> Tensor:
    """Its replacement."""
    return torch.tanh(x)


def model(x: Tensor) -> Tensor:
    """A graph for both passes."""
    return torch.sigmoid(torch.relu(x))


to_gelu = jit_passes.schedule(pipeline)
to_tanh = jit_passes.schedule(jit_passes.RewriteRule("to_tanh", pattern, replacement), order=-1)
print(jit_passes.scheduled_passes())
rule_first = torch.jit.script(model)(x)
to_tanh.order = 1
gelu_first = torch.jit.script(model)(x)
to_gelu.disable()
rule_alone = torch.jit.script(model)(x)
to_gelu.remove()
to_tanh.remove()
assert torch.equal(rule_first, torch.tanh(x))
assert torch.allclose(gelu_first, torch.sigmoid(nn.functional.gelu(x)))  # no relu for the rule
assert torch.equal(rule_alone, torch.tanh(x))
assert torch.equal(torch.jit.script(model)(x), torch.sigmoid(torch.relu(x)))

# %% [markdown]
# ## 8. When a pass fails
#
# The error comes out of the call that made the pass run, and names the stage and the pass. Nothing
# has changed: a pass works on a copy.


# %%
def fail(graph: GraphEditor) -> None:
    """Break something, and fail."""
    relu_to_gelu(graph)
    raise ValueError("out of registers")


def unlucky(x: Tensor) -> Tensor:
    """A relu, and nothing prepared yet."""
    return torch.relu(x)


compiled = torch.jit.script(unlucky)
for stage, call in ((Stage.BEFORE_AUTOGRAD, lambda: torch.jit.script(nn.ReLU())),
                    (Stage.AFTER_AUTOGRAD, lambda: [compiled(x) for _ in range(2)])):  # fmt: skip
    with jit_passes.scheduled(fail, stage=stage):
        try:
            call()
        except jit_passes.PassError as error:
            print(error)
            assert stage.value in str(error) and "out of registers" in str(error)
        else:
            raise AssertionError("the pass has not run")
assert compiled(x).item() == RELU[0]

# %% [markdown]
# ## Which one?
#
# | | before autograd | after autograd | after fusion |
# | --- | --- | --- | --- |
# | runs | when something is compiled | when a graph is prepared | when a graph is prepared |
# | graph | whole | whole, or its differentiated parts | as after autograd, with fused kernels |
# | has the module | yes | no | no |
# | gradient follows | yes | no | no |
# | good for | new operators, approximations | the same results by other operators | the rest |
