#include "size_formulas.h"

#include "facts/shape_facts.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

const auto pad_kind = symbol("aten::pad"), min_kind = symbol("prim::min"), max_kind = symbol("prim::max");

// The tensor and the axis whose size a number is.
std::optional<std::pair<Value*, int64_t>> askedBy(const Value* number) {
  const Node* node = number->node();
  const auto axisIn = [](const Value* value) {
    const auto axis = constantNumber(value);
    return axis ? std::optional(static_cast<int64_t>(*axis)) : std::nullopt;
  };
  if (node->kind() == aten::size && node->inputs().size() == 2) {
    const auto axis = axisIn(inputOf(node, "dim"));
    return axis ? std::optional(std::pair(inputOf(node, "self"), *axis)) : std::nullopt;
  }
  const bool unpacks = node->kind() == prim::ListUnpack;
  const Node* list = unpacks || node->kind() == aten::__getitem__ ? mainOperand(node)->node() : nullptr;
  if (list == nullptr || list->kind() != aten::size || list->inputs().size() != 1) {
    return std::nullopt;
  }
  const auto axis = unpacks ? std::optional<int64_t>(number->offset()) : axisIn(inputOf(node, "idx"));
  return axis ? std::optional(std::pair(inputOf(list, "self"), *axis)) : std::nullopt;
}

// An element of a list with one number for each axis, or with one number for all axes.
std::optional<int64_t> listed(const Node* node, const char* name, int64_t index) {
  const Value* operand = operandOf(node, name);
  const auto list = operand ? constantInts(operand) : std::nullopt;
  if (!list || list->empty()) {
    return std::nullopt;
  }
  return list->size() == 1               ? list->front()
         : index < int64_t(list->size()) ? std::optional((*list)[index])
                                         : std::nullopt;
}

} // namespace

bool SizeFormulas::isLate(const Value* number) {
  const auto [known, added] = late_.emplace(number, false);
  if (!added) {
    return known->second;
  }
  bool late = false;
  if (const auto asked = askedBy(number)) {
    late = !is_early_(asked->first);
  } else if (isConversion(number->node()) || computesSizes(number->node())) {
    late =
        std::ranges::any_of(number->node()->inputs(), [&](const Value* operand) { return isLate(operand); });
  }
  return late_[number] = late;
}

Value* SizeFormulas::ofNumber(Value* number, Node* before) {
  before_ = before;
  return this->number(number);
}

Value* SizeFormulas::number(int64_t value) {
  Value* made = insertConstant(before_, value);
  made_.push_back(made->node());
  return made;
}

void SizeFormulas::removeUnused() {
  for (auto node = made_.rbegin(); node != made_.rend(); ++node) {
    if (!(*node)->hasUses()) {
      (*node)->destroy();
    }
  }
  made_.clear();
}

Value* SizeFormulas::number(Value* value) {
  if (!isLate(value)) {
    return value;
  }
  if (const auto known = numbers_.find(value); known != numbers_.end()) {
    return known->second;
  }
  Value* found = nullptr;
  if (const auto asked = askedBy(value)) {
    found = ofAxis(asked->first, asked->second);
  } else if (isConversion(value->node())) {
    found = number(value->node()->input());
  } else {
    Value *a = number(value->node()->input(0)), *b = a ? number(value->node()->input(1)) : nullptr;
    found = b ? make(value->node()->kind(), a, b) : nullptr;
  }
  return numbers_[value] = found;
}

Value* SizeFormulas::make(c10::Symbol kind, Value* a, Value* b) {
  if (a == nullptr || b == nullptr) {
    return nullptr;
  }
  Value* made = insertValue(before_, kind, {a, b}, before_, c10::IntType::get());
  made_.push_back(made->node());
  return made;
}

Value* SizeFormulas::ofAxis(const Value* tensor, int64_t axis) {
  const Extent extent = shapes_.ofAxis(tensor, axis);
  if (const auto known = extent.number()) {
    return number(*known);
  }
  if (const Value* integer = extent.integer()) {
    return isTensor(integer) ? nullptr : number(const_cast<Value*>(integer));
  }
  const auto& [of, own] = *extent.axis();
  if (own < 0) {
    return nullptr;
  }
  const auto [known, added] = axes_.emplace(std::pair(of, own), nullptr);
  if (added) {
    Value* found = find(of, own);
    axes_[{of, own}] = found;
    return found;
  }
  return known->second;
}

Value* SizeFormulas::find(const Value* tensor, int64_t axis) {
  if (shapes_.isWritten(tensor)) {
    return nullptr;
  }
  if (is_early_(tensor)) {
    return make(aten::size, const_cast<Value*>(tensor), axis);
  }
  const Node* node = tensor->node();
  const auto own = shapes_.rank(tensor);
  if (!own) {
    return nullptr;
  }
  const auto weighted = weightedOperator(node);
  const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node);
  if (spatial > 0 && axis >= *own - spatial) {
    return ofWindow(node, axis, axis - (*own - spatial));
  }
  if (node->kind() == pad_kind) {
    return ofPadded(node, axis);
  }
  if (node->kind() == aten::slice) {
    return ofSlice(node, axis);
  }
  if (broadcasts(node)) {
    return ofBroadcast(node, axis);
  }
  return node->kind() == aten::cat || node->kind() == aten::flatten ? ofJoined(node, axis) : nullptr;
}

// For a convolution or pool: (size + 2 padding - dilation (window - 1) - 1) / stride + 1, rounded down.
Value* SizeFormulas::ofWindow(const Node* node, int64_t axis, int64_t spatial) {
  const auto weighted = weightedOperator(node);
  static const auto pools = symbols(
      {"aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d", "aten::avg_pool1d", "aten::avg_pool2d",
       "aten::avg_pool3d"});
  if ((weighted && weighted->transposed) || (!weighted && pools.count(node->kind()) == 0)) {
    return nullptr;
  }
  std::optional<int64_t> window, stride = listed(node, "stride", spatial);
  if (weighted) {
    window = shapes_.ofAxis(inputOf(node, "weight"), spatial + 2).number();
  } else {
    window = listed(node, "kernel_size", spatial);
    stride = stride ? stride : constantInts(node, "stride") ? window : std::nullopt;
    if (constantNumber(node, "ceil_mode") != 0.0) {
      return nullptr;
    }
  }
  const auto padding = listed(node, "padding", spatial);
  const auto dilation = operandOf(node, "dilation") ? listed(node, "dilation", spatial) : 1;
  if (!window || !stride || !padding || !dilation || *stride < 1) {
    return nullptr;
  }
  Value* size = ofAxis(mainOperand(node), axis);
  size = make(aten::add, size, 2 * *padding - *dilation * (*window - 1) - 1);
  return make(aten::add, *stride == 1 ? size : make(aten::floordiv, size, *stride), int64_t{1});
}

// The list of pads has two numbers for each axis, beginning with the last axis.
Value* SizeFormulas::ofPadded(const Node* pad, int64_t axis) {
  const int64_t pair = *shapes_.rank(pad->output()) - 1 - axis;
  const Value* pads = inputOf(pad, "pad");
  Value* size = ofAxis(inputOf(pad, "self"), axis);
  const auto constants = constantInts(pads);
  const bool listed = pads->node()->kind() == prim::ListConstruct && !shapes_.isWritten(pads);
  if ((!constants && !listed) || size == nullptr) {
    return nullptr;
  }
  const int64_t count = constants ? constants->size() : pads->node()->inputs().size();
  for (int64_t i = 2 * pair; i < std::min(2 * pair + 2, count) && size != nullptr; ++i) {
    size = make(
        aten::add, size,
        constants ? number((*constants)[i]) : number(const_cast<Value*>(pads->node()->input(i))));
  }
  return size;
}

// For the axis that a slice cuts: (end - start + step - 1) / step, with start and end clamped to the axis.
Value* SizeFormulas::ofSlice(const Node* slice, int64_t axis) {
  if (slice->inputs().size() != 5) {
    return nullptr;
  }
  const auto given = constantNumber(slice, "dim"), step = constantNumber(slice, "step");
  const auto start = isNone(slice, "start") ? 0.0 : constantNumber(slice, "start");
  const int64_t along = given ? static_cast<int64_t>(*given) : 0;
  const int64_t cut = along < 0 ? along + *shapes_.rank(slice->output()) : along;
  Value* size = ofAxis(inputOf(slice, "self"), axis);
  if (!given || axis != cut) {
    return given ? size : nullptr;
  }
  if (!step || !start || *start < 0 || *step < 1) {
    return nullptr;
  }
  Value* end = size;
  if (Value* given_end = inputOf(slice, "end"); !isNone(given_end)) {
    if (!shapes_.isNotNegative(given_end)) {
      return nullptr;
    }
    const auto last = constantNumber(given_end);
    const bool far = last && *last >= static_cast<double>(std::numeric_limits<int32_t>::max());
    end = far ? size : make(min_kind, number(given_end), size);
  }
  if (*start > 0) {
    end = make(max_kind, make(aten::sub, end, static_cast<int64_t>(*start)), int64_t{0});
  }
  const auto by = static_cast<int64_t>(*step);
  return by == 1 ? end : make(aten::floordiv, make(aten::add, end, by - 1), by);
}

// The size of an axis that broadcasts: max(a, b), or 0 if one of them is 0. Both sizes are equal, or one of them is
// 1.
Value* SizeFormulas::ofBroadcast(const Node* node, int64_t axis) {
  const int64_t behind = axis - *shapes_.rank(node->output());
  std::vector<Value*> sizes;
  for (const size_t operand : {0, 1}) {
    const Value* tensor = node->input(operand);
    const auto own = shapes_.rank(tensor);
    if (!own) {
      return nullptr;
    }
    if (*own + behind >= 0) {
      Value* size = ofAxis(tensor, *own + behind);
      if (size == nullptr) {
        return nullptr;
      }
      if (constantNumber(size) != 1.0) {
        sizes.push_back(size);
      }
    }
  }
  if (sizes.empty()) {
    return number(1);
  }
  if (sizes.size() == 1 || sizes[0] == sizes[1]) {
    return sizes[0];
  }
  Value* some = make(aten::mul, make(min_kind, sizes[0], int64_t{1}), make(min_kind, sizes[1], int64_t{1}));
  return make(aten::mul, make(max_kind, sizes[0], sizes[1]), some);
}

// For an axis along which cat joins tensors, or that flatten makes.
Value* SizeFormulas::ofJoined(const Node* node, int64_t axis) {
  const bool adds = node->kind() == aten::cat;
  const Node* list = mainOperand(node)->node();
  const auto first = constantNumber(node->input(1)), last = adds ? first : constantNumber(node->input(2));
  const Value* operand = adds && list->kind() == prim::ListConstruct && !list->inputs().empty()
                             ? list->input(0)
                             : mainOperand(node);
  const auto own = isTensor(operand) ? shapes_.rank(operand) : std::nullopt;
  if (!first || !last || !own || shapes_.isWritten(mainOperand(node))) {
    return nullptr;
  }
  const int64_t rank = *own;
  const auto placed = [rank](double at) { return static_cast<int64_t>(at) + (at < 0 ? rank : 0); };
  if (axis != placed(*first)) {
    return nullptr;
  }
  Value* size = nullptr;
  const int64_t count = adds ? list->inputs().size() : placed(*last) - placed(*first) + 1;
  for (int64_t i = 0; i < count; ++i) {
    Value* next = adds ? ofAxis(list->input(i), axis) : ofAxis(mainOperand(node), axis + i);
    size = i == 0 ? next : make(adds ? aten::add : aten::mul, size, next);
    if (size == nullptr) {
      return nullptr;
    }
  }
  return size;
}

} // namespace jit_passes
