// Name the axes that a reshape joins or splits, instead of sizes that the model computes.
//
//   %n, %c, %h, %w = aten::size(%x)
//   %y = aten::reshape(%x, [%n, 2, %c // 2, %h, %w])   ->   %y = aten::unflatten(%x, 1, [2, -1])
//   %z = aten::reshape(%x, [%n, -1])                   ->   %z = aten::flatten(%x, 1, -1)
//
// Sizes in front and behind are those of the operand, so what is left of both has as many elements. One axis that
// is left of the result joins those of the operand; one that is left of the operand is split. Only tensors without
// elements could have been given other sizes. Convolutions and pools are taken to have a batch axis. A reshape to
// constants says all that there is to know, and stays.
#include "core/alias.h"
#include "core/graph.h"
#include "core/known_values.h"
#include "core/operators.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

// A number where there is no value; an axis of a tensor; or whatever an integer value holds.
struct Extent {
  const Value* value = nullptr;
  int64_t number = 0;

  bool operator==(const Extent&) const = default;
  bool isNumber() const { return value == nullptr; }
};

// Axes that a pool, or what resizes an image, works along.
int64_t spatialOf(const Node* node) {
  static const auto kinds = [] {
    std::unordered_map<c10::Symbol, int64_t> found;
    for (const char* name : {"max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"}) {
      for (int64_t axes = 1; axes <= 3; ++axes) {
        found.emplace(symbol(c10::str("aten::", name, axes, "d")), axes);
      }
    }
    return found;
  }();
  const auto found = kinds.find(node->kind());
  return found == kinds.end() ? 0 : found->second;
}

// Whether the result has the shape of the first operand.
bool keepsShape(const Node* node) {
  static const auto kinds = symbols(
      {"aten::contiguous", "aten::detach", "aten::alias", "aten::clone", "aten::batch_norm",
       "jit_passes::quantize", "jit_passes::dequantize"});
  const auto tensors = std::count_if(node->inputs().begin(), node->inputs().end(), isTensor);
  return kinds.count(node->kind()) || isDropout(node) || (isElementwise(node) && tensors == 1);
}

class Shapes {
 public:
  explicit Shapes(const PassContext& context) : known_(context) {}

  std::optional<int64_t> rank(const Value* tensor) const {
    const Node* node = tensor->node();
    if (known_.isWritten(tensor)) {
      return std::nullopt;
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
        }
      }
    }
    const auto weighted = weightedOperator(node);
    if (const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node)) {
      return spatial + 2;
    }
    if (keepsShape(node) || weighted || node->kind() == aten::transpose || node->kind() == aten::slice) {
      return rank(node->input(0));
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
      return own ? std::optional(*own + change->second - change->first) : std::nullopt;
    }
    return known_.rank(tensor);
  }

  Extent ofNumber(const Value* value) const {
    const Node* node = value->node();
    static const auto conversions =
        symbols({"prim::NumToTensor", "aten::Int", "aten::ScalarImplicit", "aten::IntImplicit"});
    if (const auto constant = constantOf(value); constant && constant->isInt()) {
      return {nullptr, constant->toInt()};
    }
    if (conversions.count(node->kind()) && node->inputs().size() == 1) {
      return ofNumber(node->input(0));
    }
    const Value* sizes = node->kind() == aten::size ? value
                         : node->inputs().empty()   ? nullptr
                                                    : node->input(0);
    if (sizes == nullptr || sizes->node()->kind() != aten::size || known_.isWritten(sizes)) {
      return {value};
    }
    const Value* tensor = sizes->node()->input(0);
    const Node* reader = value == sizes || node->kind() == aten::__getitem__ ? node : nullptr;
    if (node->kind() == prim::ListUnpack) {
      return ofAxis(tensor, value->offset(), {value});
    }
    const auto axis = reader && reader->inputs().size() == 2 ? constantOf(reader->input(1)) : std::nullopt;
    return axis && axis->isInt() ? ofAxis(tensor, axis->toInt(), {value}) : Extent{value};
  }

  Extent ofAxis(const Value* tensor, int64_t axis) const { return ofAxis(tensor, axis, {tensor, axis}); }

  // The sizes that a reshape is given; -1 for the one that is open.
  std::optional<std::vector<Extent>> sizesGiven(const Value* tensor) const {
    const Node* node = tensor->node();
    if (node->kind() != aten::reshape || known_.isWritten(node->input(1))) {
      return std::nullopt;
    }
    std::vector<Extent> sizes;
    if (const auto constant = constantInts(node->input(1))) {
      for (const int64_t size : *constant) {
        sizes.push_back({nullptr, size});
      }
    } else if (node->input(1)->node()->kind() == prim::ListConstruct) {
      for (const Value* size : node->input(1)->node()->inputs()) {
        sizes.push_back(ofNumber(size));
      }
    } else {
      return std::nullopt;
    }
    return sizes;
  }

  bool isWritten(const Value* value) const { return known_.isWritten(value); }

 private:
  // The first axis that flatten or unflatten works on, and how many become how many: of the operand, of the result.
  struct Split {
    int64_t axis, first, second;
  };

  std::optional<Split> split(const Node* node) const {
    const auto one = constantOf(node->input(1)), two = constantOf(node->input(2));
    if (!one || !two || !one->isInt() || one->toInt() < 0) {
      return std::nullopt;
    }
    if (node->kind() == aten::unflatten) {
      return two->isIntList() ? std::optional(Split{one->toInt(), 1, int64_t(two->toIntVector().size())})
                              : std::nullopt;
    }
    const auto own = rank(node->input(0));
    const int64_t last = two->toInt() < 0 && own ? two->toInt() + *own : two->toInt();
    return last >= 0 ? std::optional(Split{one->toInt(), last - one->toInt() + 1, 1}) : std::nullopt;
  }

  // `opaque` where nothing is known of the tensor.
  Extent ofAxis(const Value* tensor, int64_t axis, Extent opaque) const {
    if (known_.isWritten(tensor)) {
      return opaque;
    }
    if (axis < 0) {
      const auto own = rank(tensor);
      if (!own || axis + *own < 0) {
        return opaque;
      }
      axis += *own;
    }
    const Node* node = tensor->node();
    const Value* from = node->inputs().empty() ? nullptr : node->input(0);
    if (keepsShape(node)) {
      return ofAxis(from, axis);
    }
    if (const auto sizes = sizesGiven(tensor); sizes && axis < int64_t(sizes->size())) {
      const Extent size = (*sizes)[axis];
      return size.isNumber() && size.number < 0 ? Extent{tensor, axis} : size;
    }
    if (node->kind() == aten::transpose) {
      const auto a = constantOf(node->input(1)), b = constantOf(node->input(2));
      if (a && b && a->toInt() >= 0 && b->toInt() >= 0) {
        return ofAxis(from, axis == a->toInt() ? b->toInt() : axis == b->toInt() ? a->toInt() : axis);
      }
    } else if (node->kind() == aten::flatten || node->kind() == aten::unflatten) {
      const auto change = split(node);
      if (change && axis < change->axis) {
        return ofAxis(from, axis);
      }
      if (change && axis >= change->axis + change->second) {
        return ofAxis(from, axis - change->second + change->first);
      }
    } else if (const auto own = rank(tensor)) {
      const auto weighted = weightedOperator(node);
      const auto weight = weighted ? known_.tensor(node->input(1)) : std::nullopt;
      const int64_t spatial = weighted ? weighted->spatial_dims : spatialOf(node),
                    channels = *own - 1 - spatial;
      if ((weighted || spatial) && (axis < channels || (!weighted && axis == channels))) {
        return ofAxis(from, axis);
      }
      if (weight && axis == channels && !weighted->transposed) {
        return {nullptr, weight->size(0)};
      }
    }
    return {tensor, axis};
  }

  KnownValues known_;
};

// flatten(axis, argument) or unflatten(axis, argument), which a reshape is.
struct NamedAxes {
  Node* node;
  c10::Symbol kind;
  int64_t axis;
  c10::IValue argument;
};

std::optional<NamedAxes> namedAxes(const Shapes& shapes, Node* node) {
  if (node->kind() != aten::reshape || isConstant(node->input(1)) || shapes.isWritten(node->output()) ||
      shapes.isWritten(node->input(0))) {
    return std::nullopt;
  }
  const Value* from = node->input(0);
  const auto sizes = shapes.sizesGiven(node->output());
  if (!sizes) {
    return std::nullopt;
  }
  const auto rank = shapes.rank(from);
  const int64_t count = sizes->size(), axes = rank.value_or(0);
  int64_t front = 0, behind = 0;
  while (front < std::min(count, axes) && (*sizes)[front] == shapes.ofAxis(from, front)) {
    ++front;
  }
  while (behind < std::min(count, axes) - front &&
         (*sizes)[count - 1 - behind] == shapes.ofAxis(from, axes - 1 - behind)) {
    ++behind;
  }
  if (front > 0 && (front + behind == count) != (front + behind == axes)) {
    --front; // axes of size 1 go into the one in front of them, or come out of it
  }
  const int64_t left = count - front - behind;
  if (left == 1 && axes > front + behind) {
    return NamedAxes{node, aten::flatten, front, behind == 0 ? -1 : axes - 1 - behind};
  }
  std::vector<int64_t> parts;
  for (int64_t i = front; i < front + left; ++i) {
    parts.push_back((*sizes)[i].isNumber() ? (*sizes)[i].number : -1);
  }
  // One of them follows from the others.
  if (left > 1 && axes == front + behind + 1 && std::count(parts.begin(), parts.end(), -1) <= 1 &&
      std::count(parts.begin(), parts.end(), 0) == 0) {
    return NamedAxes{node, aten::unflatten, front, parts};
  }
  return std::nullopt;
}

bool canonicalizeReshape(PassContext& context) {
  const auto graph = context.graph();
  const Shapes shapes(context);
  std::vector<NamedAxes> found; // all of them before the first is replaced, whose sizes others go by
  forEachNode(*graph, [&](Node* node) {
    if (auto named = namedAxes(shapes, node)) {
      found.push_back(std::move(*named));
    }
  });
  for (const auto& [node, kind, axis, argument] : found) {
    const std::vector<Value*> operands{
        node->input(0), insertConstant(node, axis), insertConstant(node, argument)};
    replaceNode(node, insertValue(node, kind, operands, node));
  }
  return !found.empty();
}

const RegisterPass canonicalize_reshape_pass{
    "canonicalize_reshape", "Name the axes that a reshape joins or splits, instead of computed sizes.",
    canonicalizeReshape, needs("inlined")};

} // namespace
} // namespace jit_passes
