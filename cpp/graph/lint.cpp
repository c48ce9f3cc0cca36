#include "lint.h"

namespace jit_passes {
namespace {

class Linter {
 public:
  explicit Linter(Graph& graph) : graph_(graph) {}

  void run() {
    visit(graph_.block(), nullptr);
    for (const auto& [value, uses, in_scope] : known_) {
      if (value != nullptr) {
        require(uses == value->uses().size(), value->node(), [&value, &uses] {
          return "its result %" + value->debugName() + " knows of " + std::to_string(value->uses().size()) +
                 " uses, and has " + std::to_string(uses);
        });
      }
    }
  }

 private:
  template <typename Message>
  static void require(bool condition, const Node* node, Message message) {
    TORCH_CHECK(condition, "the graph is not valid at ", describe(node), ": ", message());
  }

  struct Known {
    const Value* value = nullptr;
    size_t uses = 0;
    bool in_scope = true;
  };

  Known& at(const Value* value) {
    if (value->unique() >= known_.size()) {
      known_.resize(2 * value->unique() + 1);
    }
    return known_[value->unique()];
  }

  void use(const Node* node, const Value* value) {
    Known& known = at(value);
    require(known.value == value && known.in_scope, node, [&] {
      return "its operand %" + value->debugName() + " of " + describe(value->node()) +
             " is not defined before, or not in a block around it";
    });
    ++known.uses;
  }

  void visit(Block* block, const Node* owner) {
    std::vector<const Value*> defined;
    const auto define = [&](const Value* value) {
      at(value) = {value};
      defined.push_back(value);
    };
    std::ranges::for_each(block->inputs(), define);
    for (Node* node : block->nodes()) {
      require(node->owningBlock() == block && node->owningGraph() == &graph_, node, [] {
        return std::string("it does not know where it stands");
      });
      for (const Value* input : node->inputs()) {
        use(node, input);
      }
      checkBlocks(node);
      for (Block* inner : node->blocks()) {
        visit(inner, node);
      }
      checkOperator(node);
      std::ranges::for_each(node->outputs(), define);
    }
    for (const Value* output : block->outputs()) {
      use(owner == nullptr ? block->return_node() : owner, output);
    }
    if (owner != nullptr) { // the outermost block belongs to no node
      for (const Value* value : defined) {
        at(value).in_scope = false;
      }
    }
  }

  static void checkBlocks(const Node* node) {
    const auto blocks = node->blocks();
    const auto same = [&](size_t expected, size_t found, const char* what) {
      require(expected == found, node, [&] {
        return std::to_string(expected) + " " + what + " are expected, and there are " +
               std::to_string(found);
      });
    };
    if (node->kind() == prim::If) {
      same(2, blocks.size(), "blocks");
      same(node->outputs().size(), blocks[0]->outputs().size(), "results of the first block");
      same(node->outputs().size(), blocks[1]->outputs().size(), "results of the second block");
    } else if (node->kind() == prim::Loop) {
      same(1, blocks.size(), "blocks");
      same(node->outputs().size() + 1, blocks[0]->outputs().size(), "results of the block");
      same(node->inputs().size() - 1, blocks[0]->inputs().size(), "inputs of the block");
    }
  }

  // The language's own nodes have no fixed operands; all others, custom operators too, are registered.
  static void checkOperator(const Node* node) {
    const auto space = node->kind().ns();
    if (space != c10::namespaces::prim && space != c10::namespaces::onnx) {
      const auto* op = node->maybeOperator();
      require(op != nullptr, node, [&] { return operatorMismatch(node); });
      const size_t given = op->schema().returns().size(), taken = node->outputs().size();
      require(op->schema().is_varret() || given == taken, node, [&] {
        return "its operator gives " + std::to_string(given) + " results, and the node has " +
               std::to_string(taken);
      });
    }
  }

  Graph& graph_;
  std::vector<Known> known_; // by the number of the value
};

} // namespace

void lint(Graph& graph) { Linter(graph).run(); }

} // namespace jit_passes
