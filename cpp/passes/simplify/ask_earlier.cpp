// Ask for a size of the model's input, or of the input of a recurrent layer, instead of a result with that size. The
// initial states of the next layer then need not wait for this layer. No other tensor is asked, since a use would
// keep that tensor from becoming part of a larger operator.
//
//   %y, %h = aten::gru(%x, ...)
//   %n : int = aten::size(%y, 0)                         ->   %n : int = aten::size(%x, 0)
//
//   %n, %t, %c = aten::size(%y)                          ->   aten::size(%x, 0), aten::size(%x, 1), 64
#include "ask_earlier.h"

#include "facts/shape_facts.h"
#include "facts/shapes.h"

namespace jit_passes {
namespace {

// Whether the tensor is an input of the model, perhaps with axes added or joined.
bool isGiven(const Value* tensor, const Block* model) {
  const Node* node = tensor->node();
  while (node->kind() == aten::flatten || node->kind() == aten::unsqueeze) {
    node = inputOf(node, "self")->node();
  }
  return node->kind() == prim::Param && node->owningBlock() == model &&
         tensor->node()->owningBlock() == model;
}

// The tensor and axis whose size the operator may ask for instead. `read` has the inputs of recurrent layers.
std::optional<Extent::Axis> elsewhere(
    const Shapes& shapes, const Node* size, const std::vector<Value*>& read) {
  const bool asks = size->inputs().size() == 2 && size->hasUses();
  const Extent extent = asks ? shapes.ofNumber(size->output()) : Extent::open();
  const auto* of = extent.axis();
  if (of == nullptr || of->axis < 0) {
    return std::nullopt;
  }
  if (isGiven(of->tensor, size->owningGraph()->block())) {
    return of->tensor == inputOf(size, "self") ? std::nullopt : std::optional(*of);
  }
  const Node* asked = inputOf(size, "self")->node();
  for (Value* tensor : read) {
    for (const int64_t axis : {0, 1}) {
      if (tensor->node()->owningBlock() == size->owningBlock() && tensor->node()->isBefore(asked) &&
          shapes.ofAxis(tensor, axis) == extent) {
        return Extent::Axis{tensor, axis};
      }
    }
  }
  return std::nullopt;
}

// The ways in which a node reads a list of sizes: it takes numbers out of the list, or compares or prints the list.
enum class Reads { Unpacks, TakesOne, Looks, Other };

Reads readerOf(const Node* user, int64_t count) {
  static const auto looks = symbols({"aten::eq", "aten::ne", "aten::format"});
  if (user->kind() == aten::__getitem__) {
    const double index = constantNumber(user, "idx").value_or(count);
    return index >= -count && index < count ? Reads::TakesOne : Reads::Other;
  }
  const bool unpacks = user->kind() == prim::ListUnpack && int64_t(user->outputs().size()) == count;
  return unpacks ? Reads::Unpacks : looks.count(user->kind()) > 0 ? Reads::Looks : Reads::Other;
}

// All sizes of a tensor of known rank, if each of them is known, or may be asked of another tensor.
std::optional<std::vector<Extent>> listedElsewhere(const Shapes& shapes, const Node* size) {
  const auto type = size->kind() == aten::size && size->inputs().size() == 1
                        ? size->input()->type()->cast<c10::TensorType>()
                        : nullptr;
  if (type == nullptr || !type->dim() || shapes.isWritten(size->output())) {
    return std::nullopt;
  }
  const auto count = static_cast<int64_t>(*type->dim());
  std::vector<Extent> found;
  bool other = false;
  for (int64_t axis = 0; axis < count; ++axis) {
    const Extent extent = shapes.ofAxis(size->input(), axis);
    const auto* of = extent.axis();
    const bool given = of != nullptr && of->axis >= 0 && isGiven(of->tensor, size->owningGraph()->block());
    if (!extent.isNumber() && !given) {
      return std::nullopt;
    }
    other |= given && of->tensor != size->input();
    found.push_back(extent);
  }
  const bool read = std::ranges::any_of(
      size->output()->uses(), [&](const Use& use) { return readerOf(use.user, count) != Reads::Other; });
  return other && read ? std::optional(found) : std::nullopt;
}

Value* insertSize(const Extent::Axis& of, Node* before) {
  const auto operands = {const_cast<Value*>(of.tensor), insertConstant(before, of.axis)};
  return insertValue(before, aten::size, operands, before, c10::IntType::get());
}

// Replaces the values that nodes take out of the list of sizes, and the list itself where it is compared or printed.
void replaceList(Node* size, const std::vector<Extent>& extents) {
  std::vector<Value*> numbers;
  for (const Extent& extent : extents) {
    numbers.push_back(
        extent.isNumber() ? insertConstant(size, *extent.number()) : insertSize(*extent.axis(), size));
  }
  const auto count = static_cast<int64_t>(numbers.size());
  Value* list = nullptr;
  const std::vector<Use> uses = size->output()->uses();
  for (const auto& [user, offset] : uses) {
    switch (readerOf(user, count)) {
      case Reads::Unpacks:
        for (int64_t i = 0; i < count; ++i) {
          user->output(i)->replaceAllUsesWith(numbers[i]);
        }
        user->destroy();
        break;
      case Reads::TakesOne: {
        const auto index = static_cast<int64_t>(*constantNumber(user, "idx"));
        replaceNode(user, numbers[index < 0 ? index + count : index]);
        break;
      }
      case Reads::Looks:
        if (list == nullptr) {
          list = insertValue(size, prim::ListConstruct, numbers, size, c10::ListType::ofInts());
        }
        user->replaceInput(offset, list);
        break;
      case Reads::Other: break;
    }
  }
  if (!size->output()->hasUses()) {
    size->destroy();
  }
}

} // namespace

bool askEarlier(PassContext& context) {
  const auto graph = context.graph();
  const Shapes shapes(context, Images::Unknown);
  std::vector<std::pair<Node*, Extent::Axis>>
      asked; // all before the first edit: facts hold for the unedited graph
  std::vector<std::pair<Node*, std::vector<Extent>>> listed;
  std::vector<Value*> read;
  for (Node* node : nodesWhere(*graph, isRecurrentLayer)) {
    read.push_back(mainOperand(node));
  }
  for (Node* node : nodesWhere(*graph, [](const Node* node) { return node->kind() == aten::size; })) {
    if (auto extents = listedElsewhere(shapes, node)) {
      listed.emplace_back(node, std::move(*extents));
    } else if (const auto axis = elsewhere(shapes, node, read)) {
      asked.emplace_back(node, *axis);
    }
  }
  for (const auto& [size, axis] : asked) {
    size->replaceInput(0, const_cast<Value*>(axis.tensor));
    size->replaceInput(1, insertConstant(size, axis.axis));
  }
  for (const auto& [size, extents] : listed) {
    replaceList(size, extents);
  }
  return !asked.empty() || !listed.empty();
}

} // namespace jit_passes
