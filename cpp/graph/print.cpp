#include "print.h"

namespace jit_passes {
namespace {

constexpr size_t kLongest = 60; // characters of a constant

void printTensor(std::ostream& out, const at::Tensor& tensor) {
  out << "<" << tensor.scalar_type() << tensor.sizes();
  if (tensor.dim() == 0 && tensor.is_cpu() && !tensor.is_quantized()) { // a number in a trace
    out << " " << tensor.item();
  }
  out << ">";
}

class Printer {
 public:
  explicit Printer(Graph& graph) : graph_(graph) { nameValues(graph.block()); }

  std::string print() {
    out_ << "graph(" << join(graph_.inputs()) << "):\n";
    printBlock(graph_.block(), 1);
    out_ << "  return (" << join(graph_.outputs()) << ")\n";
    return out_.str();
  }

 private:
  std::string unique(const std::string& name) {
    const int count = taken_[name]++;
    return count == 0 ? name : name + "#" + std::to_string(count);
  }

  void nameValues(Block* block) {
    for (const Value* input : block->inputs()) {
      names_[input] = unique(input->hasDebugName() ? input->debugNameBase() : "value");
    }
    for (Node* node : block->nodes()) {
      if (node->kind() == prim::Constant) {
        names_[node->output()] = constant(node->output());
        continue;
      }
      if (node->kind() == prim::GetAttr) {
        const auto& owner = names_.at(node->input());
        const bool of_self = node->input()->node()->kind() == prim::Param;
        names_[node->output()] = (of_self ? "" : owner + ".") + node->s(attr::name);
        continue;
      }
      for (Block* inner : node->blocks()) {
        nameValues(inner);
      }
      const auto path = moduleOf(node).first;
      const auto name = unique((path.empty() ? "" : path + ":") + node->kind().toUnqualString());
      for (const Value* output : node->outputs()) {
        names_[output] = node->outputs().size() == 1 ? name : name + "." + std::to_string(output->offset());
      }
    }
  }

  static std::string constant(const Value* value) {
    if (isNone(value)) {
      return "None";
    }
    const auto known = constantOf(value);
    std::ostringstream text;
    if (!known) {
      return "constant";
    }
    if (known->isTensor()) {
      printTensor(text, known->toTensor());
    } else {
      text << *known;
    }
    auto result = text.str();
    std::ranges::replace(result, '\n', ' ');
    return result.size() > kLongest ? result.substr(0, kLongest) + "..." : result;
  }

  std::string join(at::ArrayRef<Value*> values) const {
    std::string text;
    for (const Value* value : values) {
      text += (text.empty() ? "" : ", ") + names_.at(value);
    }
    return text;
  }

  void printBlock(Block* block, int depth) {
    for (Node* node : block->nodes()) {
      if (node->kind() == prim::Constant || node->kind() == prim::GetAttr) {
        continue;
      }
      out_ << std::string(2 * depth, ' ');
      if (!node->outputs().empty()) {
        out_ << join(node->outputs()) << " = ";
      }
      out_ << node->kind().toQualString();
      if (node->kind() == prim::SetAttr) {
        out_ << "[" << node->s(attr::name) << "]";
      }
      out_ << "(" << join(node->inputs()) << ")\n";
      for (size_t i = 0; i < node->blocks().size(); ++i) {
        Block* inner = node->blocks()[i];
        out_ << std::string(2 * depth + 2, ' ') << "block" << i << "(" << join(inner->inputs()) << "):\n";
        printBlock(inner, depth + 2);
        out_ << std::string(2 * depth + 4, ' ') << "-> (" << join(inner->outputs()) << ")\n";
      }
      if (node->hasAttribute(attr::Subgraph)) { // autograd's and fusers' groups
        std::istringstream lines(formatGraph(*node->g(attr::Subgraph)));
        for (std::string line; std::getline(lines, line);) {
          out_ << std::string(2 * depth + 2, ' ') << line << "\n";
        }
      }
    }
  }

  Graph& graph_;
  std::unordered_map<const Value*, std::string> names_;
  std::unordered_map<std::string, int> taken_;
  std::ostringstream out_;
};

} // namespace

std::string formatGraph(Graph& graph) { return Printer(graph).print(); }

} // namespace jit_passes
