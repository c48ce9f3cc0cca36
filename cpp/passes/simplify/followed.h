// Containers that a graph fills step by step, lists and dictionaries, and what they hold at each place.
//
// A container is followed from its literal on, through the block that makes it: as long as nobody else can have it, its
// content is known. Whoever may keep it, hand it on, or write to it in another way ends that: this node and all behind
// it share one last literal, which is the object itself from there on. Nested blocks may read.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

// Whether the node looks at a container, and neither writes to it nor keeps or returns it.
bool onlyReads(const Node* node, size_t input);

template <typename Content>
class Followed {
 public:
  virtual ~Followed() = default;

  // Returns whether it changed something.
  bool resolve(Block* block) {
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      Node* node = *it++;
      if (isDone(node)) {
        node->destroy();
        changed_ = true;
        continue;
      }
      settleOperands(node);
      for (Block* nested : node->blocks()) {
        resolve(nested);
      }
      if (auto content = contentOf(node)) {
        follow(node->output(), std::move(*content));
      }
    }
    settleOperands(block->return_node());
    return changed_;
  }

 protected:
  struct Known {
    Content content;
    bool stale = false; // whether the literal that stands for the container has another content
  };

  // Of a node that makes a container.
  virtual std::optional<Content> contentOf(Node* node) const = 0;
  // Puts a literal in front of a node; `like` is the container.
  virtual Value* insert(Node* before, const Content& content, const Value* like) const = 0;
  // Do what the node does with its first operand, and give others what it returns. False where the node does something
  // else.
  virtual bool write(Node* node, Content& content) = 0;
  virtual bool read(Node* node) = 0;

  Known* find(const Value* container) {
    const auto found = known_.find(container);
    return found == known_.end() ? nullptr : &found->second;
  }

  void follow(const Value* container, Content content) { known_[container] = {std::move(content)}; }

 private:
  // Whether nothing needs the node any more.
  bool isDone(Node* node) {
    for (size_t i = 1; i < node->inputs().size(); ++i) {
      if (!onlyReads(node, i)) {
        settle(node->input(i), node, false); // an element that is a container itself
      }
    }
    if (node->inputs().empty()) {
      return false;
    }
    if (Known* known = find(mainOperand(node)); known != nullptr && write(node, known->content)) {
      known->stale = true;
      return true;
    }
    return read(node);
  }

  // Gives a node, with its blocks, literals of all containers that they read.
  void settleOperands(Node* node) {
    const auto settleInputs = [&](Node* user) {
      for (size_t i = 0; i < user->inputs().size(); ++i) {
        settle(user->input(i), node, onlyReads(user, i));
      }
    };
    settleInputs(node);
    for (Block* block : node->blocks()) {
      forEachNode(block, [&](Node* nested) {
        settleInputs(nested);
        for (Block* inner : nested->blocks()) {
          settleInputs(inner->return_node());
        }
      });
      settleInputs(block->return_node());
    }
  }

  // Makes a literal in front of the node, for it and all behind it, where the one in use has another content.
  void settle(Value* value, Node* node, bool only_reads) {
    const auto found = known_.find(value);
    if (found == known_.end()) {
      return;
    }
    const Known known = found->second;
    if (known.stale || !only_reads) {
      known_.erase(found);
    }
    if (known.stale) {
      Value* literal = insert(node, known.content, value);
      value->replaceAllUsesAfterNodeWith(literal->node(), literal);
      if (value->uses().empty()) {
        value->node()->destroy();
      }
      if (only_reads) {
        follow(literal, known.content);
      }
    }
  }

  std::unordered_map<const Value*, Known> known_;
  bool changed_ = false;
};

} // namespace jit_passes
