// Lower operators with weights in codes and a float input to PyTorch's operators.
//
//   %w = jit_passes::dequantize_per_channel(%codes, %scales, %zero_points, 0)
//   %y = aten::embedding(%w, %i, ...)        ->  quantized::embedding_byte, packed rows; of 4 bits, decoded rows
//   %y = aten::embedding_bag(%w, %i, ...)    ->  quantized::embedding_bag_byte, for sums
//   %y = aten::linear(%x, %w, %bias)         ->  aten::_weight_int8pack_mm in bfloat16, with the option
//
// In all other cases operators of ATen decode the weight where it is used: for a linear, or a bag with a padding
// index, as a whole; for embeddings only the picked rows.
//
//   %w = (%codes - %zero_points) * %scales
//
// dequantize_per_channel gives equal numbers, to the bit. Two codes of 4 bits share a byte: column k of a row is the
// lower half of byte k, column K / 2 + k the upper half, so decoding concatenates two tensors.
//
// The packed embeddings compute code * scale + offset with offset = -zero_point * scale, both in float32.
#include "weight_alone.h"

#include "graph/alias.h"
#include "graph/attributes.h"
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

const auto embedding = symbol("aten::embedding"), embedding_bag = symbol("aten::embedding_bag");

// A matrix of codes, with a scale for each row, or for each group of a row.
struct Coded {
  at::Tensor codes, scales, zeros; // [rows, columns], [rows, groups] float32; zeros undefined if all are 0

  int64_t columns() const { return codes.size(1); }
  int64_t groups() const { return scales.size(1); }
  bool isSigned() const { return codes.scalar_type() != at::kByte; }
  bool isEmpty() const { return codes.numel() == 0; }
  // Whether codes have 4 bits.
  bool isNarrow() const {
    const auto low = codes.min().item<int64_t>(), high = codes.max().item<int64_t>();
    return isSigned() ? low >= -8 && high <= 7 : high <= 15;
  }
};

std::optional<Coded> codedOf(const Node* node) {
  const auto codes = constantTensor(mainOperand(node));
  const auto scale = constantOf(node->input(1)), zero_point = constantOf(node->input(2));
  const bool per_tensor = node->inputs().size() == 3;
  if (!codes || codes->dim() != 2 || !scale || !zero_point ||
      (!per_tensor && constantNumber(node->input(3)) != 0.0)) {
    return std::nullopt;
  }
  const int64_t rows = codes->size(0);
  const auto matrix = [&](const c10::IValue& numbers) {
    const auto tensor = numbers.isTensor()
                            ? numbers.toTensor()
                            : at::scalar_tensor(numbers.toScalar(), at::kDouble).expand({rows});
    return tensor.to(at::kFloat).reshape({rows, rows == 0 ? 1 : tensor.numel() / rows}).contiguous();
  };
  const auto zeros = matrix(*zero_point);
  const bool shifted = zeros.count_nonzero().item<int64_t>() > 0;
  return Coded{codes->contiguous(), matrix(*scale), shifted ? zeros : at::Tensor()};
}

// Inserts operators in front of a node.
class Writer {
 public:
  explicit Writer(Node* node) : node_(node) {}

  template <typename... Operands>
  Value* operator()(const char* kind, Operands&&... operands) {
    return insertValue(node_, symbol(kind), {valueOf(std::forward<Operands>(operands))...}, node_);
  }
  Value* typed(const char* kind, at::ArrayRef<Value*> operands, const c10::TypePtr& type) {
    return insertValue(node_, symbol(kind), operands, node_, type);
  }
  Value* valueOf(Value* value) { return value; }
  Value* valueOf(const c10::IValue& constant) { return insertConstant(node_, constant); }

 private:
  Node* node_;
};

// The sizes of a tensor without the last `dropped` ones, and then `last`.
Value* sizesWith(Writer& write, Value* tensor, int64_t dropped, int64_t last) {
  const auto ints = c10::ListType::ofInts();
  Value* sizes = write.typed("aten::size", {tensor}, ints);
  if (dropped > 0) {
    const auto number = [&](int64_t value) { return write.valueOf(value); };
    sizes = write.typed("aten::slice", {sizes, number(0), number(-dropped), number(1)}, ints);
  }
  return write.typed("aten::add", {sizes, write.valueOf(std::vector<int64_t>{last})}, ints);
}

// Codes in the form of the file: two in a byte if they have 4 bits and the number of columns is even.
struct Stored {
  at::Tensor codes;
  bool halves;
};

Stored storedOf(const Coded& weight) {
  const int64_t half = weight.columns() / 2;
  if (weight.columns() % 2 != 0 || !weight.isNarrow()) {
    return {weight.codes, false};
  }
  const auto bytes = weight.codes.to(at::kByte); // wraps around
  const auto low = bytes.slice(1, 0, half).bitwise_and(15), high = bytes.slice(1, half);
  const auto joined = low.bitwise_or(high.bitwise_left_shift(4));
  return {(weight.isSigned() ? joined.view(at::kChar) : joined).contiguous(), true};
}

// The codes of stored rows, one in each element.
Value* unpacked(Writer& write, Value* stored, bool halves, bool is_signed) {
  if (!halves) {
    return stored;
  }
  Value* low = is_signed ? write("aten::bitwise_right_shift", write("aten::bitwise_left_shift", stored, 4), 4)
                         : write("aten::bitwise_and", stored, 15);
  Value* high = write("aten::bitwise_right_shift", stored, 4);
  return write("aten::cat", write.typed("prim::ListConstruct", {low, high}, c10::ListType::ofTensors()), -1);
}

// (codes - zeros) * scales along the last axis; scales and zeros are [..., groups].
Value* decoded(Writer& write, const Coded& weight, Value* codes, Value* scales, Value* zeros) {
  const int64_t groups = weight.groups();
  if (groups > 1) {
    codes = write("aten::unflatten", codes, -1, std::vector<int64_t>{groups, weight.columns() / groups});
    scales = write("aten::unsqueeze", scales, -1);
    zeros = zeros == nullptr ? nullptr : write("aten::unsqueeze", zeros, -1);
  }
  if (zeros != nullptr) {
    codes = write("aten::sub", codes, zeros, 1);
  }
  Value* values = write("aten::mul", codes, scales);
  return groups > 1 ? write("aten::flatten", values, -2, -1) : values;
}

Value* decodedWeight(Writer& write, const Coded& weight) {
  const auto stored = storedOf(weight);
  Value* codes = unpacked(write, write.valueOf(stored.codes), stored.halves, weight.isSigned());
  Value* zeros = weight.zeros.defined() ? write.valueOf(weight.zeros) : nullptr;
  return decoded(write, weight, codes, write.valueOf(weight.scales), zeros);
}

// The rows that the indices pick, decoded.
Value* decodedRows(Writer& write, const Coded& weight, Value* indices) {
  const auto pick = [&](const at::Tensor& table) {
    return write("aten::embedding", write.valueOf(table), indices, -1, false, false);
  };
  const auto stored = storedOf(weight);
  Value* codes = unpacked(write, pick(stored.codes), stored.halves, weight.isSigned());
  Value* zeros = weight.zeros.defined() ? pick(weight.zeros) : nullptr;
  return decoded(write, weight, codes, pick(weight.scales), zeros);
}

// Computes in bfloat16, since the kernel for float32 is slower than decoding.
Value* linearOfBytes(Writer& write, const Coded& weight, Node* node) {
  constexpr auto kFloat = static_cast<int64_t>(at::kFloat), kHalf = static_cast<int64_t>(at::kBFloat16);
  const auto to = [&](Value* value, int64_t dtype) {
    return write("aten::to", value, dtype, false, false, c10::IValue());
  };
  Value* x = write("aten::reshape", inputOf(node, "input"), std::vector<int64_t>{-1, weight.columns()});
  x = write("aten::contiguous", to(x, kHalf), 0);
  const auto scales = weight.scales.reshape({-1}).to(at::kBFloat16);
  Value* y = to(write("aten::_weight_int8pack_mm", x, weight.codes, scales), kFloat);
  y = isNone(node, "bias") ? y : write("aten::add", y, inputOf(node, "bias"), 1);
  return write("aten::reshape", y, sizesWith(write, inputOf(node, "input"), 1, weight.codes.size(0)));
}

Value* lowerLinear(Node* node, const Coded& weight, bool bfloat16) {
  Writer write(node);
  // The kernel reads vectors of 16 numbers, without a tail: other widths end the process in PyTorch 2.13.
  const bool bytes = weight.columns() % 16 == 0 && weight.codes.scalar_type() == at::kChar &&
                     !weight.zeros.defined() && weight.groups() == 1 && !weight.isNarrow();
  if (bytes && bfloat16) {
    return linearOfBytes(write, weight, node);
  }
  return write("aten::linear", inputOf(node, "input"), decodedWeight(write, weight), inputOf(node, "bias"));
}

// The rows packed for PyTorch's embeddings, bytes that count from 0; None if that is not possible. Rows of 4 bits
// are decoded instead: PyTorch saves packed ones in files that it cannot load.
c10::IValue packedRows(const Coded& weight) {
  if (weight.groups() != 1 || weight.codes.element_size() != 1 || weight.isNarrow()) {
    return {};
  }
  const auto scales = weight.scales.reshape({-1});
  const auto zeros = weight.zeros.defined() ? weight.zeros.reshape({-1}) : at::zeros_like(scales);
  const auto from = zeros + (weight.isSigned() ? 128.0 : 0.0);
  const auto values = (weight.codes.to(at::kFloat) - zeros.unsqueeze(1)) * scales.unsqueeze(1);
  static const auto prepack =
      c10::Dispatcher::singleton().findSchemaOrThrow("quantized::embedding_bag_prepack", "");
  torch::jit::Stack stack{at::quantize_per_channel(values, scales, from, 0, at::kQUInt8)};
  prepack.callBoxed(&stack);
  return stack.at(0);
}

class Lowering {
 public:
  explicit Lowering(PassContext& context) : context_(context) {}

  Value* lower(Node* node) {
    const auto operand = weightAlone(node);
    if (!operand) {
      return nullptr;
    }
    const Value* decoded = node->input(*operand);
    const auto weight = codedOf(decoded->node());
    if (!weight || weight->isEmpty()) {
      return nullptr;
    }
    if (node->kind() == aten::linear) {
      return lowerLinear(node, *weight, context_.option("bfloat16").toBool());
    }
    const auto rows = packedRows(*weight);
    // A table with other readers is not packed, which would make a second table.
    const bool packs =
        !rows.isNone() && decoded->uses().size() == 1 && inputOf(decoded->node(), "q")->uses().size() == 1;
    return node->kind() == embedding ? lowerEmbedding(node, *weight, packs ? rows : c10::IValue())
                                     : lowerBag(node, *weight, packs ? rows : c10::IValue());
  }

 private:
  Value* lowerEmbedding(Node* node, const Coded& weight, const c10::IValue& rows) {
    Writer write(node);
    Value* indices = inputOf(node, "indices");
    if (rows.isNone()) {
      return decodedRows(write, weight, indices);
    }
    Value* flat = inOrder(write, write("aten::flatten", indices, 0, -1)); // the kernel takes at most two axes
    Value* picked = write("quantized::embedding_byte", attribute(rows, node), flat, false);
    return write("aten::reshape", picked, sizesWith(write, indices, 0, weight.columns()));
  }

  // The first result of the bag. All further results serve training only.
  Value* lowerBag(Node* node, const Coded& weight, const c10::IValue& rows) {
    Writer write(node);
    const bool skips = node->inputs().size() > 8 && !isNone(node, "padding_idx");
    const bool used =
        std::ranges::any_of(node->outputs().slice(1), [](const Value* output) { return output->hasUses(); });
    const bool sums = constantNumber(node, "mode") == 0.0; // the packed kernel has no mean and no maximum
    if (skips || used) {
      node->replaceInput(0, decodedWeight(write, weight));
      return nullptr;
    }
    if (rows.isNone() || !sums) {
      Value* count = write.typed("aten::numel", {inputOf(node, "indices")}, c10::IntType::get());
      const c10::IValue none;
      node->replaceInput(0, decodedRows(write, weight, inputOf(node, "indices")));
      node->replaceInput(1, write("aten::arange", count, none, none, none, none));
      return nullptr;
    }
    Value *indices = inOrder(write, inputOf(node, "indices")),
          *offsets = inOrder(write, inputOf(node, "offsets"));
    Value* sum = write(
        "quantized::embedding_bag_byte", attribute(rows, node), indices, offsets, false, 0, false,
        orNone(node, inputOf(node, "per_sample_weights")), c10::IValue(),
        inputOf(node, "include_last_offset"));
    node->output(0)->replaceAllUsesWith(sum);
    return nullptr;
  }

  // PyTorch's kernels read contiguous memory without a check.
  static Value* inOrder(Writer& write, Value* numbers) {
    return write("aten::contiguous", numbers, static_cast<int64_t>(at::MemoryFormat::Contiguous));
  }

  // The contiguous numbers of a value that may be None.
  static Value* orNone(Node* node, Value* numbers) {
    Writer write(node);
    if (isTensor(numbers) || isNone(numbers)) {
      return isNone(numbers) ? numbers : inOrder(write, numbers);
    }
    Value* given =
        write.typed("aten::__isnot__", {numbers, write.valueOf(c10::IValue())}, c10::BoolType::get());
    Node* branch = node->owningGraph()->create(prim::If, {given}, 1)->insertBefore(node);
    branch->output()->setType(numbers->type());
    Block *there = branch->addBlock(), *none = branch->addBlock();
    none->registerOutput(numbers);
    Writer inside(there->return_node());
    Value* tensor = inside.typed("prim::unchecked_cast", {numbers}, c10::TensorType::get());
    there->registerOutput(inOrder(inside, tensor));
    return branch->output();
  }

  Value* attribute(const c10::IValue& rows, Node* node) {
    const auto name = "rows_" + std::to_string(count_++);
    addAttribute(context_.module(), name, rows.type(), rows);
    torch::jit::WithInsertPoint insert_at(node);
    return insertGetAttr(*context_.graph(), context_.graph()->inputs().at(0), name);
  }

  PassContext& context_;
  int64_t count_ = 0;
};

bool lowerWeights(PassContext& context) {
  Lowering lowering(context);
  const auto graph = context.graph();
  const auto found = nodesWhere(*graph, [](const Node* node) { return weightAlone(node).has_value(); });
  if (found.empty()) {
    return false;
  }
  for (Node* node : found) {
    if (Value* lowered = lowering.lower(node)) {
      replaceNode(node, lowered);
    }
  }
  removeDeadNodes(graph);
  return true;
}

const RegisterPass lower_weights_pass{
    "lower_weights", "Compute with weights that stay codes beside inputs in float, by PyTorch's operators.",
    lowerWeights, needs("no_observers"), takes({{"bfloat16", "bool", true}})};

} // namespace

std::optional<size_t> weightAlone(const Node* node) {
  const bool linear = node->kind() == aten::linear;
  if (!linear && node->kind() != embedding && node->kind() != embedding_bag) {
    return std::nullopt;
  }
  const size_t operand = linear ? 1 : 0;
  const Node* weight = node->input(operand)->node();
  const bool coded = startsWith(weight, "jit_passes::dequantize") && isConstant(inputOf(weight, "q"));
  const Node* maker = node->input(linear ? 0 : 1)->node();
  while (movesData(maker)) {
    maker = mainOperand(maker)->node();
  }
  const bool beside = linear && startsWith(maker, "jit_passes::dequantize");
  return coded && !beside ? std::optional(operand) : std::nullopt;
}

} // namespace jit_passes
