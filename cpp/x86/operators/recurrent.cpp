// Recurrent layers whose input is quantized at run time.
#include "x86/kernels/recurrent.h"

#include "graph/places.h"
#include "x86/building/from_graph.h"
#include "x86/kernels/dynamic.h"
#include "x86/lowering/general.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {

const Kind Kind::Recurrent("recurrent");

namespace {

// The elements of a list that the graph constructs and does not change.
at::ArrayRef<Value*> listed(const RegionReader& reader, const Node* node, const char* name) {
  Value* list = operandOf(node, name);
  refuseUnless(
      list->node()->kind() == c10::prim::ListConstruct && !reader.isWritten(list), "its list '", name,
      "' is made elsewhere");
  return list->node()->inputs();
}

// The operators of a node, layer after layer. A layer's first operator computes the products of its input for all steps
// and directions, and the second one goes through the steps. The input of a later layer is quantized like the first
// input, as a whole or row by row.
class Layers {
 public:
  // `product`: an input product without weights. `operands`: input, hidden states, and memories of an LSTM.
  Layers(
      const RegionReader& reader, const Node* node, Cell cell, Operator product, std::vector<Value*> operands)
      : reader_(reader),
        cell_(cell),
        biases_(reader.flag(node, "has_biases")),
        batch_first_(reader.flag(node, "batch_first")),
        directions_(reader.flag(node, "bidirectional") ? 2 : 1),
        layers_(reader.integer(node, "num_layers")),
        weights_(listed(reader, node, "params")),
        product_(std::move(product)),
        planned_{std::move(operands)} {
    reader.refuseTraining(node, "train");
    refuseUnless(
        int64_t(weights_.size()) == layers_ * directions_ * each(), "it has ", weights_.size(),
        " weights and biases: it projects its states, or they are not given one by one");
  }

  PlannedOperators planned() && {
    int64_t x = 0;
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
      scan.inputs = {add(std::move(product))};
      for (int64_t i = 1; i < int64_t(planned_.operands.size()); ++i) {
        const int64_t first = layer * directions_;
        scan.inputs.push_back(layers_ > 1 ? narrow(i, 0, first, directions_) : i);
      }
      const int64_t states = add(std::move(scan));
      for (size_t i = 0; i < last.size(); ++i) {
        for (int64_t direction = 0; direction < directions_; ++direction) {
          last[i].push_back(lastOf(states, direction, (i * directions_ + direction) * units, units));
        }
      }
      x = last.size() > 1 ? narrow(states, -1, 0, directions_ * units) : states;
    }
    planned_.results = {x};
    for (const auto& all : last) {
      planned_.results.push_back(all.size() == 1 ? all[0] : add(Kind::Concat, all, {0}));
    }
    return std::move(planned_);
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
            "",
            {},
            0,
            std::move(attributes),
            {at::cat(tensors[0]), at::cat(tensors[1]), at::cat(tensors[2])}};
  }

  int64_t add(Operator op) {
    planned_.operators.push_back(std::move(op));
    return planned_.operands.size() + planned_.operators.size() - 1;
  }
  int64_t add(Kind kind, std::vector<int64_t> inputs, std::vector<int64_t> attributes) {
    return add({kind, "", std::move(inputs), 0, std::move(attributes), {}});
  }
  int64_t narrow(int64_t value, int64_t axis, int64_t start, int64_t length, bool drops = false) {
    return add(Kind::Narrow, {value}, {axis, start, length, drops});
  }

  // The last states of a direction, [1, rows, units].
  int64_t lastOf(int64_t states, int64_t direction, int64_t start, int64_t units) {
    const int64_t step = narrow(states, batch_first_, direction == 0 ? -1 : 0, 1, true);
    return add(Kind::Unsqueeze, {narrow(step, -1, start, units)}, {0});
  }

  const RegionReader& reader_;
  const Cell cell_;
  const bool biases_, batch_first_;
  const int64_t directions_, layers_;
  const at::ArrayRef<Value*> weights_;
  const Operator product_; // of the kind of all input products, with their attributes
  PlannedOperators planned_;
};

template <Cell cell>
PlannedOperators recurrent(const RegionReader& reader, Node* node) {
  refuseUnless(operandOf(node, "input") != nullptr, "its sequences are packed");
  Planned product = withChoice(reader, node, {{Kind::Linear, "", {}, 0, {}, {}}, {}});
  if (!isDynamic(product.op.kind)) {
    refuseUnless(reader.isSized(), "its input is not quantized as the model runs");
    return {}; // a model that is not quantized yet
  }
  std::vector<Value*> operands = std::move(product.operands);
  if constexpr (cell == Cell::Lstm) {
    const auto states = listed(reader, node, "hx");
    refuseUnless(states.size() == 2, "it has ", states.size(), " states");
    operands.insert(operands.end(), states.begin(), states.end());
  } else {
    operands.push_back(operandOf(node, "hx"));
  }
  return Layers(reader, node, cell, std::move(product.op), std::move(operands)).planned();
}

void checkRecurrent(const Operator& op) {
  using A = RecurrentAttributes;
  const auto& a = op.attributes;
  refuseUnless(between(a[A::Cell], 0, int64_t(Cell::Count) - 1), "there is no cell ", a[A::Cell]);
  refuseUnless(
      between(a[A::Directions], 1, 2) && between(a[A::BatchFirst], 0, 1) &&
          between(a[A::Form], 0, int64_t(RangeForm::Count) - 1),
      "it has ", a[A::Directions], " directions (1 or 2), ", a[A::BatchFirst],
      " for whether the batch is first (0 or 1), or ", a[A::Form], ", which is no range form");
  checkWeights(op, 2);
  const Cell cell{a[A::Cell]};
  const auto& weight = op.tensors[kWeight];
  refuseUnless(
      weight.size(0) == a[A::Directions] * gatesOf(cell) * weight.size(1), "weights of the shape ",
      weight.sizes(), " are none of ", a[A::Directions], " directions with ", gatesOf(cell), " gates");
  refuseUnless(
      int64_t(op.inputs.size()) == 1 + statesOf(cell), "it reads ", statesOf(cell), " states, and has ",
      op.inputs.size() - 1);
}

Sizes sizesOfStates(const Operands& operands) {
  using A = RecurrentAttributes;
  const Operator& op = operands.op;
  const Sizes& first = operands.first();
  const int64_t directions = op.attributes[A::Directions], time = op.attributes[A::BatchFirst];
  const Cell cell{op.attributes[A::Cell]};
  const auto& weight = op.tensors[kWeight];
  require(
      op, first.size() == 3 && first.back() == weight.size(0), "takes three axes with ", weight.size(0),
      " features, and got the shape ", first);
  require(op, first[time] > 0, "takes one step at least, and got the shape ", first);
  const Sizes state{directions, first[1 - time], weight.size(1)};
  for (size_t i = 1; i < operands.sizes.size(); ++i) {
    require(op, operands[i] == state, "takes states of the shape ", state, ", and got ", operands[i]);
  }
  Sizes sizes = first;
  sizes.back() = statesOf(cell) * directions * weight.size(1);
  return sizes;
}

void lowerRecurrent(Lowering& state, size_t index) {
  lowerChannels(state, index);
  state.result.steps.back().packed =
      state.weights.packed(state.program, state.program.operators[index], true);
}

// From the products of the input and the states before the first step to all states: see RecurrentAttributes.
const RegisterOperator recurrent_operator{
    {.name = "recurrent",
     .inputs = {2, 3},
     .attributes = {RecurrentAttributes::Count, RecurrentAttributes::Count},
     .tensors = {3, 3},
     .types = Types::Real,
     .layer = LayerKind::Recurrent,
     .from =
         {{"lstm", recurrent<Cell::Lstm>, nullptr, false},
          {"gru", recurrent<Cell::Gru>, nullptr, false},
          {"rnn_tanh", recurrent<Cell::Tanh>, nullptr, false},
          {"rnn_relu", recurrent<Cell::Relu>, nullptr, false}},
     .check = checkRecurrent,
     .infer = sizesOfStates,
     .channels = lastAxisOf,
     .lower = lowerRecurrent,
     .step = Does::Recur}};

} // namespace
} // namespace jit_passes::x86
