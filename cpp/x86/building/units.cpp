#include "units.h"

#include "graph/dialect.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {
namespace {

// Whether a node quantizes the value, or clips or moves it before that.
bool leavesForLater(const Node* node, const Value* value) {
  if (node->kind() == c10::prim::Return || node->inputs().empty() || node->input(0) != value) {
    return false;
  }
  return node->kind() == quantize || node->kind() == c10::prim::ListUnpack || keepsCodes(node) ||
         isClip(node);
}

// The layers that have factors for a sum.
bool addsBeforeRounding(const Declaration& declaration) {
  return declaration.layer != LayerKind::None && declaration.tensors.most > kFactors;
}

bool joinsChannels(const Node* node) {
  return node->kind() == c10::aten::cat && constantNumber(node, "dim") == kAffineAxis;
}

// The operator that reads a value, itself or as an element of a list for it alone.
const Node* readerOf(const torch::jit::Use& use) {
  const Node* user = use.user;
  const bool list = user->kind() == c10::prim::ListConstruct && user->output()->uses().size() == 1;
  return list ? user->output()->uses()[0].user : user;
}

} // namespace

bool isQuantizedLater(const Value* value) {
  std::vector<const Value*> left{value};
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i]->uses().empty()) {
      return false;
    }
    for (const torch::jit::Use& use : left[i]->uses()) {
      if (use.user->owningBlock() != value->node()->owningBlock() || !leavesForLater(use.user, left[i])) {
        return false;
      }
      if (use.user->kind() == c10::prim::ListUnpack) {
        left.insert(left.end(), use.user->outputs().begin(), use.user->outputs().end());
      } else if (use.user->kind() != quantize) {
        left.push_back(resultOf(use.user));
      }
    }
  }
  return true;
}

std::vector<std::string> summedKinds() {
  std::vector<std::string> kinds;
  for (const auto& [kind, source] : sources()) {
    if (source.declaration && addsBeforeRounding(*source.declaration)) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

bool isSummed(const Node* node, const Operator& layer) {
  const auto& uses = node->output()->uses();
  return addsBeforeRounding(declarationOf(layer.kind)) && !hasSum(layer) && uses.size() == 1 &&
         uses[0].user->owningBlock() == node->owningBlock() &&
         (uses[0].user->kind() == c10::aten::add || uses[0].user->kind() == c10::aten::sub);
}

bool takesParts(const Node* reader, const Node* maker) {
  return joinsChannels(maker) && (reader->kind() == c10::aten::batch_norm || joinsChannels(reader));
}

bool isReadInParts(const Node* node) {
  const auto takes = [&](const torch::jit::Use& use) { return takesParts(readerOf(use), node); };
  return joinsChannels(node) && !node->output()->uses().empty() &&
         std::ranges::all_of(node->output()->uses(), takes);
}

std::map<int64_t, std::vector<int64_t>> partsTaken(
    const torch::jit::Module& module, const std::string& method) {
  const auto nodes = nodesInOrder(*module.get_method(method).graph());
  std::unordered_map<const Node*, int64_t> numbers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    numbers.emplace(nodes[i], i);
  }
  std::map<int64_t, std::vector<int64_t>> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!joinsChannels(nodes[i])) {
      continue;
    }
    for (const torch::jit::Use& use : nodes[i]->output()->uses()) {
      if (const Node* reader = readerOf(use); takesParts(reader, nodes[i])) {
        found[numbers.at(reader)].push_back(i);
      }
    }
  }
  return found;
}

} // namespace jit_passes::x86
