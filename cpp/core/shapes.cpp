#include "shapes.h"

#include "einsum.h"
#include "operators.h"

namespace jit_passes {
namespace {

// Axes that a pool, or what resizes an image, works along.
int64_t spatialOf(const Node* node) {
  static const auto kinds = [] {
    std::unordered_map<c10::Symbol, int64_t> found;
    for (const char* name :
         {"max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "upsample_nearest"}) {
      for (int64_t axes = 1; axes <= 3; ++axes) {
        found.emplace(symbol(c10::str("aten::", name, axes, "d")), axes);
      }
    }
    found.emplace(symbol("aten::upsample_linear1d"), 1);
    found.emplace(symbol("aten::upsample_bilinear2d"), 2);
    found.emplace(symbol("aten::upsample_bicubic2d"), 2);
    found.emplace(symbol("aten::upsample_trilinear3d"), 3);
    return found;
  }();
  const auto found = kinds.find(node->kind());
  return found == kinds.end() ? 0 : found->second;
}

const auto to_kind = symbol("aten::to");

const auto attention = symbol("aten::scaled_dot_product_attention");

// The sizes of two operands that broadcast: an axis of both has one size, or one of them 1.
Extent broadcast(const Extent& a, const Extent& b, const Extent& otherwise) {
  const auto is_one = [](const Extent& extent) { return extent.isNumber() && extent.number == 1; };
  const auto is_more = [](const Extent& extent) { return extent.isNumber() && extent.number > 1; };
  return a == b || is_one(a) || is_more(b) ? b : is_one(b) || is_more(a) ? a : otherwise;
}

bool broadcasts(const Node* node) {
  return isElementwise(node) && std::count_if(node->inputs().begin(), node->inputs().end(), isTensor) == 2 &&
         isTensor(node->input(0)) && isTensor(node->input(1));
}

// The rank that unpacking `sizes[:-1]` tells.
std::optional<int64_t> countedBut(const Node* slice) {
  if (slice->kind() != aten::slice || !isNone(slice->input(1)) || constantNumber(slice->input(3)) != 1.0) {
    return std::nullopt;
  }
  const auto end = constantNumber(slice->input(2));
  for (const Use& use : slice->output()->uses()) {
    if (use.user->kind() == prim::ListUnpack && end && *end < 0 &&
        use.user->owningBlock() == slice->owningBlock()) {
      return int64_t(use.user->outputs().size()) - static_cast<int64_t>(*end);
    }
  }
  return std::nullopt;
}

// arange(end, ...), or arange(0, end, ...)
bool isCount(const Node* node) {
  return node->kind() == aten::arange &&
         (node->inputs().size() == 5 ||
          (node->inputs().size() == 6 && constantNumber(node->input(0)) == 0.0));
}

} // namespace

bool keepsShape(const Node* node) {
  static const auto kinds = symbols(
      {"aten::to", "aten::contiguous", "aten::detach", "aten::alias", "aten::clone", "aten::batch_norm",
       "aten::softmax", "aten::_safe_softmax", "aten::layer_norm", "aten::rms_norm", "aten::roll",
       "jit_passes::quantize", "jit_passes::dequantize"});
  const auto tensors = std::count_if(node->inputs().begin(), node->inputs().end(), isTensor);
  return kinds.count(node->kind()) || isDropout(node) ||
         (isElementwise(node) && tensors == 1 && isTensor(node->input(0)));
}

bool isUnbound(const Node* node) {
  return node->kind() == prim::ListUnpack && node->input(0)->node()->kind() == aten::unbind;
}

bool isToFloat(const Node* node) {
  const auto* schema = node->kind() == to_kind ? node->maybeSchema() : nullptr;
  return schema != nullptr && schema->overload_name() == "dtype" &&
         constantNumber(node->input(1)) == static_cast<double>(at::kFloat);
}

std::optional<int64_t> Shapes::rank(const Value* tensor) const {
  const auto [known, added] = ranks_.emplace(tensor, std::nullopt);
  if (added) {
    const auto found = findRank(tensor);
    return ranks_[tensor] = found;
  }
  return known->second;
}

std::optional<int64_t> Shapes::findRank(const Value* tensor) const {
  const Node* node = tensor->node();
  if (known_.isWritten(tensor)) {
    return std::nullopt;
  }
  if (const auto known = known_.rank(tensor)) {
    return known;
  }
  if (const auto sizes = sizesGiven(tensor)) {
    return sizes->size();
  }
  for (const Use& use : tensor->uses()) {
    if (use.user->kind() == aten::size && use.user->inputs().size() == 1) {
      for (const Use& list : use.user->output()->uses()) {
        // It is unpacked whenever the tensor is there.
        if (list.user->kind() == prim::ListUnpack && list.user->owningBlock() == node->owningBlock()) {
          return list.user->outputs().size();
        }
        if (const auto more = countedBut(list.user);
            more && list.user->owningBlock() == node->owningBlock()) {
          return more;
        }
      }
    }
    if (const auto own = rankRead(use)) {
      return own;
    }
  }
  if (const auto own = rankMade(tensor)) {
    return own;
  }
  for (const Use& use : tensor->uses()) {
    const auto weighted = weightedOperator(use.user);
    const bool keeps =
        keepsShape(use.user) || (weighted && weighted->spatial_dims == 0 && weightRank(use.user) != 1);
    if (keeps && use.offset == 0 && use.user->owningBlock() == node->owningBlock()) {
      if (const auto own = rank(use.user->output())) {
        return own;
      }
    }
  }
  return std::nullopt;
}

// The rank that follows from the operands of the operator that makes it.
std::optional<int64_t> Shapes::rankMade(const Value* tensor) const {
  const Node* node = tensor->node();
  const auto weighted = weightedOperator(node);
  if (const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node)) {
    return batched_ ? std::optional(spatial + 2) : rank(node->input(0));
  }
  if (weighted) {
    const auto own = rank(node->input(0));
    return own ? std::optional(*own - (weightRank(node) == 1)) : std::nullopt;
  }
  if (keepsShape(node) || node->kind() == aten::transpose || node->kind() == aten::slice ||
      node->kind() == attention) {
    return rank(node->input(0));
  }
  if (node->kind() == aten::permute) {
    const auto axes = constantInts(node->input(1));
    return axes ? std::optional<int64_t>(axes->size()) : rank(node->input(0));
  }
  if (node->kind() == aten::embedding) {
    const auto own = rank(node->input(1));
    return own ? std::optional(*own + 1) : std::nullopt;
  }
  if (isCount(node)) {
    return 1;
  }
  if (const auto labels = einsumLabels(node)) {
    return labels->result.size();
  }
  if (node->kind() == aten::unsqueeze) {
    const auto own = rank(node->input(0));
    return own ? std::optional(*own + 1) : std::nullopt;
  }
  if (node->kind() == aten::expand) {
    const auto sizes = ofList(node->input(1));
    return sizes ? std::optional<int64_t>(sizes->size()) : std::nullopt;
  }
  if (node->kind() == aten::select || isUnbound(node)) {
    const auto own = rank(node->kind() == aten::select ? node->input(0) : node->input(0)->node()->input(0));
    return own ? std::optional(*own - 1) : std::nullopt;
  }
  if (node->kind() == aten::matmul || broadcasts(node)) {
    const auto a = rank(node->input(0)), b = rank(node->input(1));
    const bool whole = a && b && (node->kind() != aten::matmul || std::min(*a, *b) >= 2);
    return whole ? std::optional(std::max(*a, *b)) : std::nullopt;
  }
  if (node->kind() == aten::cat || node->kind() == prim::ListUnpack) {
    const Node* list = node->input(0)->node();
    const bool made = node->kind() == aten::cat ? list->kind() == prim::ListConstruct : movesData(list);
    for (const Value* element : made ? list->inputs() : at::ArrayRef<const Value*>()) {
      if (const auto own = isTensor(element) ? rank(element) : std::nullopt) {
        return own;
      }
    }
  }
  if (node->kind() == aten::flatten || node->kind() == aten::unflatten) {
    const auto change = split(node);
    const auto own = change ? rank(node->input(0)) : std::nullopt;
    if (change && !own && node->kind() == aten::flatten && constantOf(node->input(2))->toInt() == -1) {
      return change->axis + 1;
    }
    return own ? std::optional(*own + change->second - change->first) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<int64_t> Shapes::weightRank(const Node* linear) const {
  const auto weight = known_.tensor(linear->input(1));
  return weight ? std::optional(weight->dim()) : rank(linear->input(1));
}

// The rank that a reader takes.
std::optional<int64_t> Shapes::rankRead(const Use& use) const {
  const Node* reader = use.user;
  if (use.offset != 0 || (reader->kind() != aten::permute && reader->kind() != aten::unflatten)) {
    return std::nullopt;
  }
  if (reader->owningBlock() != reader->input(0)->node()->owningBlock()) {
    return std::nullopt; // it need not run whenever the tensor is there
  }
  const auto numbers = constantInts(reader->inputs().back());
  if (!numbers || reader->kind() == aten::permute) {
    return numbers ? std::optional<int64_t>(numbers->size()) : std::nullopt;
  }
  const auto split = rank(reader->output());
  return split ? std::optional<int64_t>(*split + 1 - int64_t(numbers->size())) : std::nullopt;
}

std::optional<Shapes::Split> Shapes::split(const Node* node) const {
  const auto one = constantOf(node->input(1)), two = constantOf(node->input(2));
  if (!one || !two || !one->isInt()) {
    return std::nullopt;
  }
  const auto own = rank(node->input(0));
  const int64_t first = one->toInt() < 0 && own ? one->toInt() + *own : one->toInt();
  if (first < 0) {
    return std::nullopt;
  }
  if (node->kind() == aten::unflatten) {
    return two->isIntList() ? std::optional(Split{first, 1, int64_t(two->toIntVector().size())})
                            : std::nullopt;
  }
  const int64_t last = two->toInt() < 0 && own ? two->toInt() + *own : two->toInt();
  if (last == -1) {
    return Split{first, 1, 1}; // up to the last axis, wherever that is: none is behind
  }
  return last >= 0 ? std::optional(Split{first, last - first + 1, 1}) : std::nullopt;
}

Extent Shapes::ofAxis(const Value* tensor, int64_t axis, Extent opaque) const {
  if (known_.isWritten(tensor)) {
    return opaque;
  }
  if (axis < 0) {
    const auto own = rank(tensor);
    const auto linear = weightedOperator(tensor->node());
    if (!own && axis == -1 && linear && linear->spatial_dims == 0) {
      const auto weight = known_.tensor(tensor->node()->input(1));
      return weight && weight->dim() == 2 ? Extent{nullptr, weight->size(0)} : opaque;
    }
    if (!own || axis + *own < 0) {
      return opaque;
    }
    axis += *own;
  }
  const auto [known, added] = extents_.emplace(std::pair(tensor, axis), Extent{tensor, axis});
  if (!added) {
    return known->second;
  }
  Extent found = findExtent(tensor, axis);
  if (found.value != nullptr && known_.isWritten(found.value)) {
    found = {tensor, axis}; // of a shape that is another one before the write, and behind it
  }
  return extents_[{tensor, axis}] = found;
}

Extent Shapes::findExtent(const Value* tensor, int64_t axis) const {
  const Node* node = tensor->node();
  const Value* from = node->inputs().empty() ? nullptr : node->input(0);
  if (const auto constant = known_.tensor(tensor); constant && axis < constant->dim()) {
    return {nullptr, constant->size(axis)};
  }
  if (keepsShape(node)) {
    return ofAxis(from, axis);
  }
  if (const auto labels = einsumLabels(node); labels && axis < int64_t(labels->result.size())) {
    return ofLabel(tensor, axis, *labels);
  }
  if (isCount(node)) {
    const Extent end = ofNumber(node->input(node->inputs().size() - 5));
    const bool known = end.isNumber()        ? end.number >= 0
                       : isTensor(end.value) ? end.number != Extent::kHeld
                                             : end.value->type()->kind() == c10::TypeKind::IntType;
    return known ? end : Extent{tensor, axis};
  }
  if (const auto sizes = sizesGiven(tensor); sizes && axis < int64_t(sizes->size())) {
    const Extent size = (*sizes)[axis];
    return size.isNumber() && size.number < 0 ? Extent{tensor, axis} : size;
  }
  if (node->kind() == aten::flatten || node->kind() == aten::unflatten) {
    const auto change = split(node);
    if (change && axis < change->axis) {
      return ofAxis(from, axis);
    }
    if (change && axis >= change->axis + change->second) {
      return ofAxis(from, axis - change->second + change->first);
    }
    if (change && node->kind() == aten::unflatten) {
      const int64_t size = constantOf(node->input(2))->toIntVector()[axis - change->axis];
      return size < 0 ? ofOpen(node, change->axis) : Extent{nullptr, size};
    }
  } else if (const auto moved = ofMoved(tensor, axis)) {
    return *moved;
  } else if (const auto own = rank(tensor)) {
    const auto weighted = weightedOperator(node);
    const auto weight = weighted ? known_.tensor(node->input(1)) : std::nullopt;
    const bool is_vector = weight && weight->dim() == 1; // of a linear layer, and the result has no channels
    const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node),
                  channels = *own - 1 - spatial;
    if ((weighted || spatial) && (axis < channels || ((!weighted || is_vector) && axis == channels))) {
      return ofAxis(from, axis);
    }
    if (weight && axis == channels && !weighted->transposed) {
      return {nullptr, weight->size(0)};
    }
    if (node->kind() == aten::embedding) {
      const auto rows = known_.tensor(from);
      return axis < *own - 1 ? ofAxis(node->input(1), axis)
             : rows          ? Extent{nullptr, rows->size(1)}
                             : Extent{tensor, axis};
    }
    if (node->kind() == aten::matmul || node->kind() == attention || broadcasts(node)) {
      return ofProduct(tensor, axis, *own);
    }
    if (axis == *own - 1) {
      const auto features = featuresRead(tensor);
      return features ? Extent{nullptr, *features} : Extent{tensor, axis};
    }
  }
  return {tensor, axis};
}

// Of an axis of an einsum, which broadcasts.
Extent Shapes::ofLabel(const Value* tensor, int64_t axis, const EinsumLabels& labels) const {
  const auto operands = tensor->node()->input(1)->node()->inputs();
  const auto sizeIn = [&](size_t operand) {
    const size_t own = (operand == 0 ? labels.a : labels.b).find(labels.result[axis]);
    return own == std::string::npos ? Extent{nullptr, 1} : ofAxis(operands[operand], int64_t(own));
  };
  return broadcast(sizeIn(0), sizeIn(1), {tensor, axis});
}

// Of matrix products, attention, and what broadcasts.
Extent Shapes::ofProduct(const Value* tensor, int64_t axis, int64_t rank_of_result) const {
  const Node* node = tensor->node();
  const int64_t behind = axis - rank_of_result; // below 0
  const bool is_matrix = node->kind() == aten::matmul || node->kind() == attention;
  const Value *left = node->input(0), *right = node->input(node->kind() == attention ? 2 : 1);
  if (is_matrix && behind >= -2) {
    return ofAxis(behind == -2 ? left : right, behind);
  }
  std::optional<Extent> size;
  for (const Value* operand : node->inputs().slice(0, node->kind() == attention ? 3 : 2)) {
    const auto own = rank(operand);
    if (!own) {
      return {tensor, axis};
    }
    const Extent next = *own + behind < 0 ? Extent{nullptr, 1} : ofAxis(operand, behind);
    size = size ? broadcast(*size, next, {tensor, axis}) : next;
  }
  return *size;
}

// The features of a value, if a linear layer reads them whenever it is there.
std::optional<int64_t> Shapes::featuresRead(const Value* tensor) const {
  if (known_.isWritten(tensor)) {
    return std::nullopt; // of another shape, perhaps, when it is read
  }
  for (const Use& use : tensor->uses()) {
    if (use.offset != 0 || use.user->owningBlock() != tensor->node()->owningBlock()) {
      continue;
    }
    if (keepsShape(use.user)) {
      if (const auto features = featuresRead(use.user->output())) {
        return features;
      }
    }
    const auto weighted = weightedOperator(use.user);
    if (weighted && weighted->spatial_dims == 0) {
      if (const auto weight = known_.tensor(use.user->input(1)); weight && weight->dim() == 2) {
        return weight->size(1);
      }
    }
  }
  return std::nullopt;
}

} // namespace jit_passes
