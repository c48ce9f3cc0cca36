// Padding of an image by zeros, or by elements of the image.
#include "graph/places.h"
#include "positions.h"
#include "x86/building/from_graph.h"
#include "x86/program/checks.h"
#include "x86/running/copies.h"

namespace jit_passes::x86 {

const Kind Kind::Pad("pad");

namespace {

constexpr int64_t kMaxPadding = int64_t{1} << 24;

// The elements that are added: a reflection at the edge, copies of the edge, or elements from the other end of the
// axis.
enum class Around { Reflection, Edge, Wrap };

// The number of elements added before and after an axis.
std::pair<int64_t, int64_t> paddingOf(const Operator& op, int64_t axis, int64_t rank) {
  const size_t at = 2 * (rank - 1 - axis);
  return axis >= 0 && at < op.attributes.size() ? std::pair(op.attributes[at], op.attributes[at + 1])
                                                : std::pair(int64_t{0}, int64_t{0});
}

Planned padded(const RegionReader& reader, Node* node, Kind kind, const char* operand) {
  const Numbers sizes = reader.numbers(node, operand);
  refuseUnless(!sizes.known.empty(), "it pads no axis");
  Planned planned{{kind, "", {}, 0, {}, {}}, {node->input(0)}};
  append(planned, sizes);
  return planned;
}

Planned reflectionPad(const RegionReader& reader, Node* node) {
  return padded(reader, node, Kind("pad_reflect"), "padding");
}

Planned replicationPad(const RegionReader& reader, Node* node) {
  return padded(reader, node, Kind("pad_edge"), "padding");
}

Planned pad(const RegionReader& reader, Node* node) {
  const auto mode = operandOf(node, "mode") ? reader.text(node, "mode") : "constant";
  if (mode != "constant") {
    const char* kind = mode == "reflect" ? "pad_reflect" : mode == "replicate" ? "pad_edge" : "pad_wrap";
    return padded(reader, node, Kind(kind), "pad");
  }
  refuseUnless(
      !reader.has(node, "value") || reader.number(node, "value") == 0, "it pads with another number than 0");
  Planned planned = padded(reader, node, Kind::Pad, "pad");
  refuseUnless(
      std::ranges::all_of(planned.op.attributes, [](int64_t size) { return size >= 0; }),
      "it cuts values off");
  return planned;
}

void checkPad(const Operator& op) {
  refuseUnless(op.attributes.size() % 2 == 0, "a padding on one side only");
  checkEach(op.attributes, op.kind == Kind::Pad ? 0 : -kMaxPadding, kMaxPadding, "a padding");
}

Sizes sizesOfPad(const Operands& operands) {
  const Operator& op = operands.op;
  const int64_t rank = operands.first().size();
  Sizes sizes = operands.first();
  require(
      op, int64_t(op.attributes.size()) <= 2 * rank, "pads more axes than there are, got the shape ", sizes);
  for (int64_t axis = 0; axis < rank; ++axis) {
    const auto [before, behind] = paddingOf(op, axis, rank);
    sizes[axis] += before + behind;
  }
  return sizes;
}

// PyTorch's limits: a reflection does not repeat the edge, and neither a reflection nor a wrap goes around twice.
template <Around kAround>
Sizes sizesOfPadAround(const Operands& operands) {
  const Operator& op = operands.op;
  const int64_t rank = operands.first().size();
  const Sizes sizes = sizesOfPad(operands);
  for (int64_t axis = 0; axis < rank; ++axis) {
    const auto [before, behind] = paddingOf(op, axis, rank);
    const int64_t size = operands.first()[axis], most = size - (kAround == Around::Reflection);
    const bool fits = kAround == Around::Edge ? size > 0 : std::max(before, behind) <= most;
    require(
        op, (before == 0 && behind == 0) || (fits && sizes[axis] > 0), "pads an axis of ", size, " by ",
        before, " and ", behind, ", got the shape ", operands.first());
  }
  return sizes;
}

template <Around kAround>
int64_t positionOfPadded(const Operator& op, int64_t axis, int64_t rank, int64_t at, int64_t size) {
  const int64_t from = at - paddingOf(op, axis, rank).first;
  if constexpr (kAround == Around::Edge) {
    return std::clamp(from, int64_t{0}, size - 1);
  } else if constexpr (kAround == Around::Wrap) {
    return (from + size) % size;
  } else {
    return from < 0 ? -from : from < size ? from : 2 * (size - 1) - from;
  }
}

// Pads with another axis innermost if the channels are padded.
void lowerPad(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  const Sizes &from = state.sizes[op.inputs[0]], &to = state.sizes[op.output];
  int64_t axis = state.memory(state.primary[op.inputs[0]]).axis;
  if (axis >= 0 && from[axis] != to[axis]) {
    for (axis = lastAxis(from); axis >= 0 && from[axis] != to[axis]; --axis) {
    }
  }
  const size_t input = state.want(op.inputs[0], axis);
  state.emit(Does::Compute, index, {input}, axis);
}

Part padKernel(const StepContext& c) {
  const Memory &from = c.in(), &to = c.out();
  const Dims dims = axisDims(to.sizes, to.axis);
  std::array<int64_t, 4> offset{};
  for (size_t i = 0; i < dims.size(); ++i) {
    offset[i] = paddingOf(c.op, dims[i].axis, to.sizes.size()).first;
  }
  Placed x = image(from, axisDims(from.sizes, from.axis)), y = image(to, dims);
  x.image.channels *= to.bytes(), y.image.channels *= to.bytes();
  const auto zero = static_cast<uint8_t>(to.grid->zero_point); // the grid of float32 has 0
  return {y.image.rows(), [=](const Call& call, int64_t begin, int64_t end) {
            padRows(x.in(call), offset, zero, y.in(call), begin, end);
          }};
}

// Attributes: paddings before and after, from the last axis on.
Declaration padding(const char* name, std::vector<From> from) {
  return {
      .name = name,
      .attributes = {2, 8},
      .types = Types::Same,
      .moves = true,
      .from = std::move(from),
      .check = checkPad,
      .infer = sizesOfPad,
      .computes = computesAll,
      .lower = lowerPad,
      .kernel = padKernel};
}

template <Around kAround>
Declaration paddingAround(const char* name, std::vector<From> from) {
  Declaration declaration = withPositions<positionOfPadded<kAround>>(padding(name, std::move(from)));
  declaration.infer = sizesOfPadAround<kAround>;
  declaration.prefers = nullptr; // the sizes decide which axes are not padded
  return declaration;
}

const RegisterOperator pad_operator{padding("pad", {{"constant_pad_nd", pad}, {"pad", pad}})};
const RegisterOperator reflect_operator{paddingAround<Around::Reflection>(
    "pad_reflect", {{"reflection_pad1d", reflectionPad},
                    {"reflection_pad2d", reflectionPad},
                    {"reflection_pad3d", reflectionPad}})};
const RegisterOperator edge_operator{paddingAround<Around::Edge>(
    "pad_edge", {{"replication_pad1d", replicationPad},
                 {"replication_pad2d", replicationPad},
                 {"replication_pad3d", replicationPad}})};
const RegisterOperator wrap_operator{paddingAround<Around::Wrap>("pad_wrap", {})};

} // namespace
} // namespace jit_passes::x86
