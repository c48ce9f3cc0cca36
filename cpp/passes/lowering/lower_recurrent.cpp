// Compute LSTM and GRU, with weights in codes and an input that is quantized at run time, by PyTorch's quantized
// layers.
//
//   %s, %z = jit_passes::choose_qparams(%x, 0, 255, "per_tensor_affine", "fbgemm")
//   %q = jit_passes::quantize_dynamic(%x, %s, %z, 0, 255, 0)
//   %d = jit_passes::dequantize_dynamic(%q, %s, %z)
//   %w : Tensor[] = prim::ListConstruct(%w_ih, %w_hh, %b_ih, %b_hh, ...)   where the first two are dequantized
//   %y, %h, %c = aten::lstm(%d, %hx, %w, ...)
//
//     ->  %p = quantized::linear_prepack(%w_ih_codes, %b_ih), and likewise %w_hh
//         %cell = quantized::make_quantized_cell_params_dynamic(%p_ih, %p_hh, %b_ih, %b_hh, %reduce_range)
//         %cells = prim::ListConstruct(%cell, ...)
//         %y, %h, %c = aten::quantized_lstm(%x, %hx, %cells, ..., None, True)
//
// The kernel chooses equal parameters for %x. The kernel also quantizes the inputs of later layers, and the states
// in each step, which the reference model leaves in float. Projections are not supported.
#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/operators.h"
#include "graph/registry.h"
#include "recurrent.h"

namespace jit_passes {
namespace {

std::string textOf(const Node* node, std::string_view name) {
  const auto constant = constantOf(node, name);
  return constant && constant->isString() ? constant->toStringRef() : "";
}

// An operand that is quantized at run time, and its number of codes.
struct Chosen {
  Value* value;
  bool reduce_range;
};

std::optional<Chosen> chosenAsKernelsDo(const Node* dequantized) {
  const bool decodes = dequantized->kind() == dequantize_dynamic;
  const Node* codes = decodes ? inputOf(dequantized, "q")->node() : nullptr;
  const bool encodes = codes != nullptr && codes->kind() == quantize_dynamic;
  const Node* choice = encodes ? inputOf(codes, "scale")->node() : nullptr;
  if (choice == nullptr || choice->kind() != choose_qparams || inputOf(choice, "x") != inputOf(codes, "x") ||
      constantNumber(choice, "quant_min") != 0.0 || textOf(choice, "qscheme") != "per_tensor_affine" ||
      textOf(choice, "range_form") != "fbgemm") {
    return std::nullopt;
  }
  const auto highest = constantNumber(choice, "quant_max");
  if (highest != 255.0 && highest != 127.0) {
    return std::nullopt;
  }
  return Chosen{inputOf(choice, "x"), highest == 127.0};
}

// Inserts operators in front of a node. Results have the types of their schemas.
class CellWriter {
 public:
  CellWriter(Node* node, bool reduce_range)
      : node_(node), reduce_range_(insertConstant(node, reduce_range)) {}

  // The parameters of one layer in one direction. A missing bias is null.
  Value* cell(Value* input, Value* state, Value* input_bias, Value* state_bias) {
    return write(
        "quantized::make_quantized_cell_params_dynamic",
        {packed(input, input_bias), packed(state, state_bias), stated(input_bias, input),
         stated(state_bias, state), reduce_range_});
  }

 private:
  Value* write(const char* kind, at::ArrayRef<Value*> operands) {
    const auto schema = c10::Dispatcher::singleton().findSchemaOrThrow(kind, "").schema();
    return insertValue(node_, symbol(kind), operands, node_, schema.returns().at(0).type());
  }
  Value* packed(Value* dequantized, Value* bias) {
    Node* weight = dequantized->node();
    const bool per_channel = weight->inputs().size() == 4;
    const char* kind =
        per_channel ? "aten::_make_per_channel_quantized_tensor" : "aten::_make_per_tensor_quantized_tensor";
    Value* codes = insertValue(node_, symbol(kind), weight->inputs(), node_);
    bias = bias == nullptr ? insertConstant(node_, c10::IValue()) : bias;
    return write("quantized::linear_prepack", {codes, bias});
  }
  Value* stated(Value* bias, const Value* dequantized) {
    const auto codes = constantTensor(dequantized->node(), "q");
    return bias != nullptr ? bias : insertConstant(node_, at::zeros({codes->size(0)}));
  }

  Node* node_;
  Value* reduce_range_;
};

// Whether the value is int8 codes with one scale, or one for each row, as kernels take them.
bool isCoded(const Value* value) {
  const Node* node = value->node();
  if (!startsWith(node, "jit_passes::dequantize") || node->kind() == dequantize_dynamic) {
    return false;
  }
  const auto codes = constantTensor(node, "q");
  return codes && codes->scalar_type() == at::kChar &&
         (node->inputs().size() < 4 || constantNumber(node, "axis") == 0.0);
}

// Replaces a layer of the form above by PyTorch's quantized layer.
bool lowerRecurrentLayer(Node* node, const std::unordered_set<const Value*>& written) {
  const auto chosen = chosenAsKernelsDo(mainOperand(node)->node());
  const auto* schema = node->maybeSchema();
  if (!chosen || written.count(chosen->value) || schema == nullptr) {
    return false;
  }
  const size_t params = *schema->argumentIndexWithName("params");
  Node* list = node->input(params)->node();
  const auto has_biases = constantNumber(node, "has_biases"), layers = constantNumber(node, "num_layers");
  const auto both_ways = constantNumber(node, "bidirectional");
  if (list->kind() != prim::ListConstruct || !has_biases || !layers || !both_ways) {
    return false;
  }
  const size_t each = *has_biases != 0 ? 4 : 2;
  const size_t cells = static_cast<size_t>(*layers) * (*both_ways != 0 ? 2 : 1);
  if (list->inputs().size() != cells * each) {
    return false;
  }
  for (size_t i = 0; i < list->inputs().size(); ++i) {
    const Value* value = list->input(i);
    if (i % each < 2 ? !isCoded(value) : !isConstant(value)) {
      return false;
    }
  }
  CellWriter writer(node, chosen->reduce_range);
  std::vector<Value*> made;
  for (size_t i = 0; i < list->inputs().size(); i += each) {
    Value* input_bias = each == 4 ? list->input(i + 2) : nullptr;
    Value* state_bias = each == 4 ? list->input(i + 3) : nullptr;
    made.push_back(writer.cell(list->input(i), list->input(i + 1), input_bias, state_bias));
  }
  std::vector<Value*> operands(node->inputs().begin(), node->inputs().end());
  operands[0] = chosen->value;
  operands[params + 1] = insertConstant(node, true); // cells always have biases, if only zeros
  operands[params] =
      insertValue(node, prim::ListConstruct, made, node, c10::ListType::create(made.front()->type()));
  if (node->kind() == aten::lstm) {
    operands.push_back(insertConstant(node, c10::IValue())); // no dtype: the weights'
    operands.push_back(insertConstant(node, true));
  }
  const auto kind = symbol(node->kind() == aten::lstm ? "aten::quantized_lstm" : "aten::quantized_gru");
  Node* quantized = insertNode(node, kind, operands, node, node->outputs().size());
  node->replaceAllUsesWith(quantized);
  return true;
}

bool lowerGated(PassContext& context) {
  const auto graph = context.graph();
  const auto found =
      nodesWhere(*graph, [](const Node* node) { return recurrence(node->kind()) == Recurrent::Gated; });
  if (found.empty()) {
    return false;
  }
  const auto written = writtenValues(graph);
  bool changed = false;
  for (Node* node : found) {
    if (lowerRecurrentLayer(node, written)) {
      node->destroy();
      changed = true;
    }
  }
  if (changed) {
    removeDeadNodes(graph);
  }
  return changed;
}

bool lowerRecurrent(PassContext& context) {
  const bool lowered = lowerGated(context);
  return expandRecurrent(context) || lowered;
}

const RegisterPass lower_recurrent_pass{
    "lower_recurrent",
    "Compute recurrent layers with quantized weights by PyTorch's dynamic cells, or in loops.",
    lowerRecurrent, needs("no_observers")};

} // namespace
} // namespace jit_passes
