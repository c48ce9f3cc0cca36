// Replace sizes that the graph knows by numbers, and ask for others in front of recurrent layers.
//
//   %c : int = aten::size(%x, 2), of what a layer of 16 features gives   ->   %c : int = prim::Constant[value=16]()
//   %y = aten::slice(%x, 2, 0, %c // 2, 1)                               ->   aten::slice(%x, 2, 0, 8, 1)
//
// Others are asked of what the model takes, or a recurrent layer reads, if that has them, so that the states with which the
// next layer begins need not wait for this one. No other tensor is asked: who computes it may keep it for itself.
//
//   %y, %h = aten::gru(%x, ...)
//   %n : int = aten::size(%y, 0)                                         ->   %n : int = aten::size(%x, 0)
//
//   %n, %t, %c = aten::size(%y)                                          ->   aten::size(%x, 0), aten::size(%x, 1), 64
//
// An axis that is repeated as often as it is long stays as it is:
//
//   %y = aten::expand(%x, [aten::size(%x, 0), 4, -1], %no)                      ->   aten::expand(%x, [-1, 4, -1], %no)
//
// Sizes that are equal for certain are not compared, as PyTorch's attention compares those of keys and values:
//
//   %b : bool = aten::ne(aten::size(%k), aten::size(%v))                        ->   %b : bool = prim::Constant[value=0]()
//
// Only tensors that would be refused could have other sizes. Convolutions and pools take data with a batch axis and
// without one, so only their operands say how many axes there are.
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// The positions in a list of sizes that are those of the operand.
std::vector<size_t> keptSizes(const Shapes& shapes, const Node* expand) {
  std::vector<size_t> kept;
  const Node* list = inputOf(expand, "size")->node();
  const auto own = shapes.rank(inputOf(expand, "self"));
  const bool written = shapes.isWritten(inputOf(expand, "size")) || shapes.isWritten(inputOf(expand, "self"));
  if (!own || list->kind() != prim::ListConstruct || written || shapes.isWritten(expand->output())) {
    return kept;
  }
  const int64_t more = int64_t(list->inputs().size()) - *own;
  for (int64_t i = std::max<int64_t>(more, 0); i < int64_t(list->inputs().size()); ++i) {
    const Extent size = shapes.ofNumber(list->input(i));
    if (!size.isNumber() && size == shapes.ofAxis(inputOf(expand, "self"), i - more)) {
      kept.push_back(i);
    }
  }
  return kept;
}

// Whether the model takes the tensor, or has it with axes that it does not take it with.
bool isGiven(const Value* tensor, const Block* model) {
  const Node* node = tensor->node();
  while (node->kind() == aten::flatten || node->kind() == aten::unsqueeze) {
    node = inputOf(node, "self")->node();
  }
  return node->kind() == prim::Param && node->owningBlock() == model &&
         tensor->node()->owningBlock() == model;
}

// Where an operator that asks for a size may ask instead: `read` is what recurrent layers read.
std::optional<Extent::Axis> elsewhere(
    const Shapes& shapes, const Node* size, const Extent& extent, const std::vector<Value*>& read) {
  const bool asks = size->kind() == aten::size && size->inputs().size() == 2;
  const auto* of = extent.axis();
  if (!asks || of == nullptr || of->axis < 0) {
    return std::nullopt;
  }
  if (isGiven(of->tensor, size->owningGraph()->block())) {
    return of->tensor == inputOf(size, "self") ? std::nullopt : std::optional(*of);
  }
  for (Value* tensor : read) {
    for (const int64_t axis : {0, 1}) {
      if (tensor->node()->owningBlock() == size->owningBlock() && tensor->node()->isBefore(size) &&
          shapes.ofAxis(tensor, axis) == extent) {
        return tensor == inputOf(size, "self") ? std::nullopt : std::optional(Extent::Axis{tensor, axis});
      }
    }
  }
  return std::nullopt;
}

// Readers of a list of sizes: they take numbers out of it, or only look at it.
enum class Reader { Unpacks, TakesOne, Looks, Other };

Reader readerOf(const Node* user, int64_t count) {
  static const auto looks = symbols({"aten::eq", "aten::ne", "aten::format"});
  if (user->kind() == aten::__getitem__) {
    const double index = constantNumber(user, "idx").value_or(count);
    return index >= -count && index < count ? Reader::TakesOne : Reader::Other;
  }
  const bool unpacks = user->kind() == prim::ListUnpack && int64_t(user->outputs().size()) == count;
  return unpacks ? Reader::Unpacks : looks.count(user->kind()) > 0 ? Reader::Looks : Reader::Other;
}

// All sizes of a tensor of known rank, if the graph knows each of them, or may ask elsewhere.
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
      size->output()->uses(), [&](const Use& use) { return readerOf(use.user, count) != Reader::Other; });
  return other && read ? std::optional(found) : std::nullopt;
}

Value* insertSize(const Extent::Axis& of, Node* before) {
  const auto operands = {const_cast<Value*>(of.tensor), insertConstant(before, of.axis)};
  return insertValue(before, aten::size, operands, before, c10::IntType::get());
}

// Puts the numbers in the place of what is taken out of the list of sizes, and of the list where it is looked at.
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
      case Reader::Unpacks:
        for (int64_t i = 0; i < count; ++i) {
          user->output(i)->replaceAllUsesWith(numbers[i]);
        }
        user->destroy();
        break;
      case Reader::TakesOne: {
        const auto index = static_cast<int64_t>(*constantNumber(user, "idx"));
        replaceNode(user, numbers[index < 0 ? index + count : index]);
        break;
      }
      case Reader::Looks:
        if (list == nullptr) {
          list = insertValue(size, prim::ListConstruct, numbers, size, c10::ListType::ofInts());
        }
        user->replaceInput(offset, list);
        break;
      case Reader::Other: break;
    }
  }
  if (!size->output()->hasUses()) {
    size->destroy();
  }
}

// Whether it compares sizes that are equal, as numbers or as lists.
bool comparesEqual(const Shapes& shapes, const Node* node) {
  if ((node->kind() != aten::eq && node->kind() != aten::ne) || node->inputs().size() != 2) {
    return false;
  }
  const Value *a = node->input(0), *b = node->input(1);
  const auto isOf = [&](c10::TypeKind kind) {
    return a->type()->kind() == kind && b->type()->kind() == kind;
  };
  if (isOf(c10::TypeKind::IntType)) {
    return shapes.ofNumber(a) == shapes.ofNumber(b);
  }
  const bool lists = isOf(c10::TypeKind::ListType) && !shapes.isWritten(a) && !shapes.isWritten(b);
  const auto sizes = lists ? shapes.ofList(a) : std::nullopt;
  return sizes && sizes == shapes.ofList(b);
}

bool isComputedNumber(const Value* value) {
  return value->type()->kind() == c10::TypeKind::IntType && value->hasUses() && !isConstant(value) &&
         value->node()->kind() != prim::Param && value->node()->blocks().empty();
}

bool foldSizes(PassContext& context) {
  const auto graph = context.graph();
  const Shapes shapes(context, /*batched=*/false);
  std::vector<std::pair<Value*, int64_t>> numbers; // all of them before the first edit, as others go by them
  std::vector<std::pair<Node*, std::vector<size_t>>> repeated;
  std::vector<std::pair<Node*, Extent::Axis>> asked;
  std::vector<std::pair<Node*, std::vector<Extent>>> listed;
  const auto compared = nodesWhere(*graph, [&](const Node* node) { return comparesEqual(shapes, node); });
  std::vector<Value*> read;
  for (Node* node : nodesWhere(*graph, isRecurrentLayer)) {
    read.push_back(mainOperand(node));
  }
  forEachNode(*graph, [&](Node* node) {
    for (Value* output : node->outputs()) {
      if (!isComputedNumber(output)) {
        continue;
      }
      const Extent extent = shapes.ofNumber(output);
      if (const auto number = extent.number()) {
        numbers.emplace_back(output, *number);
      } else if (const auto axis = elsewhere(shapes, node, extent, read)) {
        asked.emplace_back(node, *axis);
      }
    }
    if (auto extents = listedElsewhere(shapes, node)) {
      listed.emplace_back(node, std::move(*extents));
    }
    if (node->kind() == aten::expand) {
      if (auto kept = keptSizes(shapes, node); !kept.empty()) {
        repeated.emplace_back(node, std::move(kept));
      }
    }
  });
  for (Node* node : compared) {
    replaceNode(node, insertConstant(node, node->kind() == aten::eq));
  }
  for (const auto& [node, kept] : repeated) {
    std::vector<Value*> sizes = inputOf(node, "size")->node()->inputs().vec();
    for (const size_t i : kept) {
      sizes[i] = insertConstant(node, int64_t{-1});
    }
    node->replaceInput(1, insertValue(node, prim::ListConstruct, sizes, node, c10::ListType::ofInts()));
  }
  for (const auto& [value, number] : numbers) {
    Node* maker = value->node();
    value->replaceAllUsesWith(insertConstant(maker, number));
  }
  for (const auto& [size, axis] : asked) {
    size->replaceInput(0, const_cast<Value*>(axis.tensor));
    size->replaceInput(1, insertConstant(size, axis.axis));
  }
  for (const auto& [size, extents] : listed) {
    replaceList(size, extents);
  }
  return !compared.empty() || !numbers.empty() || !repeated.empty() || !asked.empty() || !listed.empty();
}

const RegisterPass fold_sizes_pass{
    "fold_sizes",
    "Replace sizes that the graph knows by numbers, and ask for others in front of recurrent layers.",
    foldSizes, needs("inlined")};

} // namespace
} // namespace jit_passes
