// Lists and dictionaries that a graph fills step by step, with their content at each node.
//
// A container is followed from its literal on, through the block that makes it. Its content is known as long as no
// other node can keep it, pass it on, or write to it in another way. This node and all nodes after it share one last
// literal, which is the object from there on. Nested blocks may read the container.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

// Whether the node only reads the container, and does not write to it, keep it or return it.
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
    bool stale = false; // whether the container's present literal has another content
  };

  // The content of a container that the node makes; nothing for other nodes.
  virtual std::optional<Content> contentOf(Node* node) const = 0;
  // Puts a literal in front of a node; `like` is the container.
  virtual Value* insert(Node* before, const Content& content, const Value* like) const = 0;
  // Apply the node to the content of its first operand, and replace its result. False if that is not possible.
  virtual bool write(Node* node, Content& content) = 0;
  virtual bool read(Node* node) = 0;

  Known* find(const Value* container) {
    const auto found = known_.find(container);
    return found == known_.end() ? nullptr : &found->second;
  }

  void follow(const Value* container, Content content) { known_[container] = {std::move(content)}; }

 private:
  // Whether the node has been applied to known contents, and can go.
  bool isDone(Node* node) {
    for (size_t i = 1; i < node->inputs().size(); ++i) {
      if (!onlyReads(node, i)) {
        settle(node->input(i), node, false); // an operand that is a container itself
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

  // Gives a node and its blocks literals of all containers that they read.
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

  // Makes a literal in front of the node, for this and all later nodes, if the present literal has another content.
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
