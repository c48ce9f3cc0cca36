// Values that are float32 for certain.
#pragma once

#include "shapes.h"

namespace jit_passes {

// Found in program order, each node behind those that it reads, before any edit.
//
// A convolution or linear refuses an input of another dtype than its weight; in what is between, operators keep the
// dtype. Under autocast, which a graph does not show, layers cast their weights themselves.
class FloatValues {
 public:
  explicit FloatValues(const PassContext& context) : context_(context), known_(context) {}

  bool has(const Value* value) const;
  // Whether it gives float32, and returns an operand that is, on the device of the weights where it asks for that.
  bool casts(const Node* node) const;
  // Whether both are for certain on the device of the weights, as far as these were seen.
  bool areOnOneDevice(const Value* a, const Value* b) const {
    return devices_.size() < 2 && placed_.count(a) > 0 && placed_.count(b) > 0;
  }
  // The results of a node whose operands have been added; and the operand of a layer that always runs.
  void add(const Node* node);

 private:
  void addRead(const Value* value);
  bool isPlaced(const Node* node) const;
  bool givesFloat(const Node* node) const;
  bool isBesideAxes(const Value* number, const Value* tensor) const;

  const PassContext& context_;
  KnownValues known_;
  mutable std::optional<Shapes> shapes_; // taken where they are needed
  std::unordered_set<const Value*> found_, placed_;
  mutable std::unordered_set<std::string> devices_;
};

// By number in program order: whether an operator computes with floats for certain, of any dtype.
std::map<int64_t, bool> floatOperators(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes
