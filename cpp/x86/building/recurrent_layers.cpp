#include "recurrent_layers.h"

#include "from_graph.h"
#include "graph/dialect.h"
#include "graph/places.h"
#include "x86/kernels/recurrent.h"

namespace jit_passes::x86 {
namespace {

Cell cellOf(const Node* node) {
  static const std::unordered_map<c10::Symbol, Cell> cells{
      {c10::aten::lstm, Cell::Lstm},
      {c10::aten::gru, Cell::Gru},
      {c10::aten::rnn_tanh, Cell::Tanh},
      {c10::aten::rnn_relu, Cell::Relu}};
  return cells.at(node->kind());
}

// The elements of a list that the graph constructs and does not change.
at::ArrayRef<Value*> listed(const RegionReader& reader, Node* node, const char* name) {
  Value* list = operandOf(node, name);
  refuseUnless(
      list->node()->kind() == c10::prim::ListConstruct && !reader.isWritten(list), "its list '", name,
      "' is made elsewhere");
  return list->node()->inputs();
}

// The products of the input, without weights.
Planned inputProduct(const RegionReader& reader, const Node* node) {
  return withChoice(reader, node, {{Kind::Linear, "", {}, 0, {}, {}}, {}});
}

// A recurrent node with its options. Writes the operators of its layers.
class Layers {
 public:
  Layers(const RegionReader& reader, Node* node, std::string name, ProgramWriter& to)
      : reader_(reader),
        name_(std::move(name)),
        to_(to),
        cell_(cellOf(node)),
        biases_(reader.flag(node, "has_biases")),
        batch_first_(reader.flag(node, "batch_first")),
        directions_(reader.flag(node, "bidirectional") ? 2 : 1),
        layers_(reader.integer(node, "num_layers")),
        weights_(listed(reader, node, "params")),
        product_(inputProduct(reader, node).op) {
    reader.refuseTraining(node, "train");
    refuseUnless(
        int64_t(weights_.size()) == layers_ * directions_ * each(), "it has ", weights_.size(),
        " weights and biases: it projects its states, or they are not given one by one");
  }

  std::vector<int64_t> write(const std::vector<int64_t>& operands) {
    int64_t x = operands[0];
    std::vector<std::vector<int64_t>> last(
        statesOf(cell_)); // hidden states, and memories of an LSTM, of all layers and directions
    for (int64_t layer = 0; layer < layers_; ++layer) {
      Operator product = weighted(product_.kind, layer, 0, product_.attributes);
      product.inputs = {x};
      const int64_t units = widthOf(layer, 1);
      Operator scan = weighted(
          Kind::Recurrent, layer, 1,
          {static_cast<int64_t>(cell_), directions_, batch_first_,
           product_.attributes[DynamicAttributes::Form]});
      scan.inputs = {to_.emitFloats(std::move(product))};
      for (size_t i = 1; i < operands.size(); ++i) {
        const int64_t first = layer * directions_;
        scan.inputs.push_back(layers_ > 1 ? narrow(operands[i], 0, first, directions_) : operands[i]);
      }
      const int64_t states = to_.emitFloats(std::move(scan));
      for (size_t i = 0; i < last.size(); ++i) {
        for (int64_t direction = 0; direction < directions_; ++direction) {
          last[i].push_back(lastOf(states, direction, (i * directions_ + direction) * units, units));
        }
      }
      x = last.size() > 1 ? narrow(states, -1, 0, directions_ * units) : states;
    }
    std::vector<int64_t> results{x};
    for (const auto& all : last) {
      results.push_back(all.size() == 1 ? all[0] : write(Kind::Concat, all, {0}));
    }
    return results;
  }

 private:
  int64_t each() const { return biases_ ? 4 : 2; }

  // The weight of the input (which = 0) or of the state (which = 1).
  Value* weight(int64_t layer, int64_t direction, int64_t which) const {
    return weights_[(layer * directions_ + direction) * each() + which];
  }
  int64_t widthOf(int64_t layer, int64_t which) const {
    return reader_.weights(weight(layer, 0, which)).first.size(1);
  }

  // An operator with the weights of both directions one after the other.
  Operator weighted(Kind kind, int64_t layer, int64_t which, std::vector<int64_t> attributes) const {
    std::vector<at::Tensor> tensors[3];
    for (int64_t direction = 0; direction < directions_; ++direction) {
      const auto [codes, scales] = reader_.weights(weight(layer, direction, which));
      refuseUnless(codes.dim() == 2, "its weight is no matrix");
      const Value* bias = biases_ ? weight(layer, direction, 2 + which) : nullptr;
      tensors[kWeight].push_back(codes), tensors[kWeightScales].push_back(scales);
      tensors[kBias].push_back(
          bias ? reader_.bias(bias, codes.size(0)) : at::zeros({codes.size(0)}, at::kFloat));
    }
    return {kind,
            name_,
            {},
            0,
            std::move(attributes),
            {at::cat(tensors[0]), at::cat(tensors[1]), at::cat(tensors[2])}};
  }

  int64_t write(Kind kind, std::vector<int64_t> inputs, std::vector<int64_t> attributes) {
    return to_.emitFloats({kind, name_, std::move(inputs), 0, std::move(attributes), {}});
  }
  int64_t narrow(int64_t value, int64_t axis, int64_t start, int64_t length, bool drops = false) {
    return write(Kind::Narrow, {value}, {axis, start, length, drops});
  }

  // The last states of a direction, [1, rows, units].
  int64_t lastOf(int64_t states, int64_t direction, int64_t start, int64_t units) {
    const int64_t step = narrow(states, batch_first_, direction == 0 ? -1 : 0, 1, true);
    return write(Kind::Unsqueeze, {narrow(step, -1, start, units)}, {0});
  }

  const RegionReader& reader_;
  const std::string name_;
  ProgramWriter& to_;
  const Cell cell_;
  const bool biases_, batch_first_;
  const int64_t directions_, layers_;
  const at::ArrayRef<Value*> weights_;
  const Operator product_; // of the kind of all input products, with their attributes
};

} // namespace

std::vector<Value*> recurrentOperands(const RegionReader& reader, Node* node) {
  refuseUnless(operandOf(node, "input") != nullptr, "its sequences are packed");
  const Planned planned = inputProduct(reader, node);
  refuseUnless(isDynamic(planned.op.kind), "its input is not quantized as the model runs");
  std::vector<Value*> operands = planned.operands;
  if (cellOf(node) != Cell::Lstm) {
    operands.push_back(operandOf(node, "hx"));
    return operands;
  }
  const auto states = listed(reader, node, "hx");
  refuseUnless(states.size() == 2, "it has ", states.size(), " states");
  operands.insert(operands.end(), states.begin(), states.end());
  return operands;
}

void checkRecurrent(const RegionReader& reader, Node* node) {
  if (operandOf(node, "input") == nullptr || node->input(0)->node()->kind() == dequantize_dynamic) {
    recurrentOperands(reader, node);
    ProgramWriter nowhere;
    Layers(reader, node, "", nowhere);
  }
}

std::vector<int64_t> writeRecurrent(
    const RegionReader& reader, Node* node, const std::string& name, const std::vector<int64_t>& operands,
    ProgramWriter& to) {
  return Layers(reader, node, name, to).write(operands);
}

} // namespace jit_passes::x86
