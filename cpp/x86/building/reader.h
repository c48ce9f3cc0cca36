// Facts about the nodes of a reference model that are known before it runs.
#pragma once

#include "facts/known_values.h"
#include "x86/program/declaration.h"

namespace jit_passes::x86 {

using torch::jit::Node;
using torch::jit::Value;

// The number of axes in a tensor's type; 0 if the type does not have it.
int64_t axesOf(const Value* tensor);

// The grid of codes in a program. `shift` is added to the codes of the model's dtype, and to their zero point.
struct Codes {
  Grid grid;
  int64_t shift;
};

// Attributes of an operator that the model computes from sizes, by position.
using Computed = std::vector<std::pair<int64_t, Value*>>;

// An attribute has one number or several. `known` has 1 in place of the numbers that the model computes.
struct Numbers {
  std::vector<int64_t> known;
  Computed computed;
};

class RegionReader {
 public:
  // `sized`: for a model that is not quantized yet. A float weight counts as an int8 weight on the device meta,
  // which has sizes and no elements.
  explicit RegionReader(const PassContext& context, bool sized = false)
      : known_(context, /*attributes_apart=*/sized), sized_(sized) {}

  // The content of a constant, of an attribute that does not change, or of a list of these.
  JIT_PASSES_API std::optional<c10::IValue> find(const Value* value) const;
  // The operand of that name. Refuses a node whose operand is not known.
  JIT_PASSES_API c10::IValue operand(const Node* node, const std::string& name) const;
  // The operand of that name, if it has this type. Refuses None, and an operand of another type. A number may be a
  // tensor of one element, and one whole number counts as a list.
  JIT_PASSES_API double number(const Node* node, const std::string& name) const;
  JIT_PASSES_API int64_t integer(const Node* node, const std::string& name) const;
  JIT_PASSES_API bool flag(const Node* node, const std::string& name) const;
  JIT_PASSES_API std::string text(const Node* node, const std::string& name) const;
  JIT_PASSES_API at::Tensor tensor(const Node* node, const std::string& name) const;
  JIT_PASSES_API std::vector<int64_t> integers(const Node* node, const std::string& name) const;
  // A number for each of `count` axes, or one for all of them.
  JIT_PASSES_API std::vector<int64_t> integers(const Node* node, const std::string& name, size_t count) const;
  // A whole number, or a list of whole numbers, which the model may compute. Refuses other operands.
  JIT_PASSES_API Numbers numbers(const Node* node, const std::string& name) const;
  // Whether the operand exists and is not None.
  JIT_PASSES_API bool has(const Node* node, const std::string& name) const;
  // Refuses a node whose operand `dtype` asks for another dtype than float32.
  JIT_PASSES_API void refuseCast(const Node* node) const;
  // Refuses a node whose operand of that name is true.
  JIT_PASSES_API void refuseTraining(const Node* node, const char* name) const;

  // The grid of a quantize's codes; and the scale and zero point of a dequantize.
  Codes codesOf(const Node* quantize) const;
  std::pair<double, int64_t> scaleOf(const Node* dequantize) const;

  // The result of a lookup_table for each stored code of its operand, and the shift of its results. Codes beyond the
  // ends of the operand's grid have the entry of the end.
  std::pair<at::Tensor, int64_t> tableOf(const Node* lookup, const Grid& from, int64_t from_shift) const;

  // The grid of a lookup_table's results, from the dequantize that reads them.
  Grid gridOfTable(const Node* lookup, const at::Tensor& table, int64_t shift) const;

  // int8 weights and one scale for each output of a dequantized value. `axis` is the axis of outputs.
  JIT_PASSES_API std::pair<at::Tensor, at::Tensor> weights(const Value* value, int64_t axis = 0) const;
  // The bias in float32, as the reference model computes it.
  JIT_PASSES_API at::Tensor bias(const Value* value, int64_t count) const;

  // The codes and grid of a dequantized constant, or the float32 of a constant tensor or number. Nothing for
  // computed values.
  std::optional<std::pair<at::Tensor, Grid>> constant(const Value* value) const;

  bool isWritten(const Value* value) const { return known_.isWritten(value); }
  // Whether weights have sizes only.
  bool isSized() const { return sized_; }

 private:
  KnownValues known_;
  bool sized_;
};

// An operator of a plan, without inputs and output, and the values that it reads.
struct Planned {
  Operator op;
  std::vector<Value*> operands;
  Computed computed = {};
};
// Adds the numbers to the operator's attributes.
JIT_PASSES_API void append(Planned& planned, const Numbers& numbers);

// Several operators of a plan, which give float32, with their inputs and without outputs. Inputs and results count the
// operands first, and then the operators. There is a result for each output of the node that a plan gives.
struct PlannedOperators {
  std::vector<Value*> operands;
  std::vector<Operator> operators = {};
  std::vector<int64_t> results = {};
};

// The node's first operand, clipped. Ends are infinite where there are none.
struct Clipped {
  double low, high;
};

// A node in a plan: see From.
using NodeForm = std::variant<Planned, PlannedOperators, Clipped, SameValue>;

// Whether a plan may have the node.
bool isPlanned(const Node* node);
// Whether a plan has the node, and takes that operand in any dtype.
bool takesAnyDtype(const torch::jit::Use& use);
// The result of the node that a plan can give. A plan refuses readers of other results.
inline Value* resultOf(Node* node) { return node->outputs().at(0); }
// Whether the node's operator takes a list of sizes that the model computes as a whole.
bool takesShape(const Node* node);
// Whether the result has the codes of the operand.
bool keepsCodes(const Node* node);
// Whether the node clips its operand.
bool isClip(const Node* node);
// The form of a node in a plan. Throws Refusal if there is none.
NodeForm formOf(const RegionReader& reader, Node* node);

// Whether the node has no effect on the content of tensors.
bool isSilent(const Node* node);

} // namespace jit_passes::x86
