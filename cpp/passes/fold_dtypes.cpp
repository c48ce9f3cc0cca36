// Replace dtypes that weights tell by numbers, and take away casts that change nothing.
//
//   %x = aten::conv2d(...), with weights of float32
//   %dtype : int = prim::dtype(%x)                          ->   %dtype : int = prim::Constant[value=6]()
//   %w = aten::to(%weight, %dtype, %no, %no, %none)         ->   %weight, if that is of float32
//   %q = aten::type_as(%x, %v)                              ->   %x, if both are, and on one device
//
// Scripted classifiers of timm cast weight and bias to the dtype of what comes in, so that these would be computed by
// the model. A convolution or linear refuses an input of another dtype than its weight; in what is between, operators
// keep the dtype. Under autocast, which a graph does not show, layers cast their weights themselves.
#include "core/known_values.h"
#include "core/operators.h"
#include "core/registry.h"
#include "core/shape_facts.h"

namespace jit_passes {
namespace {

constexpr auto kFloat = static_cast<int64_t>(at::kFloat);
const auto dtype_of = symbol("prim::dtype");

// Whether it gives float32, and returns an operand that is: no copy, and no other layout or device.
bool castsToFloat(const Node* node) {
  const auto* schema = node->kind() == aten::to ? node->maybeSchema() : nullptr;
  const auto dtype = schema == nullptr ? std::nullopt : schema->argumentIndexWithName("dtype");
  if (!dtype || constantNumber(node->input(*dtype)) != kFloat) {
    return false;
  }
  for (const char* name : {"layout", "device", "pin_memory", "memory_format"}) {
    if (schema->argumentIndexWithName(name) && !isNone(node->namedInput(name))) {
      return false;
    }
  }
  return schema->argumentIndexWithName("copy") && constantNumber(node->namedInput("copy")) == 0.0;
}

// Values of float32, found in program order.
class Floats {
 public:
  explicit Floats(const PassContext& context) : known_(context) {}

  bool has(const Value* value) const {
    if (found_.count(value) > 0) {
      return true;
    }
    const auto held =
        isConstant(value) ? constantOf(value) : known_.attribute(value); // a write keeps the dtype
    if (!held || !held->isTensor() || !held->toTensor().defined() ||
        held->toTensor().scalar_type() != at::kFloat) {
      return false;
    }
    devices_.insert(held->toTensor().device().str());
    return true;
  }

  // Whether both are for certain on the device of the weights, as far as these were seen.
  bool areOnOneDevice(const Value* a, const Value* b) const {
    return devices_.size() < 2 && placed_.count(a) > 0 && placed_.count(b) > 0;
  }

  // The results of a node whose operands have been added; and the operand of a layer that always runs.
  void add(const Node* node) {
    if (isPlaced(node)) {
      placed_.insert(node->outputs().begin(), node->outputs().end());
    }
    const bool always = node->owningBlock() == node->owningGraph()->block();
    if (always && weightedOperator(node) && has(node->input(1))) {
      addRead(node->input(0));
    }
    if (node->kind() == prim::If) {
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        if (std::ranges::all_of(
                node->blocks(), [&](const Block* block) { return has(block->outputs()[i]); })) {
          found_.insert(node->output(i));
        }
      }
    } else if (node->kind() == prim::ListUnpack) {
      const Node* parts = node->input()->node();
      if (movesData(parts) && has(parts->input(0))) {
        found_.insert(node->outputs().begin(), node->outputs().end());
      }
    } else if (node->outputs().size() == 1 && isTensor(node->output()) && givesFloat(node)) {
      found_.insert(node->output());
    }
  }

 private:
  // With what it is moved or normalized from: from here on, all are known to be float32.
  void addRead(const Value* value) {
    const Node* node = value->node();
    const bool keeps = movesData(node) || node->kind() == aten::layer_norm || isDropout(node);
    placed_.insert(value);
    if (isTensor(value) && found_.insert(value).second && keeps) {
      addRead(node->input(0));
    }
  }

  // Whether the results are on the device of a weight. Operands of an operator are on one device, but for numbers.
  bool isPlaced(const Node* node) const {
    if (weightedOperator(node)) {
      return has(node->input(1));
    }
    const bool parts = node->kind() == prim::ListUnpack || node->kind() == prim::ListConstruct;
    const bool joins = node->kind() == aten::cat || node->kind() == aten::stack;
    return (parts || joins || isElementwise(node) || movesData(node) || castsToFloat(node)) &&
           std::ranges::any_of(
               node->inputs(), [&](const Value* operand) { return placed_.count(operand) > 0; });
  }

  bool givesFloat(const Node* node) const {
    static const auto same = symbols(
        {"aten::batch_norm", "aten::layer_norm", "aten::group_norm", "aten::instance_norm", "aten::softmax",
         "aten::log_softmax", "aten::mean", "aten::sum"});
    static const auto products = symbols({"aten::matmul", "aten::bmm", "aten::mm"});
    if (castsToFloat(node)) {
      return true;
    }
    if (weightedOperator(node)) {
      return has(node->input(1));
    }
    if (products.count(node->kind()) > 0) {
      return has(node->input(0)) && has(node->input(1));
    }
    if (node->kind() == aten::cat || node->kind() == aten::stack) {
      const Node* list = node->input(0)->node();
      return list->kind() == prim::ListConstruct && !list->inputs().empty() &&
             std::ranges::all_of(list->inputs(), [&](const Value* element) { return has(element); });
    }
    const auto row = operatorTable().find(node->kind().toQualString());
    const bool keeps = row != operatorTable().end() && !row->second.gives &&
                       (row->second.elementwise > 0 || row->second.within || row->second.dropout);
    if (!(keeps || movesData(node) || same.count(node->kind()) > 0) || !has(node->input(0))) {
      return false;
    }
    // Other tensors may have another dtype, and an operand may say that the result has one.
    const auto* schema = node->maybeSchema();
    if (schema == nullptr || (schema->argumentIndexWithName("dtype") && !isNone(node->namedInput("dtype")))) {
      return false;
    }
    return std::ranges::all_of(node->inputs(), [&](const Value* operand) {
      const auto kind = operand->type()->kind();
      const bool widens =
          kind == c10::TypeKind::ComplexType || kind == c10::TypeKind::NumberType || mayBeTensor(operand);
      return (!isTensor(operand) && !widens) || has(operand) || node->kind() == aten::batch_norm;
    });
  }

  KnownValues known_;
  std::unordered_set<const Value*> found_, placed_;
  mutable std::unordered_set<std::string> devices_;
};

bool foldDtypes(PassContext& context) {
  const auto asks = [](const Node* node) {
    return node->kind() == dtype_of || node->kind() == aten::to || node->kind() == aten::type_as;
  };
  if (nodesWhere(*context.graph(), asks).empty()) {
    return false;
  }
  Floats floats(context);
  return replaceNodes(*context.graph(), [&](Node* node) -> Value* {
    if (node->kind() == dtype_of && floats.has(node->input())) {
      return insertConstant(node, kFloat);
    }
    if (castsToFloat(node) && floats.has(node->input(0))) {
      return node->input(0);
    }
    if (node->kind() == aten::type_as && floats.has(node->input(0)) && floats.has(node->input(1)) &&
        floats.areOnOneDevice(node->input(0), node->input(1))) {
      return node->input(0);
    }
    floats.add(node);
    return nullptr;
  });
}

const RegisterPass fold_dtypes_pass{
    "fold_dtypes", "Replace dtypes that weights tell by numbers, and casts to them by what they cast.",
    foldDtypes, needs("inlined")};

} // namespace
} // namespace jit_passes
