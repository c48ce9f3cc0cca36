// Values that are float32 for certain.
#pragma once

#include "shapes.h"

namespace jit_passes {

// To be filled in program order, before any edit.
//
// The dtype of weights tells most: a convolution or linear refuses an input of another dtype than its weight, and
// operators between layers keep the dtype. Under autocast, which a graph does not show, layers cast their weights
// themselves.
class FloatValues {
 public:
  explicit FloatValues(const PassContext& context) : context_(context), known_(context) {}

  bool has(const Value* value) const;
  // Whether the node casts to float32, and returns a float32 operand as it is. The node may ask for the device of
  // the weights.
  bool casts(const Node* node) const;
  // Whether both values are on the device of the weights for certain, and all weights seen so far are on one device.
  bool areOnOneDevice(const Value* a, const Value* b) const {
    return devices_.size() < 2 && placed_.count(a) > 0 && placed_.count(b) > 0;
  }
  // Notes the results of a node whose operands have been added, and the input of a layer that always runs.
  void add(const Node* node);

 private:
  void addRead(const Value* value);
  bool isPlaced(const Node* node) const;
  bool givesFloat(const Node* node) const;
  bool isBesideAxes(const Value* number, const Value* tensor) const;

  const PassContext& context_;
  KnownValues known_;
  mutable std::optional<Shapes> shapes_; // found on first use
  std::unordered_set<const Value*> found_, placed_;
  mutable std::unordered_set<std::string> devices_;
};

// Whether an operator computes with floats of any dtype for certain, by the number of its node in program order.
std::map<int64_t, bool> floatOperators(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes
