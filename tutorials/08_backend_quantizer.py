# %% [markdown]
# # A quantizer for your own backend
#
# You have an accelerator, or a compiler for one, and know its integer operators: their bits, and
# which tensors must share a scale. This text puts these rules into a *quantizer*, a class of some
# eighty lines, and takes a ResNet-18 through it: read the graph, annotate it with the four kinds of
# specification, prepare, calibrate, convert, and check each scale in the result.
#
# The accelerator is imaginary. Its name is Mill, and its rules are:
#
# 1. Activations are uint8 with a zero point and one scale for each tensor.
# 2. Weights are int8 or narrower, symmetric, with one scale for each output channel.
# 3. A bias is int32 in steps of input scale times weight scale, so that it can be added directly to
#    the sum of products.
# 4. A relu behind a convolution or an addition is part of it, and costs nothing.
# 5. An addition adds integers, so its two operands have one scale.
# 6. Max pooling and flatten pass integers on, so their result has the scale of their operand.
# 7. Sigmoid is a table of 256 entries whose results are multiples of 1/256.
# 8. There are no convolutions in groups.
#
# Tutorials 01 (quantizing with an existing quantizer) and 02 (reading graphs) help here.
#
# Run this file whole (`python tutorials/08_backend_quantizer.py`, some seconds), or cell by cell in
# an editor that supports `# %%`. Assertions check the claims.

# %%
import warnings
from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import GraphView, JitPassesError, JitPassesWarning, NodeView
from jit_passes.observers import MinMax
from jit_passes.quantizer import (
    Annotations,
    ComposableQuantizer,
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QParams,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
    derivation,
)

warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it

# %% [markdown]
# ## 1. The network
#
# ResNet-18 of the paper (He et al., arXiv:1512.03385), with random weights. The batch
# normalizations get their statistics from a few batches, as in training: `momentum` None takes the
# average of all. The head is a sigmoid: a hundred labels, each with its own probability, and
# several may hold. Its result has a range for which no data are needed. Images are smooth noise.


# %%
class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a residual addition."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """Images `[N, 3, H, W]` to probabilities `[N, labels]`."""

    def __init__(self, labels: int = 100) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, labels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.sigmoid(self.fc(torch.flatten(self.avgpool(x), 1)))


def make_images(count: int = 16) -> Tensor:
    """Random images of 64x64 pixels."""
    return F.interpolate(torch.randn(count, 3, 8, 8), size=64, mode="bilinear")


torch.manual_seed(0)
network = ResNet18()
nn.init.normal_(network.fc.weight, std=0.1)  # so that probabilities are not all one half
batches = [make_images() for _ in range(4)]
for module in network.modules():
    if isinstance(module, nn.BatchNorm2d):
        module.momentum = None
with torch.no_grad():
    for batch in batches:
        network(batch)
model = torch.jit.script(network.eval())

# %% [markdown]
# ## 2. The graph that a quantizer sees
#
# A quantizer is a class with a method `annotate`. Its argument is the *normalized* graph: calls are
# inlined, batch normalizations folded into the convolutions, and in-place operators replaced where
# the result stays equal. Its result is annotations.
#
# `normalized_graph` returns that graph as plain Python data, a `GraphView`. A node has a stable
# name, a kind, the path and class of its module, operands and results. A value has its constant and
# its shape, if known, its producer and its users.


# %%
graph = jit_passes.normalized_graph(model)
operators = [node for node in graph.nodes if node.kind.startswith("aten::")]
for node in operators[:9]:
    print(f"{node.name:24} {node.kind:18} in {node.module!r}, a {node.module_type}")
print(Counter(node.kind for node in operators))
kinds = Counter(node.kind for node in operators)
assert kinds["aten::conv2d"] == 20 and kinds["aten::add"] == 8 and kinds["aten::relu"] == 17
assert "aten::batch_norm" not in kinds and "aten::add_" not in kinds


def node_named(graph: GraphView, name: str) -> NodeView:
    """The node of that stable name."""
    return next(node for node in graph.nodes if node.name == name)


first = node_named(graph, "conv1:conv2d")
image, weight, bias, stride, padding, dilation, groups = first.inputs
print(image, weight, bias, stride, padding, dilation, groups)
assert image is graph.inputs[0] and image.shape is None  # a script does not know shapes of inputs
assert weight.shape == (64, 3, 7, 7) and stride.constant == [2, 2] and groups.constant == 1
assert bias.is_constant  # the folded batch normalization made it

# %% [markdown]
# ## 3. Four kinds of specification
#
# | class | scale and zero point |
# | --- | --- |
# | `QuantizationSpec` | from calibration |
# | `SharedQuantizationSpec` | equal to another value's |
# | `DerivedQuantizationSpec` | computed by a function from other values' |
# | `FixedQParamsQuantizationSpec` | known beforehand |
#
# Rules 1, 2 and 7 can be written down directly. The symmetric weight leaves -128 out, so that as
# many codes lie below 0 as above.

# %%
ACTIVATION = QuantizationSpec("uint8", qscheme="per_tensor_affine")
WEIGHT = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", ch_axis=0, observer=MinMax())
PROBABILITY = FixedQParamsQuantizationSpec(scale=1 / 256, zero_point=0, dtype="uint8")
for words, wrong in (
    ("a range that uint8 does not hold", {"dtype": "uint8", "quant_max": 256}),
    ("channels without an axis", {"qscheme": "per_channel_symmetric"}),
):
    try:
        QuantizationSpec(**wrong)
    except ValueError as error:
        print(f"{words}: {error}")
    else:
        raise AssertionError(words)

# %% [markdown]
# Rule 3 needs a function. The function gets the parameters of input and weight, and returns scale
# and zero point; here one scale for each channel, as the weight has. A saved prepared model has the
# function's name. `@derivation` registers it under that name in each process that imports it.


# %%
@derivation
def accumulator_steps(sources: list[QParams]) -> tuple[Tensor, int]:
    """Input scale times weight scale, and 0."""
    inputs, weight = sources
    return inputs.scale * weight.scale, 0


# %% [markdown]
# ## 4. The quantizer
#
# An annotation says for one operator how it sees its operands (`input_qspec_map`) and how all
# others see its result (`output_qspec`). Operands are named by their values.
#
# - **Implicit sharing.** A convolution reads the result of an addition with the specification
#   `ACTIVATION`, and the addition has given its result this specification too. Equal specifications
#   of one value are one quantization, without a further statement.
# - **Explicit sharing.** Different values share only by a statement. `(value, node)` is the value
#   as that node sees it.
# - **A relu that belongs to the operator in front** (rule 4). The result of the relu is quantized,
#   and nothing is rounded between the two. `part_of` says that both are quantized, or neither.
# - **observed=False**: the numbers of a max pool need no observer, because they are all among the
#   numbers of its operand.
#
# `validate` checks all annotations, also from other quantizers (section 8). Operators that Mill
# does not have are refused. An operator without annotation stays in float, and `reasons` says why.


# %%
class MillQuantizer(Quantizer):
    """The operators and specifications of Mill."""

    target = "reference"

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node in graph.nodes:
            if node.kind in ("aten::conv2d", "aten::linear"):
                self.annotate_weighted(node, annotations)
            elif node.kind == "aten::add":
                self.annotate_sum(node, annotations)
            elif node.kind in ("aten::max_pool2d", "aten::flatten"):
                x = node.inputs[0]
                result = SharedQuantizationSpec((x, node), observed=False)
                annotations[node] = QuantizationAnnotation({x: ACTIVATION}, result)
            elif node.kind == "aten::adaptive_avg_pool2d":
                annotations[node] = QuantizationAnnotation({node.inputs[0]: ACTIVATION}, ACTIVATION)
            elif node.kind == "aten::sigmoid":
                annotations[node] = QuantizationAnnotation(
                    {node.inputs[0]: ACTIVATION}, PROBABILITY
                )
        return annotations

    def annotate_weighted(self, node: NodeView, annotations: Annotations) -> None:
        x, weight, bias = node.inputs[:3]
        if node.kind == "aten::conv2d" and node.inputs[6].constant != 1:
            annotations.reasons[node.name] = "Mill has no convolutions in groups"
            return
        operands = {x: ACTIVATION, weight: WEIGHT}
        if bias.constant is not None:
            operands[bias] = DerivedQuantizationSpec(
                derived_from=((x, node), (weight, node)),
                derive_qparams_fn=accumulator_steps,
                dtype="int32",
                qscheme="per_channel_symmetric",
                ch_axis=0,
            )
        self.annotate_with_relu(node, operands, annotations)

    def annotate_sum(self, node: NodeView, annotations: Annotations) -> None:
        if not node.output.is_tensor:  # sums of numbers have the same name
            return
        left, right, alpha = node.inputs
        if not (right.is_tensor and alpha.constant == 1):
            return
        operands = {left: ACTIVATION, right: SharedQuantizationSpec((left, node))}
        self.annotate_with_relu(node, operands, annotations)

    def annotate_with_relu(self, node: NodeView, operands: dict, annotations: Annotations) -> None:
        users = [user for user, _ in node.output.uses]
        if len(users) == 1 and users[0].kind == "aten::relu" and not node.output.is_result:
            annotations[node] = QuantizationAnnotation(operands)
            annotations[users[0]] = QuantizationAnnotation({}, ACTIVATION, part_of=node)
        else:
            annotations[node] = QuantizationAnnotation(operands, ACTIVATION)

    def validate(self, annotations: Annotations) -> None:
        for node, annotation in annotations.items():
            operands = annotation.input_qspec_map
            if node.kind in ("aten::conv2d", "aten::linear"):
                check_weight(node, operands.get(node.inputs[1]))
            for spec in (*operands.values(), annotation.output_qspec):
                if isinstance(spec, QuantizationSpec) and spec.dtype not in ("uint8", "int8"):
                    raise JitPassesError(f"Mill has no {spec.dtype}: '{node.name}' asks for it")


def check_weight(node: NodeView, spec: object) -> None:
    """Raise an error for a weight that Mill does not have."""
    if not isinstance(spec, QuantizationSpec):
        raise JitPassesError(f"Mill has no float weights: annotate that of '{node.name}'")
    if not (spec.dtype == "int8" and spec.symmetric and spec.ch_axis == 0):
        raise JitPassesError(
            "Mill's weights are int8, symmetric, one scale for each output channel: that of "
            f"'{node.name}' is to be {spec.dtype}, {spec.qscheme}"
        )


# %% [markdown]
# Printed annotations are a table. `prepare` calls `annotate` itself; this cell calls it to show the
# table.

# %%
mill = MillQuantizer()
annotations = mill.annotate(graph)
table = str(annotations).splitlines()
print("\n".join(table[:16]), "\n...\n", table[-1], sep="")
words = [line.split() for line in table]
assert words[0][-6:] == ["x", "uint8", "[0,", "255]", "per_tensor_affine", "Histogram"]
assert ["result", "as", "relu:relu", "->", "maxpool:max_pool2d"] in words
assert words[-1] == ["result", "uint8", "fixed", "scale", "0.00390625", "zero_point", "0"]

# %% [markdown]
# ## 5. Prepare, calibrate, convert, lower
#
# The target `reference` takes every specification. The result has float operators between
# `jit_passes::quantize` and `jit_passes::dequantize`, with constants stored as integers:
# dequantize, operator, quantize is one operator of Mill. A compiler can read this model, and its
# results define Mill's.

# %%
prepared = jit_passes.prepare(model, quantizer=mill)
jit_passes.calibrate(prepared, batches)
reference = jit_passes.convert(prepared)
lowered = jit_passes.lower(reference)
print(jit_passes.coverage(lowered))
assert len(jit_passes.coverage(lowered).int8) == 21 and not jit_passes.coverage(lowered).float

# %% [markdown]
# The coverage report lists convolutions, linears and matrix products. For the others, read the
# graph. An operator between a dequantize and a quantize is an integer operator. No other computing
# operator is left.


# %%
def makers(graph: GraphView) -> Counter[str]:
    """The kinds of operators whose results are quantized."""
    quantizes = [node for node in graph.nodes if node.kind == "jit_passes::quantize"]
    return Counter(node.inputs[0].producer.kind for node in quantizes if node.inputs[0].producer)


converted = GraphView.of(reference)
print(makers(converted))
assert makers(converted) == {
    "aten::relu": 17,  # with the convolution or addition in front
    "aten::conv2d": 11,  # the second ones of the 8 blocks, and 3 that downsample
    "aten::max_pool2d": 1,
    "aten::adaptive_avg_pool2d": 1,
    "aten::flatten": 1,
    "aten::linear": 1,
    "aten::sigmoid": 1,
}

# %% [markdown]
# The target implements rule 7 by itself: sigmoid between dequantize and quantize is a function of
# 256 codes, and the lowered graph has it as a table.

# %%
(lookup,) = [n for n in GraphView.of(lowered).nodes if n.kind == "jit_passes::lookup_table"]
codes, entries, first_code = lookup.inputs
print("table of", entries.constant.numel(), "entries:", entries.constant.tolist()[::32])
assert entries.constant.dtype == torch.uint8 and entries.constant.numel() == 256
with torch.no_grad():
    assert torch.equal(lowered(batches[0]), reference(batches[0]))  # table or not

# %% [markdown]
# ## 6. Reading the scales back
#
# The converted graph shows the scales. `jit_passes::quantize(x, scale, zero_point, ...)` has its
# parameters as constants; the values in front of it keep their names.


# %%
def parameters(graph: GraphView) -> dict[str, tuple[float, int]]:
    """Scale and zero point by the name of the value that is quantized."""
    found = {}
    for node in graph.nodes:
        if node.kind == "jit_passes::quantize":
            x, scale, zero_point = node.inputs[:3]
            found[x.name] = (scale.constant, zero_point.constant)
    return found


def operand(graph: GraphView, name: str, index: int) -> NodeView:
    """The dequantize that makes an operand."""
    return node_named(graph, name).inputs[index].producer


scales = parameters(converted)
for name in ("x", "relu:relu", "maxpool:max_pool2d", "layer1.0.conv2:conv2d", "sigmoid"):
    print(f"{name:24} scale {scales[name][0]:.6f}, zero point {scales[name][1]}")

# Fixed.
assert scales["sigmoid"] == (1 / 256, 0)

# Shared. A max pool with its operand, and the operands of each addition with each other.
assert scales["maxpool:max_pool2d"] == scales["relu:relu"]
assert scales["flatten"] == scales["avgpool:adaptive_avg_pool2d"]
for node in converted.nodes:
    if node.kind == "aten::add":
        left, right = (value.producer for value in node.inputs[:2])
        assert left.kind == right.kind == "jit_passes::dequantize"
        assert left.inputs[1].constant == right.inputs[1].constant, node.name
        assert left.inputs[2].constant == right.inputs[2].constant, node.name

# %% [markdown]
# Shared parameters are chosen once, from the numbers of all sharing values. Sharing is transitive.
# In the first stage, the block adds its own input, the max pool's result, to the result of its
# second convolution: so relu, max pool and convolution have one scale, although no single
# annotation says so. If the shortcut has a convolution, its result is shared instead, and the chain
# ends.

# %%
assert scales["layer1.0.conv2:conv2d"] == scales["relu:relu"]
assert scales["relu:relu"][1] > 0  # the price: a relu with codes below 0, which it never uses
assert scales["layer1.1.conv2:conv2d"] == scales["layer1.0.relu:relu#1"] != scales["relu:relu"]
assert scales["layer2.0.downsample.0:conv2d"] == scales["layer2.0.conv2:conv2d"]
assert scales["layer2.0.conv2:conv2d"] != scales["layer1.1.relu:relu#1"]

# %% [markdown]
# Derived: each bias is stored as int32, with the scale of the accumulator, channel by channel, to
# the last bit of a float32.

# %%
for node in converted.nodes:
    if node.kind in ("aten::conv2d", "aten::linear"):
        inputs, weights, biases = (operand(converted, node.name, i) for i in range(3))
        stored = biases.inputs[0].constant
        product = weights.inputs[1].constant.double() * inputs.inputs[1].constant
        assert stored.dtype == torch.int32 and weights.inputs[0].constant.dtype == torch.int8
        assert torch.equal(biases.inputs[1].constant.double().float(), product.float()), node.name
print("a bias:", stored[:6].tolist(), "in steps of", biases.inputs[1].constant[:2].tolist(), "...")

# %% [markdown]
# ## 7. The loss
#
# The signal to quantization noise ratio measures the error against float: 20 dB is an error of 10
# %, 40 dB one of 1 %. The average probability of a label does not depend on the image, and would
# flatter the number, so it is subtracted first. (The network is not trained: this measures
# arithmetic, not accuracy.)


# %%
def sqnr(expected: Tensor, actual: Tensor) -> float:
    """Signal to quantization noise ratio of what differs between images, in dB."""
    signal = (expected - expected.mean(0)).square().sum()
    return float(10 * torch.log10(signal / (expected - actual).square().sum()))


images = make_images()  # calibration has not seen them
with torch.no_grad():
    expected = network(images)
    eight_bits = sqnr(expected, lowered(images))
print(f"{eight_bits:.1f} dB")
assert eight_bits > 12

# %% [markdown]
# ## 8. Two quantizers
#
# Mill also has convolutions with 4-bit weights, and the last convolution will be one: it has a
# fifth of all weights. A second quantizer annotates this operator only, and `ComposableQuantizer`
# runs both, in order. The later annotation of an operator replaces the earlier one as a whole, so
# it must be complete: take the first quantizer's annotation and replace one entry.
#
# An overwritten annotation may be a mistake. Therefore it is a warning, and `overwritten` lists it.


# %%
class NarrowWeights(MillQuantizer):
    """4-bit weights for the convolutions of some modules."""

    def __init__(self, where: str) -> None:
        self.where = where

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        for node, annotation in super().annotate(graph).items():
            if node.kind == "aten::conv2d" and node.module.startswith(self.where):
                narrow = replace(WEIGHT, quant_min=-7, quant_max=7)
                operands = {**annotation.input_qspec_map, node.inputs[1]: narrow}
                annotations[node] = replace(annotation, input_qspec_map=operands)
        return annotations


both = ComposableQuantizer(MillQuantizer(), NarrowWeights("layer4.1.conv2"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", JitPassesWarning)
    mixed = jit_passes.quantize_script(model, batches, quantizer=both)
print(next(str(w.message) for w in caught if issubclass(w.category, JitPassesWarning)))
print(both.overwritten)
assert both.overwritten == [("layer4.1.conv2:conv2d", "1. MillQuantizer", "2. NarrowWeights")]
with torch.no_grad():
    four_bits = sqnr(expected, mixed(images))
print(f"{eight_bits:.1f} dB with 8 bits, {four_bits:.1f} dB with 4 in one layer")
codes_of = {
    name: operand(GraphView.of(mixed), f"{name}:conv2d", 1).inputs[0].constant
    for name in ("layer4.1.conv1", "layer4.1.conv2")
}
assert codes_of["layer4.1.conv1"].abs().max() == 127
assert codes_of["layer4.1.conv2"].abs().max() == 7
assert eight_bits - 4 < four_bits < eight_bits

# %% [markdown]
# ## 9. Errors
#
# `validate` checks Mill's own rules, whichever quantizer annotated.


# %%
def refusal(quantizer: Quantizer) -> str:
    """The message with which preparing fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitPassesWarning)
        try:
            jit_passes.prepare(model, quantizer=quantizer)
        except JitPassesError as error:
            print(error, "\n")
            return str(error)
    raise AssertionError("this was to be refused")


class AffineWeights(MillQuantizer):
    """Asks for weights that Mill does not have."""

    def annotate(self, graph: GraphView) -> Annotations:
        annotations = Annotations()
        fc = node_named(graph, "fc:linear")
        affine = QuantizationSpec("int8", qscheme="per_tensor_affine")
        annotations[fc] = QuantizationAnnotation(
            {fc.inputs[0]: ACTIVATION, fc.inputs[1]: affine}, ACTIVATION
        )
        return annotations


message = refusal(ComposableQuantizer(MillQuantizer(), AffineWeights()))
assert "'fc:linear' is to be int8, per_tensor_affine" in message

# %% [markdown]
# Some annotations are wrong for any backend: a value that shares with a value that is not
# quantized, in a circle, or with a value whose uses differ. Messages name the values and the line
# of the model. Here one operand of each addition is left out on purpose, and the other still shares
# with it.


# %%
class Forgetful(MillQuantizer):
    """Forgets what others share with."""

    def annotate_sum(self, node: NodeView, annotations: Annotations) -> None:
        left, right = node.inputs[:2]
        annotations[node] = QuantizationAnnotation({right: SharedQuantizationSpec((left, node))})


class Circular(MillQuantizer):
    """Lets two operands share with each other."""

    def annotate_sum(self, node: NodeView, annotations: Annotations) -> None:
        left, right = node.inputs[:2]
        annotations[node] = QuantizationAnnotation(
            {
                left: SharedQuantizationSpec((right, node)),
                right: SharedQuantizationSpec((left, node)),
            }
        )


message = refusal(Forgetful())
assert "shares with 'layer1.0.conv2:conv2d -> layer1.0:add', which is not quantized" in message
message = refusal(Circular())
assert "in a circle" in message

# %% [markdown]
# ## 10. Without a quantizer of your own
#
# Often you need not write `annotate`. `BackendQuantizer` follows a target's `Capability`, and takes
# options layer by layer; `X86Quantizer`, `QnnpackQuantizer` and `PowerOfTwoQuantizer` in
# `jit_passes.targets` are made with it. For rules 5 and 6 it has `equal_operands` and roles.
# Tutorial 09 uses it: [09_layerwise_and_profile.py](09_layerwise_and_profile.py). All rules of
# specifications and sharing are in [docs/quantizers.md](../docs/quantizers.md).
