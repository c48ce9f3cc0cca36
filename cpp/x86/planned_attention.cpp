// Operators of transformers.
#include "planned_attention.h"

#include "core/places.h"

namespace jit_passes::x86 {

Planned matrixProduct(const Reader&, Node* node) {
  return {{Kind::MatrixProduct, "", {}, 0, {0}, {}}, {node->input(0), node->input(1)}};
}

Planned batchedProduct(const Reader&, Node* node) {
  return {{Kind::MatrixProduct, "", {}, 0, {1}, {}}, {node->input(0), node->input(1)}};
}

Planned softmax(const Reader& reader, Node* node) {
  refuseUnless(
      !reader.has(node, "dtype") || reader.operand(node, "dtype").toInt() == static_cast<int64_t>(at::kFloat),
      "it changes the dtype");
  const bool hides = node->kind() != c10::aten::softmax;
  return {{Kind::Softmax, "", {}, 0, {reader.operand(node, "dim").toInt(), hides}, {}}, {node->input(0)}};
}

namespace {

// The tensors of a norm over so many channels.
std::vector<at::Tensor> normTensors(const Reader& reader, const Node* node, int64_t channels) {
  const auto numbers = [&](const char* name, double unless) {
    if (!reader.has(node, name)) {
      return at::full({channels}, unless, at::kFloat);
    }
    const auto given = reader.operand(node, name).toTensor().detach().to(at::kFloat).contiguous();
    refuseUnless(at::isfinite(given).all().item<bool>(), "its operand '", name, "' is not finite");
    return given;
  };
  const double eps =
      reader.has(node, "eps") ? reader.number(node, "eps") : std::numeric_limits<float>::epsilon();
  refuseUnless(eps > 0, "it adds ", eps, " to the variance, and a plan needs a number above 0");
  return {numbers("weight", 1), numbers("bias", 0), at::full({1}, eps, at::kDouble)};
}

Planned normOfRows(Kind kind, const Reader& reader, Node* node) {
  const auto shape = reader.operand(node, "normalized_shape").toIntVector();
  refuseUnless(
      shape.size() == 1, "it goes over ", shape.size(), " axes, and a plan has it over the last one");
  return {{kind, "", {}, 0, {}, normTensors(reader, node, shape[0])}, {node->input(0)}};
}

} // namespace

Planned layerNorm(const Reader& reader, Node* node) { return normOfRows(Kind::LayerNorm, reader, node); }

// PyTorch has no bias for it.
Planned rmsNorm(const Reader& reader, Node* node) { return normOfRows(Kind::RmsNorm, reader, node); }

Planned groupNorm(const Reader& reader, Node* node) {
  refuseUnless(reader.has(node, "weight"), "it has no weight, by which its channels are known");
  const int64_t channels = reader.operand(node, "weight").toTensor().numel();
  const int64_t groups = reader.operand(node, "num_groups").toInt();
  return {{Kind::GroupNorm, "", {}, 0, {groups}, normTensors(reader, node, channels)}, {node->input(0)}};
}

} // namespace jit_passes::x86
