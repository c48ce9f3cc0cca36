// Keep one copy of equal constants, at the start of the graph.
//
//   %a : int = prim::Constant[value=1]()          %a : int = prim::Constant[value=1]()
//   %b : int = prim::Constant[value=1]()    ->    %c = aten::add(%x, %a, %a)
//   %c = aten::add(%x, %a, %b)
//
// This takes linear time, by hashing. Two tensors are equal if they have one memory, or if they are small and have
// equal bytes.
#include "graph/graph.h"
#include "graph/keys.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

constexpr int64_t kSmall = 4096; // elements of tensors that are compared by content

std::optional<std::string> tensorKey(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_quantized() || !tensor.device().is_cpu()) {
    return std::nullopt;
  }
  std::string key = "tensor" + std::string(c10::toString(tensor.scalar_type()));
  for (const auto& numbers : {tensor.sizes(), tensor.strides()}) {
    appendBytes(key, numbers.data(), numbers.size() * sizeof(int64_t));
    key += '|';
  }
  if (tensor.is_contiguous() && tensor.numel() <= kSmall) {
    appendBytes(key, tensor.const_data_ptr(), tensor.nbytes());
  } else {
    const void* address = tensor.const_data_ptr();
    appendBytes(key, &address, sizeof(address));
  }
  return key;
}

// The key of a constant: equal keys mean equal constants. Nothing for types that are not pooled.
std::optional<std::string> keyOf(const Value* value) {
  const auto constant = constantOf(value);
  if (!constant) {
    return std::nullopt;
  }
  if (constant->isTensor()) {
    return tensorKey(constant->toTensor());
  }
  std::string key = value->type()->str() + "|";
  const auto append = [&](const auto& numbers) {
    appendBytes(key, numbers.data(), numbers.size() * sizeof(numbers[0]));
  };
  if (constant->isDouble()) {
    append(std::array{constant->toDouble()});
  } else if (constant->isInt()) {
    append(std::array{constant->toInt()});
  } else if (constant->isBool()) {
    append(std::array{constant->toBool()});
  } else if (constant->isDoubleList()) {
    append(constant->toDoubleVector());
  } else if (constant->isIntList()) {
    append(constant->toIntVector());
  } else if (constant->isNone() || constant->isString() || constant->isBoolList() || constant->isDevice()) {
    std::ostringstream text;
    text << *constant;
    key += text.str();
  } else {
    return std::nullopt;
  }
  return key;
}

bool poolConstants(PassContext& context) {
  const auto graph = context.graph();
  std::unordered_map<std::string, Value*> known;
  std::vector<Node*> kept;
  bool changed = false;
  forEachNode(*graph, [&](Node* node) {
    if (node->kind() != prim::Constant) {
      return;
    }
    const auto key = keyOf(node->output());
    const auto [found, is_new] = key ? known.emplace(*key, node->output()) : std::pair(known.end(), true);
    if (is_new) {
      kept.push_back(node);
    } else {
      changed = true;
      replaceNode(node, found->second);
    }
  });
  Node* place = graph->block()->nodes().front();
  for (const Node* node : kept) {
    changed |= node != place;
    place = place->next();
  }
  // From the last to the first: a graph prepends in constant time, but renumbers its nodes if many are put between
  // two others.
  for (auto node = kept.rbegin(); changed && node != kept.rend(); ++node) {
    if (Node* front = graph->block()->nodes().front(); *node != front) {
      (*node)->moveBefore(front);
    }
  }
  return changed;
}

const RegisterPass pool_constants_pass{"pool_constants", "Keep one copy of equal constants.", poolConstants};

} // namespace
} // namespace jit_passes
