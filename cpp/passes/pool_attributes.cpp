// Read each attribute of the module once, at the start of the graph.
//
//   %conv = prim::GetAttr[name="conv"](%self)          %conv = prim::GetAttr[name="conv"](%self)
//   %w = prim::GetAttr[name="weight"](%conv)           %w = prim::GetAttr[name="weight"](%conv)
//   %y = aten::conv2d(%x, %w, ...)               ->    %y = aten::conv2d(%x, %w, ...)
//   %conv.1 = prim::GetAttr[name="conv"](%self)        %z = aten::conv2d(%y, %w, ...)
//   %w.1 = prim::GetAttr[name="weight"](%conv.1)
//   %z = aten::conv2d(%y, %w.1, ...)
//
// An attribute that the method assigns stays where it is read. Takes linear time.
#include "core/module.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

// The paths of attributes that are read from self alone, by value; nothing where one may be assigned.
class Paths {
 public:
  explicit Paths(Graph& graph) : self_(graph.inputs().at(0)) {
    forEachNode(graph, [&](const Node* node) {
      if (node->kind() == c10::prim::SetAttr) {
        assigned_.insert(node->s(c10::attr::name));
      }
    });
  }

  std::optional<std::string> of(const Value* value) const {
    const Value* owner = value;
    for (; owner->node()->kind() == c10::prim::GetAttr; owner = owner->node()->input()) {
      if (assigned_.count(owner->node()->s(c10::attr::name))) {
        return std::nullopt;
      }
    }
    return owner == self_ ? std::optional(attributePath(value)) : std::nullopt;
  }

 private:
  const Value* self_;
  std::unordered_set<std::string> assigned_;
};

bool poolAttributes(PassContext& context) {
  const auto graph = context.graph();
  const Paths paths(*graph);
  std::unordered_map<std::string, Value*> known;
  std::vector<std::pair<Node*, std::string>> reads;
  forEachNode(*graph, [&](Node* node) {
    if (node->kind() != c10::prim::GetAttr) {
      return;
    }
    if (const auto path = paths.of(node->output())) {
      reads.emplace_back(node, *path);
    }
  });
  Node* last = nullptr; // of those that were moved: they come in program order, behind self's inputs
  bool changed = false;
  for (const auto& [node, path] : reads) {
    const auto [found, is_new] = known.emplace(path, node->output());
    if (!is_new) {
      node->output()->replaceAllUsesWith(found->second);
      changed = true;
      continue;
    }
    Node* first = graph->block()->nodes().front();
    if (last == nullptr ? first != node : last->next() != node) {
      changed = true;
      if (last == nullptr) {
        node->moveBefore(first);
      } else {
        node->moveAfter(last);
      }
    }
    last = node;
  }
  for (auto read = reads.rbegin(); read != reads.rend(); ++read) {
    if (!read->first->hasUses()) {
      read->first->destroy();
      changed = true;
    }
  }
  return changed;
}

const RegisterPass pool_attributes_pass{
    "pool_attributes", "Read each attribute once, at the start of the graph.", poolAttributes, {"inlined"}};

} // namespace
} // namespace jit_passes
