// Run 1-d convolutions, and the operators between them, in two dimensions with height 1.
//
//   %y = quantized::conv1d(%x, %packed, ...)     ->  %x4 = aten::unsqueeze(%x, -2)
//   %z = quantized::add(%y, %r, ...)                 %y4 = quantized::conv2d(%x4, %packed4, ...)
//                                                    %z4 = quantized::add(%y4, %r4, ...)
//                                                    %z = aten::squeeze(%z4, -2)
//
// PyTorch's 1-d kernels do so inside, and give a channels-last result that other 1-d kernels do not recognize as
// contiguous: additions become slow, and each convolution copies its operand. Float convolutions between integer
// ones are widened too, since depthwise ones are many times faster on channels-last.
#include "graph/alias.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

using c10::Symbol;

constexpr int64_t kHeight = -2; // the axis that is added
constexpr int64_t kChannelsLast = static_cast<int64_t>(c10::MemoryFormat::ChannelsLast);

bool isPointwise(const Node* node) {
  static const auto kinds = symbols(
      {"quantized::add", "quantized::add_relu", "quantized::mul", "quantized::mul_relu",
       "quantized::hardswish", "quantized::sigmoid", "quantized::leaky_relu", "quantized::elu",
       "quantized::batch_norm", "aten::relu", "aten::clamp", "aten::hardsigmoid", "aten::tanh",
       "aten::dequantize", "aten::quantize_per_tensor"});
  return kinds.count(node->kind()) > 0;
}

// Whether the operand is another tensor with one value for each element.
bool isWideOperand(const Node* node, size_t operand) {
  static const auto batch_norm = symbol("quantized::batch_norm");
  return isTensor(node->input(operand)) && (operand == 0 || node->kind() != batch_norm);
}

class Widener {
 public:
  explicit Widener(const std::shared_ptr<Graph>& graph) : graph_(graph), written_(writtenValues(graph)) {}

  bool run() {
    forEachNode(*graph_, [&](Node* node) {
      if (node->outputs().size() != 1 || written_.count(node->output()) || writesTo(node)) {
        return;
      }
      if (isQuantizedConvolution(node)) {
        widenQuantized(node);
      } else if (node->kind() == aten::conv1d && betweenIntegers(node)) {
        widenFloat(node);
      } else if (isPointwise(node)) {
        widenPointwise(node);
      }
    });
    return changed_;
  }

 private:
  bool writesTo(const Node* node) const {
    return std::ranges::any_of(node->inputs(), [&](const Value* input) { return written_.count(input) > 0; });
  }

  static bool isQuantizedConvolution(const Node* node) {
    static const auto kinds = symbols({"quantized::conv1d", "quantized::conv1d_relu"});
    return kinds.count(node->kind()) > 0;
  }

  static bool betweenIntegers(const Node* node) {
    const auto& uses = node->output()->uses();
    return mainOperand(node)->node()->kind() == aten::dequantize ||
           std::ranges::any_of(
               uses, [](const Use& use) { return use.user->kind() == aten::quantize_per_tensor; });
  }

  // (weight, bias, stride, padding, dilation, groups) with lists and weight of one dimension more.
  static std::optional<std::vector<Value*>> widenParameters(Node* before, at::ArrayRef<Value*> parameters) {
    const auto weight = constantTensor(parameters[0]);
    std::vector<Value*> wide(parameters.begin(), parameters.end());
    if (!weight || weight->dim() != 3) {
      return std::nullopt;
    }
    for (const size_t list : {2, 3, 4}) {
      const auto own = constantInts(wide[list]);
      if (!own || own->size() != 1) {
        return std::nullopt;
      }
      const int64_t neutral = list == 3 ? 0 : 1;
      wide[list] = insertConstant(before, std::vector<int64_t>{neutral, own->front()});
    }
    wide[0] = insertConstant(before, weight->unsqueeze(kHeight));
    return wide;
  }

  void widenQuantized(Node* node) {
    Node* prepack = node->input(1)->node();
    Node* weight = prepack->inputs().empty() ? prepack : mainOperand(prepack)->node();
    if (prepack->inputs().size() != 6 || weight->inputs().empty()) {
      return;
    }
    std::vector<Value*> parameters = prepack->inputs().vec();
    parameters[0] = mainOperand(weight);
    auto wide = widenParameters(node, parameters);
    if (!wide) {
      return;
    }
    std::vector<Value*> codes = weight->inputs().vec();
    codes[0] = wide->at(0);
    wide->at(0) = insertValue(node, weight->kind(), codes, node);
    static const auto kind = symbol("quantized::conv2d_prepack");
    Node* packed = insertNode(node, kind, *wide, node);
    packed->output()->setType(packed->schema().returns().at(0).type());
    const std::string name = node->kind().toQualString();
    std::vector<Value*> operands = node->inputs().vec();
    operands[0] = widened(mainOperand(node), node);
    operands[1] = packed->output();
    replace(node, "quantized::conv2d" + name.substr(std::string("quantized::conv1d").size()), operands);
  }

  void widenFloat(Node* node) {
    const auto wide = widenParameters(node, node->inputs().slice(1));
    if (!wide) {
      return;
    }
    Value* format = insertConstant(node, kChannelsLast);
    Value* x = insertValue(node, aten::contiguous, {widened(inputOf(node, "input"), node), format}, node);
    std::vector<Value*> operands{x};
    operands.insert(operands.end(), wide->begin(), wide->end());
    replace(node, "aten::conv2d", operands);
  }

  void widenPointwise(Node* node) {
    std::vector<Value*> operands = node->inputs().vec();
    for (size_t i = 0; i < operands.size(); ++i) {
      if (isWideOperand(node, i)) {
        const auto found = wide_.find(operands[i]);
        if (found == wide_.end()) {
          return;
        }
        operands[i] = found->second;
      }
    }
    replace(node, node->kind().toQualString(), operands);
  }

  Value* widened(Value* value, Node* before) {
    const auto found = wide_.find(value);
    return found != wide_.end() ? found->second : reshaped(aten::unsqueeze, value, before);
  }

  static Value* reshaped(Symbol kind, Value* value, Node* before) {
    return insertValue(before, kind, {value, insertConstant(before, kHeight)}, before);
  }

  void replace(Node* node, const std::string& kind, const std::vector<Value*>& operands) {
    Value* wide = insertValue(node, symbol(kind), operands, node, node->output()->type());
    Value* narrow = reshaped(aten::squeeze, wide, node);
    narrow->setType(node->output()->type());
    wide_[narrow] = wide;
    replaceNode(node, narrow);
    changed_ = true;
  }

  std::shared_ptr<Graph> graph_;
  std::unordered_set<const Value*> written_;
  std::unordered_map<const Value*, Value*> wide_; // values, and their form with height 1
  bool changed_ = false;
};

bool widenConv1d(PassContext& context) {
  const bool changed = Widener(context.graph()).run();
  if (changed) {
    removeDeadNodes(context.graph());
  }
  return changed;
}

const RegisterPass widen_conv1d_pass{
    "widen_conv1d", "Run 1-d convolutions as 2-d ones of height 1.", widenConv1d, needs("inlined")};

} // namespace
} // namespace jit_passes
