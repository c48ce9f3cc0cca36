// Insert the fake quantizations that a model trains with, at the annotated values.
//
//   %y = aten::conv2d(%x, %w, ...)
//     ->
//   %conv1 = prim::GetAttr[name="conv1"](%self)
//   %ws : Tensor = prim::GetAttr[name="weight_scale"](%conv1)
//   %ys : Tensor = prim::GetAttr[name="output_scale"](%conv1)
//   %wq = jit_passes::train_lsq(%w, %ws, ...)
//   %z = aten::conv2d(%x, %wq, ...)
//   %y = jit_passes::train_lsq(%z, %ys, ...)
//
// quantization/insertion.h describes the operators and their operands.
//
// The results are new tensors. Uses of a value that is written to are quantized one by one, since each may read
// other content, and from a copy, since the operators save their operand for autograd. An annotation of all uses of
// a written value is an error unless the value is a new tensor: the writes would go into a copy.
#include "facts/known_values.h"
#include "quantization/insertion.h"

namespace jit_passes {
namespace {

bool isNewTensor(const Value* value) {
  const auto* schema = value->node()->maybeSchema();
  return schema != nullptr && schema->returns().size() > value->offset() &&
         schema->returns()[value->offset()].alias_info() == nullptr;
}

class Inserter {
 public:
  explicit Inserter(PassContext& context)
      : known_(context, /*attributes_apart=*/true), insertions_(context) {}

  bool run() {
    for (const Insertion& insertion : insertions_.all()) {
      const auto& annotated = insertion.annotated;
      if (annotated.uses.empty()) {
        quantizeAllUses(insertion);
      } else if (known_.isWritten(annotated.value)) {
        for (const auto& use : annotated.uses) {
          use.user->replaceInput(use.offset, copyOf(use.user->input(use.offset), use.user));
          quantizeUses(insertion, {use});
        }
      } else {
        quantizeUses(insertion, annotated.uses);
      }
    }
    return !insertions_.all().empty();
  }

 private:
  void quantizeUses(const Insertion& insertion, const std::vector<Use>& uses) {
    Node* before = uses.front().user;
    Value* value = before->input(uses.front().offset);
    Value* quantized = insertions_.insert(insertion, value, before, insertion.home)->output();
    for (const auto& use : uses) {
      use.user->replaceInput(use.offset, quantized);
    }
  }

  static Value* copyOf(Value* value, Node* before) {
    const auto operands = {value, insertConstant(before, {})};
    return insertValue(before, aten::clone, operands, before, value->type());
  }

  void quantizeAllUses(const Insertion& insertion) {
    Value* value = insertion.annotated.value;
    TORCH_CHECK(
        !known_.isWritten(value) || isNewTensor(value), "the value '", insertion.name,
        "' is written to by an in-place operator: annotate its uses");
    const auto earlier = quantized_.find(value);
    Value* latest = earlier == quantized_.end() ? value : earlier->second;
    Node* before = latest == value ? insertions_.nodeFor(insertion) : latest->node()->next();
    Node* node = insertions_.insert(insertion, latest, before, insertion.home);
    latest->replaceAllUsesWith(node->output());
    node->replaceInput(0, latest);
    quantized_[value] = node->output();
  }

  KnownValues known_;
  Insertions insertions_;
  std::unordered_map<const Value*, Value*> quantized_;
};

bool insertFakeQuantize(PassContext& context) { return Inserter(context).run(); }

const RegisterPass insert_fake_quantize_pass{
    "insert_fake_quantize", "Insert the fake quantization that the annotations ask for.", insertFakeQuantize,
    needs("inlined"), takes({{"places", "list"}, {"states", "list"}})};

} // namespace
} // namespace jit_passes
