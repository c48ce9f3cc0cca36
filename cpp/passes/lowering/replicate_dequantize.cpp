// Give each use of a dequantized value a dequantize of its own in the block of the use, so that patterns match one
// use independently of the others.
//
//   %d = jit_passes::dequantize(%q, ...)        %d1 = jit_passes::dequantize(%q, ...)
//   %a = aten::conv2d(%d, ...)             ->   %a = aten::conv2d(%d1, ...)
//   %b = aten::add(%d, %a, %one)                %d2 = jit_passes::dequantize(%q, ...)
//                                               %b = aten::add(%d2, %a, %one)
//
// If the parameters are chosen at run time, each use gets its own choose_qparams and quantize_dynamic too: kernels
// compute all three.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/places.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

Node* cloneInFrontOf(Node* before, Node* node, const std::function<Value*(Value*)>& operand) {
  return node->owningGraph()->createClone(node, operand)->insertBefore(before);
}

// Copies dequantize, and the nodes that choose its parameters at run time, unless the value is written to: it must
// be read at its place.
Value* copyInFrontOf(Node* before, Node* source, const std::unordered_set<const Value*>& written) {
  std::unordered_map<Value*, Value*> copies;
  const auto operand = [&](Value* value) {
    const auto found = copies.find(value);
    return found == copies.end() ? value : found->second;
  };
  Node* codes = inputOf(source, "q")->node();
  Node* choice = codes->kind() == quantize_dynamic ? inputOf(codes, "scale")->node() : nullptr;
  if (choice != nullptr && choice->kind() == choose_qparams && !written.count(inputOf(codes, "x"))) {
    for (Node* node : {choice, codes}) {
      Node* copy = cloneInFrontOf(before, node, operand);
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        copies[node->output(i)] = copy->output(i);
      }
    }
  }
  return cloneInFrontOf(before, source, operand)->output();
}

// The choose_qparams of a use that quantizes at run time; null for other uses. choose_qparams and quantize_dynamic
// read one copy.
Node* choiceOf(Node* user) {
  if (user->kind() == quantize_dynamic) {
    user = inputOf(user, "scale")->node();
  }
  return user->kind() == choose_qparams ? user : nullptr;
}

bool replicate(Node* source, const std::unordered_set<const Value*>& written) {
  if (written.count(source->output())) {
    return false;
  }
  const auto uses = source->output()->uses(); // a copy: the loop edits the list
  if (uses.empty()) {
    return false;
  }
  const Node* first = choiceOf(uses[0].user);
  const bool one = uses.size() == 1 || std::ranges::all_of(uses, [&](const Use& use) {
                     return first != nullptr && choiceOf(use.user) == first;
                   });
  if (one && uses[0].user->owningBlock() == source->owningBlock()) {
    return false;
  }
  std::unordered_map<Node*, Value*> shared;
  for (const auto& use : uses) {
    Node* choice = choiceOf(use.user);
    if (choice != nullptr && inputOf(choice, "x") != source->output() && shared.count(choice) == 0) {
      choice = nullptr;
    }
    Value* copy = choice == nullptr ? nullptr : shared[choice];
    if (copy == nullptr) {
      copy = copyInFrontOf(choice == nullptr ? use.user : choice, source, written);
      handOverPlace(source, copy->node());
    }
    if (choice != nullptr) {
      shared[choice] = copy;
    }
    use.user->replaceInput(use.offset, copy);
  }
  source->destroy();
  return true;
}

bool replicateDequantize(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  bool changed = false;
  // The chains with dynamic parameters first: their copies read results of the others.
  for (const bool dynamic : {true, false}) {
    changed |= changeNodes(*graph, [&](Node* node) {
      const bool taken = startsWith(node, "jit_passes::dequantize") &&
                         startsWith(node, "jit_passes::dequantize_dynamic") == dynamic;
      return taken && replicate(node, written);
    });
  }
  if (changed) {
    removeDeadNodes(graph);
  }
  return changed;
}

const RegisterPass replicate_dequantize_pass{
    "replicate_dequantize", "Give each use of a dequantized value its own dequantize.", replicateDequantize,
    needs("no_observers")};

} // namespace
} // namespace jit_passes
