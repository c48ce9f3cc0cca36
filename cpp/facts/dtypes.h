// The dtypes and the devices of values, as far as a graph tells.
#pragma once

#include "results.h"
#include "shapes.h"

namespace jit_passes {

// The dtype of a tensor: known, or floating for certain, or neither.
struct Dtype {
  std::optional<at::ScalarType> known;
  bool floats = false;

  bool operator==(const Dtype&) const = default;
};

// To be filled in program order, before any edit.
//
// The dtype of weights tells most: a convolution or linear refuses an input of another dtype than its weight, and
// operators between layers keep the dtype. Under autocast, which a graph does not show, layers cast their weights
// themselves.
class Dtypes {
 public:
  explicit Dtypes(const PassContext& context) : context_(context), known_(context) {}

  Dtype of(const Value* value) const;
  // Whether the value is float32 for certain.
  bool isFloat(const Value* value) const { return of(value).known == at::kFloat; }
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
  std::optional<at::Tensor> held(const Value* value) const;
  void addRead(const Value* value, at::ScalarType dtype);
  bool isPlaced(const Node* node) const;
  Dtype made(const Value* result) const;
  Dtype ofAny(const Node* branch, size_t result) const;
  Dtype promoted(at::ArrayRef<const Value*> operands) const;
  bool leavesDtype(
      const at::Tensor& number, at::ArrayRef<const Value*> tensors,
      std::optional<at::ScalarType> dtype) const;
  bool hasAxes(const Value* tensor) const;

  const PassContext& context_;
  KnownValues known_;
  mutable std::optional<Shapes> shapes_; // found on first use
  std::unordered_map<const Value*, Dtype> found_;
  std::unordered_set<const Value*> placed_;
  std::unordered_set<std::string> devices_;
};

// Whether an operator computes with floats of any dtype for certain, by the number of its node in program order.
std::map<int64_t, bool> floatOperators(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes
