#include "operators.h"

namespace jit_passes {
namespace {

using c10::Symbol;

std::string stringConstant(const Value* value) {
  const auto constant = constantOf(value);
  return constant && constant->isString() ? constant->toStringRef() : "";
}

bool padsWithZeros(const Node* node) {
  if (node->kind() == aten::constant_pad_nd) {
    return constantNumber(node, "value") == 0.0;
  }
  const bool constant_mode = stringConstant(inputOf(node, "mode")) == "constant";
  return constant_mode && (isNone(node, "value") || constantNumber(node, "value") == 0.0);
}

// Fills the table. Names have spaces between them; names without namespace are aten's.
class Table {
 public:
  template <typename Set>
  void each(const std::string& names, const Set& set) {
    std::istringstream list(names);
    for (std::string name; list >> name;) {
      set(rows_[name.find("::") == std::string::npos ? "aten::" + name : name]);
    }
  }

  std::map<std::string, OperatorTraits> rows_;
};

void addWeighted(Table& table) {
  const auto weighted = [&](const char* name, int64_t spatial_dims, bool transposed) {
    table.each(name, [&](OperatorTraits& t) { t.weighted = WeightedOperator{spatial_dims, transposed}; });
  };
  weighted("linear", 0, false);
  weighted("conv1d", 1, false);
  weighted("conv2d", 2, false);
  weighted("conv3d", 3, false);
  weighted("conv_transpose1d", 1, true);
  weighted("conv_transpose2d", 2, true);
  weighted("conv_transpose3d", 3, true);
  table.each(
      "convolution _convolution _convolution_mode conv_tbc mkldnn_convolution mkldnn_linear "
      "mkldnn_rnn_layer mkldnn::_convolution_pointwise mkldnn::_linear_pointwise "
      "mkldnn_prepacked::conv2d_run prim::mkldnn_convolution "
      "bilinear _native_multi_head_attention _transformer_encoder_layer_fwd embedding embedding_bag "
      "_embedding_bag _embedding_bag_forward_only jit_passes::correlation",
      [](OperatorTraits& t) { t.holds_weights = true; });
  const auto recurrent = [&](const char* names, Recurrent kind) {
    table.each(names, [&](OperatorTraits& t) { t.holds_weights = true, t.recurrent = kind; });
  };
  recurrent("rnn_tanh rnn_relu", Recurrent::Plain);
  recurrent("lstm gru", Recurrent::Gated);
  recurrent("rnn_tanh_cell rnn_relu_cell lstm_cell gru_cell", Recurrent::Cell);
  table.each(
      "matmul linalg_matmul mm bmm addmm addbmm baddbmm mv addmv dot vdot inner einsum "
      "tensordot chain_matmul linalg_multi_dot linalg_vecdot scaled_dot_product_attention "
      "_scaled_dot_product_attention_math _scaled_dot_product_flash_attention "
      "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention",
      [](OperatorTraits& t) { t.product = true; });
}

void addElementwise(Table& table) {
  table.each(
      "abs acos acosh asin asinh atan atanh ceil celu clamp clamp_max clamp_min cos cosh elu "
      "erf erfc exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh "
      "leaky_relu log log10 log1p log2 log_sigmoid logit mish neg reciprocal relu relu6 round "
      "rsqrt selu sigmoid sign silu sin sinc sinh softplus softshrink sqrt square tan tanh "
      "threshold trunc",
      [](OperatorTraits& t) { t.elementwise = 1; });
  table.each(
      "add atan2 div eq floor_divide fmod ge gt le lt maximum minimum mul ne pow prelu "
      "remainder rsub sub",
      [](OperatorTraits& t) { t.elementwise = 2; });
  table.each("where", [](OperatorTraits& t) { t.elementwise = 3; });
}

void addRanges(Table& table) {
  const auto clip = [&](const char* name, Bound low, Bound high) {
    table.each(name, [&](OperatorTraits& t) { t.clip = Clip{low, high}; });
  };
  clip("relu", 0.0, {});
  clip("relu6", 0.0, 6.0);
  clip("hardtanh", "min_val", "max_val");
  clip("clamp", "min", "max");
  clip("clamp_min", "min", {});
  clip("clamp_max", {}, "max");

  const auto nonnegative = [&](const std::string& names, std::vector<std::string> operands) {
    table.each(names, [&](OperatorTraits& t) { t.nonnegative_if = operands; });
  };
  nonnegative("abs exp exp2 hardsigmoid sigmoid softmax _safe_softmax softplus sqrt square", {});
  nonnegative("add", {"self", "other", "alpha"});
  nonnegative("maximum minimum mul", {"self", "other"});
  nonnegative("cat stack", {"tensors"});
  // Not upsample_bicubic2d, which overshoots.
  table.each(
      "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
      "adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d "
      "max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices "
      "max_pool3d_with_indices mean upsample_linear1d upsample_bilinear2d upsample_trilinear3d "
      "upsample_nearest1d upsample_nearest2d upsample_nearest3d",
      [](OperatorTraits& t) { t.within = true; });

  table.each(
      "lt le gt ge eq ne logical_and logical_or logical_xor logical_not isnan isinf isfinite "
      "isneginf isposinf signbit",
      [](OperatorTraits& t) { t.gives = at::kBool; });
  table.each("argmax argmin argsort bincount", [](OperatorTraits& t) { t.gives = at::kLong; });
}

void addMoves(Table& table) {
  table.each(
      "alias channel_shuffle chunk clone constant_pad_nd contiguous detach expand expand_as "
      "flatten flip max_pool1d max_pool2d movedim narrow native_channel_shuffle pad permute "
      "pixel_shuffle pixel_unshuffle relu repeat reshape select slice split split_with_sizes "
      "squeeze t transpose unbind unflatten unsafe_chunk unsafe_split unsafe_split_with_sizes "
      "unsqueeze upsample_nearest2d upsample_nearest3d view view_as",
      [](OperatorTraits& t) { t.moves_data = true; });
  table.each(
      "dropout dropout_ feature_dropout feature_dropout_ alpha_dropout alpha_dropout_ "
      "feature_alpha_dropout feature_alpha_dropout_",
      [](OperatorTraits& t) { t.dropout = true; });
  table.each("size dim numel len", [](OperatorTraits& t) { t.asks_for_shape = true; });
  table.each(
      "as_strided stride is_contiguous storage_offset", [](OperatorTraits& t) { t.tells_layout = true; });
}

void addShapes(Table& table) {
  table.each(
      "to contiguous detach alias clone type_as batch_norm instance_norm group_norm layer_norm rms_norm "
      "prelu softmax "
      "_safe_softmax log_softmax roll flip cumsum jit_passes::quantize jit_passes::dequantize "
      "jit_passes::quantize_per_channel jit_passes::dequantize_per_channel jit_passes::quantize_dynamic "
      "jit_passes::dequantize_dynamic jit_passes::fake_quantize jit_passes::lookup_table jit_passes::edge",
      [](OperatorTraits& t) { t.keeps_shape = true; });
  for (int64_t axes = 1; axes <= 3; ++axes) {
    for (const char* name :
         {"max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "upsample_nearest"}) {
      table.each(c10::str(name, axes, "d"), [&](OperatorTraits& t) { t.spatial = axes; });
    }
  }
  table.each("upsample_linear1d", [](OperatorTraits& t) { t.spatial = 1; });
  table.each("upsample_bilinear2d upsample_bicubic2d", [](OperatorTraits& t) { t.spatial = 2; });
  table.each("upsample_trilinear3d", [](OperatorTraits& t) { t.spatial = 3; });
}

void addCommutative(Table& table) {
  table.each(
      "add mul maximum minimum max min eq ne logical_and logical_or logical_xor bitwise_and bitwise_or "
      "bitwise_xor __and__ __or__ __xor__ __is__ __isnot__ hypot logaddexp logaddexp2 gcd lcm prim::max "
      "prim::min",
      [](OperatorTraits& t) { t.commutes = true; });
}

const OperatorTraits& traitsOf(Symbol kind) {
  static const auto by_symbol = [] {
    std::unordered_map<Symbol, OperatorTraits> found;
    for (const auto& [name, traits] : operatorTable()) {
      found.emplace(symbol(name), traits);
    }
    return found;
  }();
  static const OperatorTraits none;
  const auto found = by_symbol.find(kind);
  return found == by_symbol.end() ? none : found->second;
}

} // namespace

const std::map<std::string, OperatorTraits>& operatorTable() {
  static const auto rows = [] {
    Table table;
    addWeighted(table);
    addElementwise(table);
    addRanges(table);
    addMoves(table);
    addCommutative(table);
    addShapes(table);
    return table.rows_;
  }();
  return rows;
}

std::optional<WeightedOperator> weightedOperator(const Node* node) { return traitsOf(node->kind()).weighted; }

Recurrent recurrence(Symbol kind) { return traitsOf(kind).recurrent; }

bool isRecurrent(const Node* node) {
  const Recurrent kind = recurrence(node->kind());
  return kind == Recurrent::Plain || kind == Recurrent::Gated;
}

bool isNormalization(Symbol kind) { return kind == aten::batch_norm || kind == aten::instance_norm; }

bool isDropout(const Node* node) { return traitsOf(node->kind()).dropout; }

bool isRandom(const Node* node) {
  const Value* trains = node->isNondeterministic() ? operandOf(node, "train") : nullptr;
  return node->isNondeterministic() && !(trains && constantNumber(trains) == 0.0);
}

bool movesData(const Node* node) {
  if (!traitsOf(node->kind()).moves_data || node->inputs().empty() || node->outputs().size() != 1) {
    return false;
  }
  if (node->kind() == aten::view) { // view(dtype) looks at other values
    return node->input(1)->type()->kind() == c10::TypeKind::ListType;
  }
  const bool pads = node->kind() == aten::constant_pad_nd || node->kind() == aten::pad;
  return !pads || padsWithZeros(node);
}

bool isElementwise(const Node* node) {
  return traitsOf(node->kind()).elementwise > 0 && node->outputs().size() == 1 && isTensor(node->output());
}

bool mayCommute(Symbol kind) { return traitsOf(kind).commutes; }

bool commutes(const Node* node) {
  const auto operands = node->inputs();
  if (!mayCommute(node->kind()) || operands.size() < 2) {
    return false;
  }
  if (node->kind() != aten::add) { // max(x, dim, keepdim) has an operand that is no value to compare
    return operands.size() == 2;
  }
  const auto isNumeric = [](const Value* value) {
    return isTensor(value) || value->type()->isSubtypeOf(*c10::NumberType::get());
  };
  const bool plain = operands.size() == 2 || constantNumber(operands[2]) == 1.0;
  return plain && isNumeric(operands[0]) && isNumeric(operands[1]);
}

bool isQuantization(const Node* node) {
  static const auto dialect = symbol("namespaces::jit_passes");
  static const std::unordered_set<std::string> of_the_model{
      "correlation", "add_bias", "fold_bias", "deferred_batch_norm"};
  return node->kind().ns() == dialect && !of_the_model.count(node->kind().toUnqualString());
}

bool keepsShape(const Node* node) {
  // Traces hold a number as a tensor without axes, which does not change the shape of the result.
  const auto hasAxes = [](const Value* value) {
    const auto constant = isTensor(value) ? constantTensor(value) : std::nullopt;
    return isTensor(value) && (!constant || constant->dim() > 0);
  };
  const OperatorTraits& traits = traitsOf(node->kind());
  return traits.keeps_shape || traits.dropout ||
         (isElementwise(node) && std::ranges::count_if(node->inputs(), hasAxes) == 1 &&
          hasAxes(mainOperand(node)) && std::ranges::none_of(node->inputs(), mayBeTensor));
}

int64_t spatialOf(const Node* node) { return traitsOf(node->kind()).spatial; }

bool staysWithin(const Node* node) { return traitsOf(node->kind()).within; }

std::optional<at::ScalarType> resultDtype(const Node* node) { return traitsOf(node->kind()).gives; }

bool mayBeTensor(const Value* value) {
  const auto type = value->type()->cast<c10::OptionalType>();
  return type && type->getElementType()->kind() == c10::TypeKind::TensorType;
}

bool tellsLayout(const Node* node) { return traitsOf(node->kind()).tells_layout; }

bool asksForShape(const Node* node) { return traitsOf(node->kind()).asks_for_shape; }

} // namespace jit_passes
