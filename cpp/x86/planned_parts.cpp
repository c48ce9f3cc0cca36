#include "planned_parts.h"

#include "core/places.h"

namespace jit_passes::x86 {
namespace {

Planned parts(const Reader& reader, Node* node, int64_t how, std::vector<int64_t> sizes) {
  const Node* reads = node->output()->uses().size() == 1 ? node->output()->uses()[0].user : nullptr;
  refuseUnless(
      reads && reads->kind() == c10::prim::ListUnpack && reads->owningBlock() == node->owningBlock(),
      "its results stay a list");
  const int64_t axis = reader.operand(node, "dim").toInt(), count = reads->outputs().size();
  std::vector<int64_t> a{axis, 0, count, how};
  a.insert(a.end(), sizes.begin(), sizes.end());
  return {{Kind::Part, "", {}, 0, a, {}}, {node->input(0)}};
}

} // namespace

Planned unflatten(const Reader& reader, Node* node) {
  Planned planned{{Kind::Unflatten, "", {}, 0, {reader.operand(node, "dim").toInt()}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "sizes"));
  return planned;
}

Planned transpose(const Reader& reader, Node* node) {
  const std::vector<int64_t> axes{reader.operand(node, "dim0").toInt(), reader.operand(node, "dim1").toInt()};
  return {{Kind::Transpose, "", {}, 0, axes, {}}, {node->input(0)}};
}

Planned unsqueeze(const Reader& reader, Node* node) {
  return {{Kind::Unsqueeze, "", {}, 0, {reader.operand(node, "dim").toInt()}, {}}, {node->input(0)}};
}

Planned squeeze(const Reader& reader, Node* node) {
  refuseUnless(operandOf(node, "dim") != nullptr, "it takes away all axes of size 1");
  const auto dim = reader.operand(node, "dim");
  const auto axes = dim.isInt() ? std::vector{dim.toInt()} : dim.toIntVector();
  refuseUnless(!axes.empty() && int64_t(axes.size()) <= kMostMovedAxes, "it has ", axes.size(), " axes");
  return {{Kind::Squeeze, "", {}, 0, axes, {}}, {node->input(0)}};
}

Planned expand(const Reader& reader, Node* node) {
  Planned planned{{Kind::Expand, "", {}, 0, {}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "size"));
  return planned;
}

Planned roll(const Reader& reader, Node* node) {
  auto a = reader.operand(node, "shifts").toIntVector();
  const auto axes = reader.operand(node, "dims").toIntVector();
  refuseUnless(!axes.empty() && a.size() == axes.size(), "it rolls all elements as one row");
  a.insert(a.end(), axes.begin(), axes.end());
  return {{Kind::Roll, "", {}, 0, a, {}}, {node->input(0)}};
}

Planned channelShuffle(const Reader& reader, Node* node) {
  return {{Kind::Shuffle, "", {}, 0, {1, reader.operand(node, "groups").toInt()}, {}}, {node->input(0)}};
}

Planned slice(const Reader& reader, Node* node) {
  constexpr int64_t kFar = int64_t{1} << 40; // beyond all ends
  Planned planned{{Kind::Slice, "", {}, 0, {reader.operand(node, "dim").toInt()}, {}}, {node->input(0)}};
  for (const auto& [name, otherwise] : {std::pair("start", int64_t{0}), std::pair("end", kFar)}) {
    Numbers end = reader.has(node, name) ? reader.numbers(node, name) : Numbers{{otherwise}, {}};
    end.known[0] = std::clamp(end.known[0], -kFar, kFar);
    append(planned, end);
  }
  planned.op.attributes.push_back(reader.has(node, "step") ? reader.operand(node, "step").toInt() : 1);
  return planned;
}

Planned narrow(const Reader& reader, Node* node) {
  refuseUnless(
      node->input(2)->type()->kind() == c10::TypeKind::IntType, "the model computes where it begins");
  Planned planned{{Kind::Narrow, "", {}, 0, {reader.operand(node, "dim").toInt()}, {}}, {node->input(0)}};
  append(planned, reader.numbers(node, "start"));
  append(planned, reader.numbers(node, "length"));
  planned.op.attributes.push_back(false);
  return planned;
}

Planned select(const Reader& reader, Node* node) {
  const std::vector<int64_t> a{
      reader.operand(node, "dim").toInt(), reader.operand(node, "index").toInt(), 1, true};
  return {{Kind::Narrow, "", {}, 0, a, {}}, {node->input(0)}};
}

Planned chunk(const Reader& reader, Node* node) {
  return parts(reader, node, PartAttributes::Chunks, {reader.operand(node, "chunks").toInt()});
}

Planned unbind(const Reader& reader, Node* node) { return parts(reader, node, PartAttributes::Single, {1}); }

Planned split(const Reader& reader, Node* node) {
  const auto size = reader.find(node->input(1));
  refuseUnless(size.has_value(), "the model computes its sizes");
  return size->isInt() ? parts(reader, node, PartAttributes::Equal, {size->toInt()})
                       : parts(reader, node, PartAttributes::Listed, size->toIntVector());
}

} // namespace jit_passes::x86
