#include "operators.h"

namespace jit_passes {
namespace {

using c10::Symbol;

std::unordered_set<Symbol> symbols(std::initializer_list<const char*> names) {
  std::unordered_set<Symbol> result;
  for (const char* name : names) {
    result.insert(Symbol::fromQualString(name));
  }
  return result;
}

std::string stringConstant(const Value* value) {
  const auto constant = isConstant(value) ? torch::jit::toIValue(value) : std::nullopt;
  return constant && constant->isString() ? constant->toStringRef() : "";
}

// Quantized tensors cannot be padded in three axes: PyTorch does not copy between the channels-last
// layouts of five dimensions.
bool padsTwoAxesAtMost(const Node* node) {
  const Value* list = node->input(1);
  const auto constant = isConstant(list) ? torch::jit::toIValue(list) : std::nullopt;
  const size_t length = constant && constant->isIntList()                  ? constant->toIntList().size()
                        : list->node()->kind() == c10::prim::ListConstruct ? list->node()->inputs().size()
                                                                           : SIZE_MAX;
  return length <= 4;
}

bool padsWithZeros(const Node* node) {
  if (node->kind() == c10::aten::constant_pad_nd) {
    return constantNumber(node->input(2)) == 0.0;
  }
  const bool constant_mode = stringConstant(node->input(2)) == "constant";
  return constant_mode && (isNone(node->input(3)) || constantNumber(node->input(3)) == 0.0);
}

// By the number of tensor operands that an operator takes at most; further operands are numbers.
const std::map<size_t, std::vector<std::string>>& elementwiseTable() {
  static const std::map<size_t, std::vector<std::string>> table{
      {1,
       {
           "aten::abs",         "aten::acos",       "aten::acosh",     "aten::asin",
           "aten::asinh",       "aten::atan",       "aten::atanh",     "aten::ceil",
           "aten::celu",        "aten::clamp",      "aten::clamp_max", "aten::clamp_min",
           "aten::cos",         "aten::cosh",       "aten::elu",       "aten::erf",
           "aten::erfc",        "aten::exp",        "aten::exp2",      "aten::expm1",
           "aten::floor",       "aten::frac",       "aten::gelu",      "aten::hardshrink",
           "aten::hardsigmoid", "aten::hardswish",  "aten::hardtanh",  "aten::leaky_relu",
           "aten::log",         "aten::log10",      "aten::log1p",     "aten::log2",
           "aten::log_sigmoid", "aten::logit",      "aten::mish",      "aten::neg",
           "aten::reciprocal",  "aten::relu",       "aten::relu6",     "aten::round",
           "aten::rsqrt",       "aten::selu",       "aten::sigmoid",   "aten::sign",
           "aten::silu",        "aten::sin",        "aten::sinc",      "aten::sinh",
           "aten::softplus",    "aten::softshrink", "aten::sqrt",      "aten::square",
           "aten::tan",         "aten::tanh",       "aten::threshold", "aten::trunc",
       }},
      {2,
       {
           "aten::add",     "aten::atan2",     "aten::div",  "aten::eq",  "aten::floor_divide",
           "aten::fmod",    "aten::ge",        "aten::gt",   "aten::le",  "aten::lt",
           "aten::maximum", "aten::minimum",   "aten::mul",  "aten::ne",  "aten::pow",
           "aten::prelu",   "aten::remainder", "aten::rsub", "aten::sub",
       }},
      {3, {"aten::where"}},
  };
  return table;
}

} // namespace

std::optional<WeightedOperator> weightedOperator(const Node* node) {
  static const std::unordered_map<Symbol, WeightedOperator> table{
      {c10::aten::linear, {0, false}},          {c10::aten::conv1d, {1, false}},
      {c10::aten::conv2d, {2, false}},          {c10::aten::conv3d, {3, false}},
      {c10::aten::conv_transpose1d, {1, true}}, {Symbol::fromQualString("aten::conv_transpose2d"), {2, true}},
      {c10::aten::conv_transpose3d, {3, true}},
  };
  const auto found = table.find(node->kind());
  return found == table.end() ? std::nullopt : std::optional(found->second);
}

bool isNormalization(Symbol kind) {
  return kind == c10::aten::batch_norm || kind == c10::aten::instance_norm;
}

bool isDropout(const Node* node) {
  static const std::unordered_set<std::string> names{"aten::dropout",
                                                     "aten::dropout_",
                                                     "aten::feature_dropout",
                                                     "aten::feature_dropout_",
                                                     "aten::alpha_dropout",
                                                     "aten::alpha_dropout_",
                                                     "aten::feature_alpha_dropout",
                                                     "aten::feature_alpha_dropout_"};
  return names.count(node->kind().toQualString()) > 0;
}

bool movesData(const Node* node) {
  static const auto movers = symbols({
      "aten::alias",
      "aten::channel_shuffle",
      "aten::chunk",
      "aten::clone",
      "aten::contiguous",
      "aten::detach",
      "aten::expand",
      "aten::expand_as",
      "aten::flatten",
      "aten::flip",
      "aten::max_pool1d",
      "aten::max_pool2d",
      "aten::movedim",
      "aten::narrow",
      "aten::native_channel_shuffle",
      "aten::permute",
      "aten::pixel_shuffle",
      "aten::pixel_unshuffle",
      "aten::relu",
      "aten::repeat",
      "aten::reshape",
      "aten::select",
      "aten::slice",
      "aten::split",
      "aten::split_with_sizes",
      "aten::squeeze",
      "aten::t",
      "aten::transpose",
      "aten::unbind",
      "aten::unflatten",
      "aten::unsqueeze",

      "aten::upsample_nearest2d",
      "aten::upsample_nearest3d",
      "aten::view",
      "aten::view_as",
  });
  static const auto pads = symbols({"aten::constant_pad_nd", "aten::pad"});
  if (node->inputs().empty() || node->outputs().size() != 1) {
    return false;
  }
  if (node->kind() == c10::aten::view && node->input(1)->type()->kind() != c10::TypeKind::ListType) {
    return false; // view(dtype) looks at other values
  }
  return movers.count(node->kind()) ||
         (pads.count(node->kind()) && padsWithZeros(node) && padsTwoAxesAtMost(node));
}

bool isElementwise(const Node* node) {
  static const auto kinds = [] {
    std::unordered_set<Symbol> all;
    for (const auto& [tensors, names] : elementwiseTable()) {
      std::transform(names.begin(), names.end(), std::inserter(all, all.end()), Symbol::fromQualString);
    }
    return all;
  }();
  return kinds.count(node->kind()) && node->outputs().size() == 1 &&
         node->output()->type()->isSubtypeOf(*c10::TensorType::get());
}

std::vector<std::string> elementwiseKinds(size_t tensors) {
  const auto found = elementwiseTable().find(tensors);
  return found == elementwiseTable().end() ? std::vector<std::string>{} : found->second;
}

bool fastOnFbgemm(
    at::IntArrayRef weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    int64_t groups) {
  const bool depthwise = weight.at(1) == 1;
  if (groups == 1 || (!depthwise && groups <= 100)) {
    return true;
  }
  const auto window = weight.slice(2);
  const int64_t size = window.at(0);
  const bool known_window = window.size() == 2 ? size == 3 || size == 5 : window.size() == 3 && size == 3;
  const auto each = [](at::IntArrayRef numbers, auto holds) {
    return std::all_of(numbers.begin(), numbers.end(), holds);
  };
  return depthwise && groups % 8 == 0 && known_window && each(window, [&](int64_t k) { return k == size; }) &&
         each(stride, [](int64_t s) { return s == 1 || s == 2; }) &&
         each(padding, [&](int64_t p) { return p == size / 2; }) &&
         each(dilation, [](int64_t d) { return d == 1; });
}

bool isQuantization(const Node* node) {
  static const auto dialect = Symbol::fromQualString("namespaces::jit_passes");
  static const auto of_the_model = symbols(
      {"jit_passes::correlation", "jit_passes::add_bias", "jit_passes::fold_bias",
       "jit_passes::deferred_batch_norm"});
  return node->kind().ns() == dialect && !of_the_model.count(node->kind());
}

bool asksForShape(const Node* node) {
  static const auto questions = symbols({"aten::size", "aten::dim", "aten::numel", "aten::len"});
  return questions.count(node->kind()) > 0;
}

} // namespace jit_passes
