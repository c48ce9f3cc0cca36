// Replace plain recurrent layers (nn.RNN) whose input is quantized at run time by loops of linears.
//
//   %s, %z = jit_passes::choose_qparams(%x, ...)
//   %q = jit_passes::quantize_dynamic(%x, %s, %z, ...)
//   %d = jit_passes::dequantize_dynamic(%q, %s, %z)
//   %w : Tensor[] = prim::ListConstruct(%w_ih, %w_hh, %b_ih, %b_hh, ...)
//   %y, %h = aten::rnn_tanh(%d, %hx, %w, ...)
//
//     ->  %steps = aten::linear(%d, %w_ih, %b_ih)
//         for each step: state = tanh(linear(quantized state, %w_hh, %b_hh) + step)
//         %y = the states, %h = the last one
//
// The state is quantized in each step, and the input of later layers as a whole, with the options of the first
// input. PyTorch's quantized LSTM does this too, but has no kernel for these layers. The reference model leaves both
// in float.
#include <torch/csrc/jit/ir/irparser.h>

#include "graph/dialect.h"
#include "graph/operators.h"
#include "graph/registry.h"
#include "recurrent.h"

namespace jit_passes {
namespace {

// A direction of a layer, time first.
const std::string scan = R"IR(
graph(%steps, %start, %weight, %bias, %low : int, %high : int, %scheme : str, %form : str, %dtype : int):
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %true : bool = prim::Constant[value=1]()
  %count : int = aten::size(%steps, %zero)
  %list : Tensor[] = prim::ListConstruct()
  %last : Tensor = prim::Loop(%count, %true, %start)
    block0(%i : int, %state : Tensor):
      %step = aten::select(%steps, %zero, %i)
      %s, %z = jit_passes::choose_qparams(%state, %low, %high, %scheme, %form)
      %q = jit_passes::quantize_dynamic(%state, %s, %z, %low, %high, %dtype)
      %d = jit_passes::dequantize_dynamic(%q, %s, %z)
      %product = aten::linear(%d, %weight, %bias)
      %sum = aten::add(%product, %step, %one)
      %next = aten::FUNCTION(%sum)
      %same : Tensor[] = aten::append(%list, %next)
      -> (%true, %next)
  %states = aten::stack(%list, %zero)
  return (%states, %last)
)IR";

std::shared_ptr<Graph> scanWith(const std::string& function) {
  auto text = scan;
  text.replace(text.find("FUNCTION"), 8, function);
  const auto graph = std::make_shared<Graph>();
  torch::jit::parseIR(text, graph.get());
  return graph;
}

// The options of the input's quantization, which the state shares.
struct DynamicGrid {
  Value *low, *high, *scheme, *form, *dtype;
};

std::optional<DynamicGrid> dynamicGridOf(const Value* input) {
  const Node* dequantized = input->node();
  const Node* codes = dequantized->kind() == dequantize_dynamic ? inputOf(dequantized, "q")->node() : nullptr;
  if (codes == nullptr || codes->kind() != quantize_dynamic ||
      inputOf(codes, "scale")->node()->kind() != choose_qparams) {
    return std::nullopt;
  }
  const Node* choice = inputOf(codes, "scale")->node();
  return DynamicGrid{
      inputOf(choice, "quant_min"), inputOf(choice, "quant_max"), inputOf(choice, "qscheme"),
      inputOf(choice, "range_form"), inputOf(codes, "dtype")};
}

// The options of a layer, from its constants.
struct PlainLayer {
  size_t layers;
  bool has_biases, both_ways, batch_first;
  size_t each() const { return has_biases ? 4 : 2; }
  size_t directions() const { return both_ways ? 2 : 1; }
};

std::optional<PlainLayer> plainLayerOf(const Node* node) {
  const auto* schema = node->maybeSchema();
  if (schema == nullptr || schema->overload_name() != "input") {
    return std::nullopt; // packed sequences
  }
  std::vector<double> options;
  for (const char* name : {"has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first"}) {
    const auto number = constantNumber(node, name);
    if (!number) {
      return std::nullopt;
    }
    options.push_back(*number);
  }
  const bool trains = options[3] != 0;
  const PlainLayer layer{size_t(options[1]), options[0] != 0, options[4] != 0, options[5] != 0};
  const Node* list = inputOf(node, "params")->node();
  const bool fits = list->kind() == prim::ListConstruct &&
                    list->inputs().size() == layer.layers * layer.directions() * layer.each();
  return trains || !fits ? std::nullopt : std::optional(layer);
}

// Inserts operators in front of a layer.
class ScanWriter {
 public:
  ScanWriter(Node* node, PlainLayer layer, DynamicGrid grid) : node_(node), layer_(layer), grid_(grid) {}

  // The results of the layers: all states of the last layer, and the last state of each.
  std::pair<Value*, Value*> write() {
    Value* x = inputOf(node_, "input");
    for (size_t i = 0; i < layer_.layers; ++i) {
      std::vector<Value*> states;
      for (size_t direction = 0; direction < layer_.directions(); ++direction) {
        states.push_back(direct(x, i * layer_.directions() + direction, direction == 1));
      }
      Value* all = states.size() == 1 ? states[0] : op(aten::cat, {listed(states), number(2)});
      all = timeFirst(all);
      x = i + 1 < layer_.layers ? quantized(all) : all;
    }
    return {x, op(aten::stack, {listed(last_), number(0)})};
  }

 private:
  Value* direct(Value* x, size_t index, bool backwards) {
    const auto weights = inputOf(node_, "params")->node()->inputs().slice(index * layer_.each());
    const auto bias = [&](size_t i) {
      return layer_.has_biases ? weights[i] : insertConstant(node_, c10::IValue());
    };
    Value* steps = op(aten::linear, {x, weights[0], bias(2)});
    steps = turned(timeFirst(steps), backwards);
    Value* start = op(aten::select, {inputOf(node_, "hx"), number(0), number(static_cast<int64_t>(index))});
    const auto graph = scanWith(node_->kind() == aten::rnn_tanh ? "tanh" : "relu");
    forEachNode(*graph, [&](Node* made) { made->copyMetadata(node_); });
    torch::jit::WithInsertPoint guard(node_);
    const auto results = torch::jit::insertGraph(
        *node_->owningGraph(), *graph,
        {steps, start, weights[1], bias(3), grid_.low, grid_.high, grid_.scheme, grid_.form, grid_.dtype});
    last_.push_back(results.at(1));
    return turned(results.at(0), backwards);
  }

  // From [batch, steps, ...] to [steps, batch, ...], or back.
  Value* timeFirst(Value* x) {
    return layer_.batch_first ? op(aten::transpose, {x, number(0), number(1)}) : x;
  }
  Value* turned(Value* x, bool backwards) {
    return backwards ? op(aten::flip, {x, insertConstant(node_, std::vector<int64_t>{0})}) : x;
  }
  Value* quantized(Value* x) {
    Node* choice =
        insertNode(node_, choose_qparams, {x, grid_.low, grid_.high, grid_.scheme, grid_.form}, node_, 2);
    Value *scale = choice->output(0), *zero = choice->output(1);
    Value* codes = op(quantize_dynamic, {x, scale, zero, grid_.low, grid_.high, grid_.dtype});
    return op(dequantize_dynamic, {codes, scale, zero});
  }
  Value* op(c10::Symbol kind, at::ArrayRef<Value*> operands) {
    return insertValue(node_, kind, operands, node_);
  }
  Value* number(int64_t value) { return insertConstant(node_, value); }
  Value* listed(at::ArrayRef<Value*> values) {
    return insertValue(node_, prim::ListConstruct, values, node_, c10::ListType::ofTensors());
  }

  Node* node_;
  PlainLayer layer_;
  DynamicGrid grid_;
  std::vector<Value*> last_;
};

} // namespace

bool expandRecurrent(PassContext& context) {
  return changeNodes(*context.graph(), [](Node* node) {
    if (recurrence(node->kind()) != Recurrent::Plain) {
      return false;
    }
    const auto layer = plainLayerOf(node);
    const auto grid = dynamicGridOf(mainOperand(node));
    if (!layer || !grid) {
      return false;
    }
    const auto [states, last] = ScanWriter(node, *layer, *grid).write();
    node->output(0)->replaceAllUsesWith(states);
    node->output(1)->replaceAllUsesWith(last);
    node->destroy();
    return true;
  });
}

} // namespace jit_passes
