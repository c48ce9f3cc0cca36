// Slices and parts of an axis, and the interleaving of parts.
#include "graph/places.h"
#include "x86/building/from_graph.h"
#include "x86/program/numbers.h"
#include "x86/program/parts.h"

#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {

const Kind Kind::Shuffle("shuffle");
const Kind Kind::Slice("slice");
const Kind Kind::Narrow("narrow");

namespace {

using Attributes = std::vector<int64_t>;

const Kind part_kind("part");

// Limit for a number in an attribute; the sum of two does not overflow.
constexpr int64_t kLargest = int64_t{1} << 40;

// The range of at::slice.
Range sliced(const Attributes& a, int64_t axis, int64_t size) {
  const auto inside = [&](int64_t at) { return std::clamp(at < 0 ? at + size : at, int64_t{0}, size); };
  const int64_t start = inside(a[1]), end = std::max(inside(a[2]), start);
  return {axis, start, (end - start + a[3] - 1) / a[3], a[3]};
}

// The sizes of all parts.
Sizes partsOf(const Attributes& a, int64_t size) {
  using A = PartAttributes;
  if (a[A::How] == A::Listed) {
    return {a.begin() + A::Sizes, a.end()};
  }
  const int64_t asked = a[A::Sizes];
  const int64_t each = a[A::How] != A::Chunks ? asked : (size + asked - 1) / asked;
  // An empty axis gives all chunks that are asked for, or one part of equal size.
  const int64_t none = a[A::How] == A::Single ? 0 : a[A::How] == A::Equal ? 1 : asked;
  const int64_t count = size > 0 && each > 0 ? (size + each - 1) / each : none;
  if (count != a[A::Parts] || (each == 0 && size > 0)) {
    return {};
  }
  Sizes sizes(count, each);
  sizes.back() = size - each * (count - 1);
  return sizes;
}

void requireRange(const Operator& op, bool condition) {
  refuseUnless(condition && between(op.attributes[0], -8, 7), "its attributes describe no part of an axis");
}

void checkShuffle(const Operator& op) { requireRange(op, between(op.attributes[1], 1, kLargest)); }

void checkSlice(const Operator& op) {
  const Attributes& a = op.attributes;
  requireRange(
      op,
      between(a[1], -kLargest, kLargest) && between(a[2], -kLargest, kLargest) && between(a[3], 1, kLargest));
}

void checkNarrow(const Operator& op) {
  const Attributes& a = op.attributes;
  requireRange(
      op, between(a[1], -kLargest, kLargest) && between(a[2], 0, kLargest) && between(a[3], 0, 1) &&
              (a[3] == 0 || a[2] == 1));
}

void checkPart(const Operator& op) {
  using A = PartAttributes;
  const Attributes& a = op.attributes;
  const int64_t sizes = a.size() - A::Sizes;
  requireRange(
      op,
      between(a[A::How], A::Chunks, A::Single) && between(a[A::Parts], 1, int64_t{1} << 20) &&
          between(a[A::Number], 0, a[A::Parts] - 1) && sizes == (a[A::How] == A::Listed ? a[A::Parts] : 1) &&
          std::all_of(a.begin() + A::Sizes, a.end(), [&](int64_t size) {
            return between(size, a[A::How] == A::Chunks, kLargest) && (a[A::How] != A::Single || size == 1);
          }));
}

// Whether the operator removes the axis, with one element left.
bool axisGoes(const Operator& op) {
  return op.kind == Kind::Narrow
             ? op.attributes[3] != 0
             : op.kind == part_kind && op.attributes[PartAttributes::How] == PartAttributes::Single;
}

Sizes sizesOfRange(const Operands& operands) {
  const Range range = rangeOf(operands.op, operands.first());
  Sizes sizes = operands.first();
  sizes[range.axis] = range.length;
  if (axisGoes(operands.op)) {
    sizes.erase(sizes.begin() + range.axis);
  }
  return sizes;
}

int64_t axesOfRange(const Operator& op, int64_t first, int64_t /*most*/) {
  return first ? first - axisGoes(op) : 0;
}

bool computesEnds(const Operator& /*op*/, int64_t attribute) { return attribute == 1 || attribute == 2; }

Sizes sizesOfShuffle(const Operands& operands) {
  const Operator& op = operands.op;
  const Sizes& from = operands.first();
  const int64_t axis = checkAxis(op, op.attributes[0], from.size(), from);
  require(
      op, from[axis] % op.attributes[1] == 0, "has ", op.attributes[1], " parts, and got the shape ", from);
  return from;
}

Planned channelShuffle(const RegionReader& reader, Node* node) {
  return {{Kind::Shuffle, "", {}, 0, {1, reader.integer(node, "groups")}, {}}, {node->input(0)}};
}

Planned slice(const RegionReader& reader, Node* node) {
  Planned planned{{Kind::Slice, "", {}, 0, {reader.integer(node, "dim")}, {}}, {node->input(0)}};
  for (const auto& [name, otherwise] : {std::pair("start", int64_t{0}), std::pair("end", kFar)}) {
    Numbers end = reader.has(node, name) ? reader.numbers(node, name) : Numbers{{otherwise}, {}};
    end.known[0] = std::clamp(end.known[0], -kFar, kFar);
    append(planned, end);
  }
  planned.op.attributes.push_back(reader.has(node, "step") ? reader.integer(node, "step") : 1);
  return planned;
}

Planned narrow(const RegionReader& reader, Node* node) {
  refuseUnless(
      node->input(2)->type()->kind() == c10::TypeKind::IntType, "the model computes where it begins");
  Planned planned{{Kind::Narrow, "", {}, 0, {reader.integer(node, "dim")}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "start"));
  append(planned, reader.numbers(node, "length"));
  planned.op.attributes.push_back(false);
  return planned;
}

Planned select(const RegionReader& reader, Node* node) {
  const std::vector<int64_t> a{reader.integer(node, "dim"), reader.integer(node, "index"), 1, true};
  return {{Kind::Narrow, "", {}, 0, a, {}}, {node->input(0)}};
}

Planned parts(const RegionReader& reader, Node* node, int64_t how, std::vector<int64_t> sizes) {
  const Node* reads = node->output()->uses().size() == 1 ? node->output()->uses()[0].user : nullptr;
  refuseUnless(
      reads && reads->kind() == c10::prim::ListUnpack && reads->owningBlock() == node->owningBlock(),
      "its results stay a list");
  const int64_t axis = reader.integer(node, "dim"), count = reads->outputs().size();
  std::vector<int64_t> a{axis, 0, count, how};
  a.insert(a.end(), sizes.begin(), sizes.end());
  return {{part_kind, "", {}, 0, a, {}}, {node->input(0)}};
}

Planned chunk(const RegionReader& reader, Node* node) {
  return parts(reader, node, PartAttributes::Chunks, {reader.integer(node, "chunks")});
}

Planned unbind(const RegionReader& reader, Node* node) {
  return parts(reader, node, PartAttributes::Single, {1});
}

Planned split(const RegionReader& reader, Node* node) {
  const auto size = reader.find(node->input(1));
  refuseUnless(size.has_value(), "the model computes its sizes");
  return size->isInt() ? parts(reader, node, PartAttributes::Equal, {size->toInt()})
                       : parts(reader, node, PartAttributes::Listed, size->toIntVector());
}

Part shuffleKernel(const StepContext& c) {
  const Memory& to = c.out();
  const Dims dims = pixelDims(to.sizes, to.axis);
  std::vector<Placed> parts;
  Interleave kernel;
  for (size_t i = 0; i < c.step.inputs.size(); ++i) {
    parts.push_back(image(c.in(i), dims));
    const at::Tensor& table = c.step.own_tables[i];
    kernel.tables.push_back(table.defined() ? table.const_data_ptr<uint8_t>() : nullptr);
  }
  const Placed y = image(to, dims);
  return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
            // The step interleaves two parts at a time, the common number, so running it allocates nothing.
            for (size_t i = 0; i < parts.size(); i += 2) {
              const bool both = i + 1 < parts.size();
              const Image images[] = {parts[i].in(call), parts[both ? i + 1 : i].in(call)};
              kernel.run(images, i, both ? 2 : 1, y.in(call), begin, end);
            }
          }};
}

// Channels are read in place, and so is a single element of an outer axis, as in `x[:, 0]`. Other ranges are copied,
// unless `nameBlocks` finds that the copy is not needed.
void lowerPart(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Range range = rangeOf(op, state.sizes[op.inputs[0]]);
  const size_t input = state.primary[op.inputs[0]];
  const bool keeps = state.sizes[op.output].size() == state.sizes[op.inputs[0]].size();
  int64_t axis = state.memory(input).axis;
  if (range.step == 1 && state.sizes[op.output] == state.sizes[op.inputs[0]]) {
    return state.rename(index, input, axis);
  }
  if (axis == range.axis && range.step == 1 && keeps) {
    state.primary[op.output] = state.slice(input, &state.program.grids[op.output], range.start, range.length);
    return;
  }
  Sizes axes = identity(state.sizes[op.inputs[0]].size());
  if (!keeps) {
    axes.erase(axes.begin() + range.axis);
    axis = axis == range.axis ? lastAxis(state.sizes[op.output]) : axis - (range.axis < axis);
  }
  state.emit(Does::Copy, index, {input}, axis);
  state.result.steps.back().axes = axes, state.result.steps.back().range = range;
}

void lowerShuffle(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Sizes& sizes = state.sizes[op.output];
  const Grid& grid = state.program.grids[op.output];
  const int64_t axis = axisOf(op.attributes[0], sizes.size()), parts = op.attributes[1];
  std::vector<size_t> inputs;
  if (const auto joined = state.joined.find(op.inputs[0]); joined != state.joined.end()) {
    for (const int64_t part : joined->second->inputs) {
      inputs.push_back(state.want(part, axis));
    }
  } else {
    const size_t whole = state.want(op.inputs[0], axis);
    for (int64_t part = 0, length = sizes[axis] / parts; part < parts; ++part) {
      inputs.push_back(state.slice(whole, &grid, part * length, length));
    }
  }
  std::vector<at::Tensor> tables;
  for (const size_t input : inputs) {
    const Grid& from = *state.memory(input).grid;
    tables.push_back(sameGrid(from, grid) ? at::Tensor() : rescaled(from, grid));
  }
  state.emit(Does::Compute, index, inputs, axis);
  state.result.steps.back().own_tables = std::move(tables);
}

// Interleaves the parts of an axis. Attributes: axis, number of parts, which have equal sizes.
const RegisterOperator shuffle_operator{
    {.name = "shuffle",
     .attributes = {2, 2},
     .moves = true,
     .from = {{"channel_shuffle", channelShuffle}},
     .check = checkShuffle,
     .infer = sizesOfShuffle,
     .channels = axisOfAttribute,
     .lower = lowerShuffle,
     .kernel = shuffleKernel}};
// Attributes: axis, start, end, step, with Python's meaning.
const RegisterOperator slice_operator{
    {.name = "slice",
     .attributes = {4, 4},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .views = true,
     .from = {{"slice", slice}},
     .check = checkSlice,
     .infer = sizesOfRange,
     .computes = computesEnds,
     .lower = lowerPart}};
// Attributes: axis, start, length, and whether the axis is removed, whose length then is 1.
const RegisterOperator narrow_operator{
    {.name = "narrow",
     .attributes = {4, 4},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .views = true,
     .from = {{"narrow", narrow}, {"select", select}},
     .check = checkNarrow,
     .infer = sizesOfRange,
     .least_axes = axesOfRange,
     .computes = computesEnds,
     .lower = lowerPart}};
// Attributes: see PartAttributes.
const RegisterOperator part_operator{
    {.name = "part",
     .attributes = {PartAttributes::Sizes + 1, 4096},
     .types = Types::Same,
     .most_axes = kMostMovedAxes,
     .moves = true,
     .views = true,
     .from =
         {{"chunk", chunk},
          {"unsafe_chunk", chunk},
          {"split", split},
          {"unbind", unbind},
          {"split_with_sizes", split},
          {"unsafe_split", split},
          {"unsafe_split_with_sizes", split}},
     .check = checkPart,
     .infer = sizesOfRange,
     .least_axes = axesOfRange,
     .lower = lowerPart}};

} // namespace

Range rangeOf(const Operator& op, const Sizes& sizes) {
  using A = PartAttributes;
  const Attributes& a = op.attributes;
  const int64_t rank = sizes.size();
  const auto require = [&](bool condition, const auto&... message) {
    TORCH_CHECK(condition, op.name, " (", nameOf(op.kind), ") ", message..., ", and got the shape ", sizes);
  };
  require(between(a[0], -rank, rank - 1), "works along axis ", a[0]);
  const int64_t axis = axisOf(a[0], rank), size = sizes[axis];
  if (op.kind == Kind::Slice) {
    return sliced(a, axis, size);
  }
  if (op.kind == Kind::Narrow) {
    const int64_t start = a[1] < 0 ? a[1] + size : a[1];
    require(start >= 0 && start + a[2] <= size, "takes ", a[2], " from ", a[1], " on along axis ", a[0]);
    return {axis, start, a[2], 1};
  }
  const Sizes parts = partsOf(a, size);
  require(
      !parts.empty() && std::accumulate(parts.begin(), parts.end(), int64_t{0}) == size, "splits axis ", a[0],
      " into ", a[A::Parts], " parts");
  const auto here = parts.begin() + a[A::Number];
  return {axis, std::accumulate(parts.begin(), here, int64_t{0}), *here, 1};
}

} // namespace jit_passes::x86
