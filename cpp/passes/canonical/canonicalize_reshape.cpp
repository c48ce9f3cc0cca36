// Replace reshapes to computed sizes by flatten and unflatten, which name the axes that are joined or split.
//
//   %n, %c, %h, %w = aten::size(%x)
//   %y = aten::reshape(%x, [%n, 2, %c // 2, %h, %w])   ->   %y = aten::unflatten(%x, 1, [2, -1])
//   %z = aten::reshape(%x, [%n, -1])                   ->   %z = aten::flatten(%x, 1, -1)
//
// The first and last sizes that equal the operand's are left out, so the rest of operand and result have equally
// many elements. If one axis of the result is left, it joins the operand's axes. If one axis of the operand is left,
// it is split. Only tensors without elements could have been given other sizes. Convolutions and pools are assumed
// to have a batch axis, unless the sizes match other axes without it. Linear layers have as many axes as the leading
// sizes tell. With an open size after these, the leading sizes need not be the layer's own, and the axes are joined
// first:
//
//   %y = aten::linear(%x, ...)
//   %z = aten::reshape(%y, [%n, %t, -1, 16])           ->   aten::unflatten(aten::flatten(%y, 2, -1), 2, [-1, 16])
//
// If the product of the operand's last axes is the number of features that a linear layer demands of the result,
// they are joined. The one axis in front of them then has equal size in operand and result, even if the graph does
// not know it.
//
//   %y = aten::reshape(%x, [%n, %t, %c]), of [%n, 16, 4, 8], read by a layer of 32   ->   aten::flatten(%x, 2, -1)
//
// Windows of an image: each axis is split into a quotient and a number:
//
//   %y = aten::reshape(%x, [%n, %h // 4, 4, %w // 4, 4, %c])
//     ->   aten::unflatten(aten::unflatten(%x, 2, [-1, 4]), 1, [-1, 4])
//
// Several axes become several others if all sizes but one are numbers. If the numbers divide the last axis, the last
// axis is split, and its first part joins the axes in front. PyTorch's attention joins heads and batch so:
//
//   %y = aten::reshape(%x, [%n, %t * 8, 16]), of [%n, %t, 128]
//     ->   aten::flatten(aten::unflatten(%x, 2, [8, 16]), 1, 2)
//
// An axis of size 1 that squeeze removes is joined to its neighbour.
//
// A reshape to constants stays. Sizes that lose their last use told the ranks of tensors, so certain ranks are kept
// in the tensors' types.
#include <span>

#include "facts/given_sizes.h"
#include "facts/shapes.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// flatten(axis, argument) or unflatten(axis, argument).
struct Step {
  c10::Symbol kind;
  int64_t axis;
  c10::IValue argument;

  bool operator==(const Step& other) const {
    return kind == other.kind && axis == other.axis && argument == other.argument;
  }
};

// A reshape, and the steps that replace it.
struct NamedAxes {
  Node* node;
  std::vector<Step> steps;
  bool matched = true; // whether sizes match axes, rather than regroup them
};

// Sizes for unflatten. A size that is no number becomes -1.
std::vector<int64_t> asParts(std::span<const Extent> sizes) {
  std::vector<int64_t> parts;
  for (const Extent& size : sizes) {
    parts.push_back(size.number().value_or(-1));
  }
  return parts;
}

// The split of a linear layer's features, if only the sizes in front tell the rank.
std::optional<NamedAxes> splitFeatures(const Shapes& shapes, Node* node, const std::vector<Extent>& sizes) {
  const Node* linear = inputOf(node, "self")->node();
  const auto features = shapes.ofAxis(inputOf(node, "self"), -1).number();
  if (linear->kind() != aten::linear || !features) {
    return std::nullopt;
  }
  int64_t axis = sizes.size(), product = 1;
  bool open = false;
  while (axis > 0 && (sizes[axis - 1].isNumber() || (sizes[axis - 1].isOpen() && !open))) {
    --axis;
    open = open || sizes[axis].isOpen();
    product *= sizes[axis].number().value_or(1);
  }
  for (int64_t i = 0; i < axis; ++i) {
    if (sizes[i] != shapes.ofAxis(inputOf(linear, "input"), i)) {
      return std::nullopt;
    }
  }
  const auto parts = asParts(std::span(sizes).subspan(axis));
  if (axis == 0 || parts.size() < 2 || product <= 0) {
    return std::nullopt;
  }
  const Step split{aten::unflatten, axis, parts};
  if (!open) { // without an open size, the sizes split the features alone
    return product == *features ? std::optional(NamedAxes{node, {split}}) : std::nullopt;
  }
  // The axis in front of the open size is no axis of features: else the product would divide the features.
  const auto input = shapes.featuresRead(inputOf(linear, "input")).value_or(0);
  return input > 0 && *features % (input * product) != 0
             ? std::optional(NamedAxes{node, {{aten::flatten, axis, -1}, split}})
             : std::nullopt;
}

// Joins the axes after one axis of unknown size to the features of a linear layer that reads the result.
std::optional<NamedAxes> joinedFeatures(
    const Shapes& shapes, Node* node, const std::vector<Extent>& sizes, int64_t axis, int64_t rank) {
  const bool said = sizes.back().isNumber() || sizes.back().isOpen();
  const auto features = said ? sizes.back().number() : shapes.featuresRead(node->output());
  if (axis + 1 != int64_t(sizes.size()) || rank <= axis + 1 || features.value_or(0) <= 0) {
    return std::nullopt;
  }
  if (sizes[axis - 1].isNumber() && shapes.ofAxis(inputOf(node, "self"), axis - 1).isNumber()) {
    return std::nullopt; // two numbers that differ, which is an error
  }
  int64_t product = 1;
  for (int64_t i = axis; i < rank; ++i) {
    product *= shapes.ofAxis(inputOf(node, "self"), i).number().value_or(0);
  }
  return product == *features ? std::optional(NamedAxes{node, {{aten::flatten, axis, -1}}}) : std::nullopt;
}

// Matches axes of the operand with sizes of the result, from the first and from the last on, as long as a group of
// axes and a group of sizes have equally many elements for certain.
class Matching {
 public:
  Matching(const Shapes& shapes, Node* node, const std::vector<Extent>& to) : shapes_(shapes), to_(to) {
    for (int64_t axis = 0; axis < *shapes.rank(inputOf(node, "self")); ++axis) {
      from_.push_back(shapes.ofAxis(inputOf(node, "self"), axis));
    }
    axes_ = from_.size(), sizes_ = to.size();
  }

  // The steps, the last axes first. Nothing if axes or sizes are left that cannot be matched.
  std::optional<std::vector<Step>> run() {
    while (axes_ > 0 && sizes_ > 0 && matchLast()) {
    }
    while (first_ < axes_ && first_of_to_ < sizes_ && matchFirst()) {
    }
    const int64_t axes = axes_ - first_, sizes = sizes_ - first_of_to_;
    const auto open = std::count_if(to_.begin() + first_of_to_, to_.begin() + sizes_, [](const Extent& size) {
      return !size.isNumber();
    });
    if ((axes == 0) != (sizes == 0) || (axes > 1 && sizes > 1) || (sizes > 1 && open > 1)) {
      return std::nullopt;
    }
    if ((splits_ || joins_) && (axes > 0 || (splits_ && joins_))) {
      return std::nullopt; // 4 * (a // 4) may be less than `a`, and the other axes may make up for that
    }
    if (axes == 1 && sizes == 1 && from_[first_].isNumber() && to_[first_of_to_].isNumber()) {
      return std::nullopt; // two numbers that differ, which is an error
    }
    if (axes > 0 && (axes > 1 || sizes > 1)) {
      add(first_, axes, first_of_to_, sizes);
    }
    std::ranges::sort(steps_, std::greater<>(), &Step::axis);
    return steps_;
  }

 private:
  // Notes that `axes` axes and `sizes` sizes, from these on, are equal elements.
  void add(int64_t axis, int64_t axes, int64_t size, int64_t sizes) {
    if (axes > 1) {
      steps_.push_back({aten::flatten, axis, axis + axes - 1});
    }
    if (sizes > 1) {
      steps_.push_back({aten::unflatten, axis, asParts(std::span(to_).subspan(size, sizes))});
    }
  }

  // Whether a size is the product of neighbours: `a // 4` and 4, or numbers.
  bool isProduct(const Extent& whole, const Extent* begin, const Extent* end) const {
    int64_t product = 1, quotients = 0;
    std::optional<std::pair<Extent, int64_t>> quotient;
    for (const Extent* size = begin; size != end; ++size) {
      if (const auto found = shapes_.asQuotient(*size)) {
        quotient = found, ++quotients;
      } else if (size->number().value_or(0) <= 0) {
        return false;
      } else {
        product *= std::min<int64_t>(*size->number(), kMost);
        product = std::min<int64_t>(product, kMost);
      }
    }
    return quotients == 1 ? quotient->first == whole && quotient->second == product
                          : quotients == 0 && whole.number() == product;
  }

  // The number of neighbours in [low, high), the last ones or the first ones, whose product is `size`; 0 if there
  // are none.
  int64_t countOf(
      const Extent& whole, const std::vector<Extent>& of, int64_t low, int64_t high, bool last) const {
    for (int64_t count = 2; count <= high - low; ++count) {
      const Extent* begin = of.data() + (last ? high - count : low);
      if (isProduct(whole, begin, begin + count)) {
        return count;
      }
    }
    return 0;
  }

  bool match(bool last) {
    const int64_t axis = last ? axes_ - 1 : first_, size = last ? sizes_ - 1 : first_of_to_;
    int64_t axes = 1, sizes = 1;
    if (!(from_[axis] == to_[size])) {
      sizes = countOf(from_[axis], to_, first_of_to_, sizes_, last);
      axes = sizes == 0 ? countOf(to_[size], from_, first_, axes_, last) : 1;
      sizes = sizes == 0 ? 1 : sizes;
    }
    if (axes == 0) {
      return false;
    }
    splits_ = splits_ || (sizes > 1 && !from_[axis].isNumber()); // a split of a number is exact
    joins_ = joins_ || (axes > 1 && !to_[size].isNumber());
    (last ? axes_ : first_) += last ? -axes : axes;
    (last ? sizes_ : first_of_to_) += last ? -sizes : sizes;
    add(last ? axes_ : first_ - axes, axes, last ? sizes_ : first_of_to_ - sizes, sizes);
    return true;
  }

  bool matchLast() { return match(true); }
  bool matchFirst() { return match(false); }

  static constexpr int64_t kMost = int64_t{1} << 31;

  const Shapes& shapes_;
  const std::vector<Extent>& to_;
  std::vector<Extent> from_;
  int64_t first_ = 0, first_of_to_ = 0, axes_, sizes_; // the axes and sizes that are left
  bool splits_ = false, joins_ = false;                // whether quotients are split off, or joined
  std::vector<Step> steps_;
};

// The split of the last axis by `list(x.shape[:-1]) + [4, -1]`, for an unknown rank.
std::optional<NamedAxes> splitLast(const Shapes& shapes, Node* node) {
  const Node *sum = inputOf(node, "shape")->node(), *linear = inputOf(node, "self")->node();
  static const auto list = symbol("aten::list");
  const Node* slice = sum->kind() == aten::add ? inputOf(sum, "a")->node() : nullptr;
  slice = slice != nullptr && slice->kind() == list ? slice->input()->node() : slice;
  if (slice == nullptr || slice->kind() != aten::slice || !isNone(slice, "start") ||
      constantNumber(slice, "end") != -1.0 || constantNumber(slice, "step") != 1.0) {
    return std::nullopt;
  }
  const Node* sizes = inputOf(slice, "l")->node();
  if (sizes->kind() != aten::size || sizes->inputs().size() != 1) {
    return std::nullopt;
  }
  const std::initializer_list<const Value*> read{
      sum->output(), inputOf(sum, "a"), slice->output(), sizes->output(), inputOf(sizes, "self")};
  for (const Value* written : read) {
    if (shapes.isWritten(written)) {
      return std::nullopt;
    }
  }
  const bool same = inputOf(sizes, "self") == inputOf(node, "self") ||
                    (linear->kind() == aten::linear && shapes.weightRank(linear) == 2 &&
                     shapes.source(inputOf(sizes, "self")) == shapes.source(inputOf(linear, "input")));
  const auto given = same ? sizesIn(inputOf(sum, "b"), shapes) : std::nullopt;
  const bool told = given && std::ranges::all_of(*given, [](const Extent& size) {
                      return size.isOpen() || size.number().value_or(0) > 0;
                    });
  const bool fits = told && given->size() > 1 && std::ranges::count(*given, Extent::open()) <= 1;
  return fits ? std::optional(NamedAxes{node, {{aten::unflatten, -1, asParts(*given)}}}) : std::nullopt;
}

// Several axes that become several others; one of these is open. If the product of the others divides the last axis,
// that axis is split, and its first part joined with the axes in front. `end` names the last axis in steps.
std::optional<NamedAxes> regrouped(
    const Shapes& shapes, Node* node, const std::vector<Extent>& sizes, int64_t first, int64_t last,
    int64_t last_size, int64_t end) {
  const auto taken = std::span(sizes).subspan(first, last_size - first + 1);
  std::vector<int64_t> parts = asParts(taken);
  int64_t product = 1;
  for (const Extent& size : taken) {
    product *= size.number().value_or(1);
  }
  if (std::ranges::count_if(taken, &Extent::isNumber) != std::ssize(taken) - 1 || product <= 0) {
    return std::nullopt;
  }
  const auto whole = shapes.ofAxis(inputOf(node, "self"), last).number();
  if (taken.front().isNumber() || !whole || *whole <= product || *whole % product != 0) {
    return NamedAxes{node, {{aten::flatten, first, end}, {aten::unflatten, first, parts}}, false};
  }
  parts.front() = *whole / product;
  return NamedAxes{node, {{aten::unflatten, last, parts}, {aten::flatten, first, last}}, false};
}

// `certain` assumes no batch axis.
std::optional<NamedAxes> namedAxes(const Shapes& shapes, const Shapes& certain, Node* node) {
  if (node->kind() != aten::reshape || isConstant(inputOf(node, "shape")) ||
      shapes.isWritten(node->output()) || shapes.isWritten(inputOf(node, "self"))) {
    return std::nullopt;
  }
  const Value* from = inputOf(node, "self");
  const auto sizes = sizesGiven(node->output(), shapes);
  if (!sizes) {
    return splitLast(shapes, node);
  }
  const auto rank = shapes.rank(from);
  if (!rank) {
    return splitFeatures(shapes, node, *sizes);
  }
  const int64_t count = sizes->size(), axes = *rank;
  int64_t front = 0, behind = 0;
  while (front < std::min(count, axes) && (*sizes)[front] == shapes.ofAxis(from, front)) {
    ++front;
  }
  while (behind < std::min(count, axes) - front &&
         (*sizes)[count - 1 - behind] == shapes.ofAxis(from, axes - 1 - behind)) {
    ++behind;
  }
  if (front > 0 && (front + behind == count) != (front + behind == axes)) {
    --front; // axes of size 1 are joined to the axis in front, or split off from it
  }
  const int64_t left = count - front - behind, last = axes - 1 - behind;
  // Counted from the end, these axes have one number with and without a batch axis.
  const int64_t end = behind == 0 || !certain.rank(from) ? -1 - behind : last;
  if (left == 1 && axes > front + behind) {
    return NamedAxes{node, {{aten::flatten, front, end}}};
  }
  const auto parts = asParts(std::span(*sizes).subspan(front, left));
  // A part may be open: it follows from the others.
  if (left > 1 && axes == front + behind + 1 && std::count(parts.begin(), parts.end(), -1) <= 1 &&
      std::count(parts.begin(), parts.end(), 0) == 0) {
    return NamedAxes{node, {{aten::unflatten, front, parts}}};
  }
  if (auto joined = joinedFeatures(shapes, node, *sizes, front + 1, axes)) {
    return joined;
  }
  if (auto steps = Matching(shapes, node, *sizes).run()) {
    return steps->empty() ? std::nullopt : std::optional(NamedAxes{node, std::move(*steps)});
  }
  return front < last && left > 1 ? regrouped(shapes, node, *sizes, front, last, count - 1 - behind, end)
                                  : std::nullopt;
}

// The steps that are right with a batch axis and without one. If the sizes match the axes in both cases, and tell
// other steps, only certain ranks count.
class Naming {
 public:
  explicit Naming(const PassContext& context)
      : batched_(context), single_(context, Images::Single), certain_(context, Images::Unknown) {}

  const Shapes& certain() const { return certain_; }

  std::optional<NamedAxes> axesOf(Node* reshape) const {
    auto named = namedAxes(batched_, certain_, reshape);
    if (!named) {
      return std::nullopt;
    }
    auto sure = namedAxes(certain_, certain_, reshape);
    if (sure && sure->steps == named->steps) {
      return named;
    }
    const auto single = namedAxes(single_, certain_, reshape);
    const bool differs = single && single->matched && !(single->steps == named->steps);
    return differs ? sure : named;
  }

 private:
  const Shapes batched_, single_, certain_;
};

// An axis of size 1 joins its neighbour. Only certain ranks count, since squeeze, unlike a reshape, tells nothing
// about a batch axis.
std::optional<NamedAxes> joinedOne(const Shapes& certain, Node* node) {
  const auto axis = certain.squeezed(node);
  if (!axis || certain.rank(inputOf(node, "self")) == 1 || certain.isWritten(node->output()) ||
      certain.isWritten(inputOf(node, "self"))) {
    return std::nullopt;
  }
  const int64_t first = std::max<int64_t>(*axis - 1, 0);
  return NamedAxes{node, {{aten::flatten, first, first + 1}}};
}

// Writes the rank into the tensor's type. Returns whether the type lacked it.
bool keepRank(Value* tensor, const std::optional<int64_t>& rank) {
  const auto type = tensor->type()->cast<c10::TensorType>();
  const bool is_news = type && rank && !type->dim();
  if (is_news) {
    tensor->setType(type->withDim(*rank));
  }
  return is_news;
}

// Does this for all tensors whose sizes a node asks for.
bool keepRanks(const PassContext& context) {
  const Shapes certain(context, Images::Unknown);
  bool changed = false;
  for (Node* size : nodesWhere(*context.graph(), [](auto* node) { return node->kind() == aten::size; })) {
    changed |= keepRank(inputOf(size, "self"), certain.rank(inputOf(size, "self")));
  }
  return changed;
}

bool nameAxes(PassContext& context) {
  const Naming naming(context);
  std::vector<NamedAxes> found; // all before the first edit: facts hold for the unedited graph
  forEachNode(*context.graph(), [&](Node* node) {
    auto named = naming.axesOf(node);
    if (!named) {
      named = joinedOne(naming.certain(), node);
    }
    if (named) {
      found.push_back(std::move(*named));
      keepRank(node->output(), naming.certain().rank(node->output()));
    }
  });
  const bool kept = keepRanks(context);
  for (const NamedAxes& named : found) {
    Node* node = named.node;
    Value* value = inputOf(node, "self");
    for (const auto& [kind, axis, argument] : named.steps) {
      const std::vector<Value*> operands{value, insertConstant(node, axis), insertConstant(node, argument)};
      value = insertValue(node, kind, operands, node);
    }
    value->setType(node->output()->type());
    replaceNode(node, value);
  }
  return kept || !found.empty();
}

bool canonicalizeReshape(PassContext& context) {
  bool changed = false;
  while (nameAxes(context)) { // named axes and kept ranks may tell more
    changed = true;
  }
  return changed;
}

const RegisterPass canonicalize_reshape_pass{
    "canonicalize_reshape", "Name the axes that a reshape joins or splits, instead of computed sizes.",
    canonicalizeReshape, needs("inlined")};

} // namespace
} // namespace jit_passes
