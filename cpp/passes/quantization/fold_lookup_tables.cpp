// Turn float functions between dequantize and quantize into tables of integers.
//
//   %x = jit_passes::dequantize(%codes, ...)
//   %s = aten::sigmoid(%x)                      ->   %q = jit_passes::lookup_table(%codes, %table, %first)
//   %y = aten::mul(%x, %s)
//   %q = jit_passes::quantize(%y, ...)
//
// The operators between both must work element by element, and their other operands must be numbers. The operators
// are run on all codes that the input can have, from its quant_min, %first, to its quant_max. So an entry is the
// reference model's result for its code, and fake_quantize in front of quantize rounds it as there. Inputs of more
// than 16 bits stay as they are. A dequantized value with other users is kept for them.
//
// A table of a table becomes one table, if no other node reads the codes in between:
//
//   %m = jit_passes::lookup_table(%codes, %a, %first)
//   %q = jit_passes::lookup_table(%m, %b, %k)   ->   %q = jit_passes::lookup_table(%codes, %b[a - k], %first)
//
// Values that an in-place operator writes to stay where they are.
#include "fold_lookup_tables.h"

#include "graph/alias.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

using Written = std::unordered_set<const Value*>;

constexpr int64_t kMaxEntries = 1 << 16;

int64_t constantInt(const Node* node, std::string_view name) { return constantOf(node, name)->toInt(); }

// The operators from dequantize to the value that is quantized, in program order.
class Function {
 public:
  static std::optional<Function> into(const Node* quantize, const Written& written) {
    Function function(written);
    Value* value = inputOf(quantize, "x");
    if (value->node()->kind() == fake_quantize && constantFrom(value->node(), 1)) {
      function.rounding_ = value->node();
      value = inputOf(function.rounding_, "x");
    }
    const bool closed = constantFrom(quantize, 1) && !written.count(quantize->output()) &&
                        function.collect(value) && function.codes_ != nullptr;
    // Without an operator in between it is a change of scale, which needs no table.
    const bool computes = function.nodes_.size() > 1 && function.nodes_.back()->kind() != dequantize;
    return closed && computes && !written.count(function.codes_) ? std::optional(std::move(function))
                                                                 : std::nullopt;
  }

  Value* codes() const { return codes_; }
  const Node* last() const { return nodes_.back(); }

  // The results of the operators and of `quantize` for a tensor of codes.
  at::Tensor operator()(const at::Tensor& codes, const Node* quantize) const {
    const at::NoGradGuard no_gradients;
    std::unordered_map<const Value*, c10::IValue> values{{codes_, codes}};
    for (const Node* node : nodes_) {
      values[node->output()] = computed(node, values);
    }
    if (rounding_ != nullptr) {
      values[rounding_->output()] = computed(rounding_, values);
    }
    return computed(quantize, values).toTensor();
  }

 private:
  explicit Function(const Written& written) : written_(&written) {}

  bool collect(Value* value) {
    Node* node = value->node();
    if (!seen_.insert(value).second) {
      return true;
    }
    if (written_->count(value) ||
        !(node->kind() == dequantize ? collectSource(node) : collectOperator(node))) {
      return false;
    }
    nodes_.push_back(node);
    return true;
  }

  // Collects the operators. All tensors that they read must be functions of one tensor of codes.
  bool collectSource(Node* node) {
    Value* codes = inputOf(node, "q");
    const bool same = codes_ == nullptr || codes_ == codes;
    codes_ = codes;
    return same && constantFrom(node, 1);
  }

  bool collectOperator(Node* node) {
    return isElementwise(node) && std::ranges::all_of(node->inputs(), [&](Value* operand) {
             return isConstant(operand) ? isNumber(node, operand) : collect(operand);
           });
  }

  // Whether the operand is a number. Traced models have tensors without axes, which do not change the shape and
  // dtype of the result.
  static bool isNumber(const Node* node, const Value* operand) {
    const auto tensor = constantTensor(operand);
    return !tensor || ((tensor->dim() == 0 || (node->kind() == aten::prelu && tensor->numel() == 1)) &&
                       !tensor->is_complex());
  }

  const Written* written_;
  std::unordered_set<const Value*> seen_;
  std::vector<Node*> nodes_;
  Value* codes_ = nullptr;
  Node* rounding_ = nullptr; // the fake_quantize before quantize, if it rounds otherwise than halves to even
};

// All codes that a value can have, in order. Nothing if they are unknown or have more than 16 bits.
std::optional<at::Tensor> codesOf(const Value* value) {
  const Node* node = value->node();
  if (node->kind() == quantize && constantFrom(node, 1)) {
    const int64_t first = constantInt(node, "quant_min"), last = constantInt(node, "quant_max");
    const auto dtype = static_cast<at::ScalarType>(constantInt(node, "dtype"));
    return last - first < kMaxEntries ? std::optional(at::arange(first, last + 1, dtype)) : std::nullopt;
  }
  const auto table = node->kind() == lookup_table ? constantTensor(node, "table") : std::nullopt;
  if (table && at::isIntegralType(table->scalar_type(), false)) {
    const int64_t first = table->min().item<int64_t>(), last = table->max().item<int64_t>();
    return last - first < kMaxEntries ? std::optional(at::arange(first, last + 1, table->scalar_type()))
                                      : std::nullopt;
  }
  return std::nullopt;
}

Value* insertLookup(Node* before, Value* codes, const at::Tensor& table, int64_t first, const Node* like) {
  const std::vector<Value*> operands{codes, insertConstant(before, table), insertConstant(before, first)};
  return insertValue(before, lookup_table, operands, like);
}

bool foldTable(PassContext& context, Node* node, const Written& written) {
  const auto function = Function::into(node, written);
  if (!function) {
    return false;
  }
  const auto codes = codesOf(function->codes());
  if (!codes) {
    context.remark(function->last(), "no table: its codes are unknown, or have more than 16 bits");
    return false;
  }
  const auto table = (*function)(*codes, node);
  const auto first = (*codes)[0].item<int64_t>();
  replaceNode(node, insertLookup(node, function->codes(), table, first, function->last()));
  return true;
}

// The composed table, if the second table has an entry for each value of the first one.
std::optional<at::Tensor> composed(const at::Tensor& first, const at::Tensor& second, int64_t second_first) {
  if (!at::isIntegralType(first.scalar_type(), false)) {
    return std::nullopt;
  }
  const auto indices = first.to(at::kLong) - second_first;
  const bool inside = at::logical_and(indices >= 0, indices < second.numel()).all().item<bool>();
  return inside ? std::optional(second.index_select(0, indices)) : std::nullopt;
}

bool composeTables(Node* node, const Written& written) {
  Node* inner = inputOf(node, "codes")->node();
  if (inner->kind() != lookup_table || !constantFrom(inner, 1) || !constantFrom(node, 1) ||
      inner->output()->uses().size() != 1 || written.count(inner->output()) ||
      written.count(inputOf(inner, "codes"))) {
    return false;
  }
  const auto table =
      composed(*constantTensor(inner, "table"), *constantTensor(node, "table"), constantInt(node, "first"));
  if (!table) {
    return false;
  }
  replaceNode(node, insertLookup(node, inputOf(inner, "codes"), *table, constantInt(inner, "first"), node));
  inner->destroy();
  return true;
}

} // namespace

bool foldLookupTables(PassContext& context) {
  const auto graph = context.graph();
  const auto written = writtenValues(graph);
  bool changed = changeNodes(
      *graph, [&](Node* node) { return node->kind() == quantize && foldTable(context, node, written); });
  if (changed) {
    removeDeadNodes(graph); // dead readers of codes would keep tables from being composed
  }
  changed |= changeNodes(
      *graph, [&](Node* node) { return node->kind() == lookup_table && composeTables(node, written); });
  return changed;
}

namespace {

const RegisterPass fold_lookup_tables_pass{
    "fold_lookup_tables", "Turn float functions between dequantize and quantize into tables.",
    foldLookupTables, needs("no_observers")};

} // namespace
} // namespace jit_passes
