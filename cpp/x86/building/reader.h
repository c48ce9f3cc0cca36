// Facts about the nodes of a reference model that are known before it runs.
#pragma once

#include "facts/known_values.h"
#include "x86/program/program.h"

namespace jit_passes::x86 {

using torch::jit::Node;
using torch::jit::Value;

// Axes of a tensor by its type, and 0 where that does not say.
int64_t axesOf(const Value* tensor);

// Codes of a dtype: `shift` is added to them where they are stored, and to their zero point.
struct Codes {
  Grid grid;
  int64_t shift;
};

// Attributes of an operator that the model computes of sizes, by position.
using Computed = std::vector<std::pair<int64_t, Value*>>;

// One number or some, of which the model computes those; they are 1 here.
struct Numbers {
  std::vector<int64_t> known;
  Computed computed;
};

class RegionReader {
 public:
  // `sized`: weights in float count as weights of int8 that have sizes and no elements, on the device meta, so that a
  // model can be asked before it is quantized.
  explicit RegionReader(const PassContext& context, bool sized = false)
      : known_(context, /*attributes_apart=*/sized), sized_(sized) {}

  // Constants, attributes that nobody changes, and lists of these.
  std::optional<c10::IValue> find(const Value* value) const;
  // The operand of that name. Refuses one that is not known.
  c10::IValue operand(const Node* node, const std::string& name) const;
  double number(const Node* node, const std::string& name) const;
  // A number for each of `count` axes, or one for all of them.
  std::vector<int64_t> integers(const Node* node, const std::string& name, size_t count) const;
  // A whole number, or a list of these, which the model may compute. Refuses other operands.
  Numbers numbers(const Node* node, const std::string& name) const;
  bool has(const Node* node, const std::string& name) const; // and not None

  // The grid of the codes that quantize makes; scale and zero point that dequantize reads.
  Codes codesOf(const Node* quantize) const;
  std::pair<double, int64_t> scaleOf(const Node* dequantize) const;

  // The result of a lookup_table for each stored code of its operand, and the shift of its results. Codes beyond the
  // ends of the operand's grid have the entry of the end.
  std::pair<at::Tensor, int64_t> tableOf(const Node* lookup, const Grid& from, int64_t from_shift) const;

  // The grid of its results: that with which they are dequantized.
  Grid gridOfTable(const Node* lookup, const at::Tensor& table, int64_t shift) const;

  // int8 weights and a scale for each result, of a value that is dequantized. Results lie along that axis.
  std::pair<at::Tensor, at::Tensor> weights(const Value* value, int64_t axis = 0) const;
  // The bias in float32, as the reference model computes it.
  at::Tensor bias(const Value* value, int64_t count) const;

  // Codes and their grid, of a tensor that is dequantized, or float32, of a number too; nothing for what the model
  // computes.
  std::optional<std::pair<at::Tensor, Grid>> constant(const Value* value) const;

  bool isWritten(const Value* value) const { return known_.isWritten(value); }
  // Whether weights have sizes alone.
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
// Adds to its attributes.
void append(Planned& planned, const Numbers& numbers);

// Whether a plan may have the node as an operator.
bool isPlanned(const Node* node);
// Whether a plan has the node, and takes that operand in any dtype.
bool takesAnyDtype(const torch::jit::Use& use);
// The result that a plan gives: others are refused where they are read.
inline Value* resultOf(Node* node) { return node->outputs().at(0); }
// Whether its result has the codes of its operand.
bool keepsCodes(const Node* node);
// Refuses by way of `Refusal`.
Planned plannedOperator(const RegionReader& reader, Node* node);

// Whether it is a concatenation of channels.
bool isJoin(const RegionReader& reader, const Node* node);
// Whether that is never rounded: batch norms and concatenations take parts, each with a grid of its own.
bool isReadInParts(const RegionReader& reader, const Node* node);

// Operators that give back their operand, whatever it is.
const std::unordered_set<c10::Symbol>& identityKinds();
// Whether a node gives back its operand.
bool isIdentity(const Node* node);
// Whether it has no part in what tensors hold.
bool isSilent(const Node* node);

// The ends of a node that limits its operand, infinite where it has none; nothing for others.
std::optional<std::pair<double, double>> clipOf(const RegionReader& reader, const Node* node);

// Whether all that reads the value quantizes it, in the same block, behind clips and what moves it.
bool isQuantizedLater(const RegionReader& reader, const Value* value);

} // namespace jit_passes::x86
