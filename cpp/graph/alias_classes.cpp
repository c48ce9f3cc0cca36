#include "alias_classes.h"

#include "effects.h"
#include "operators.h"

namespace jit_passes {
namespace {

bool mayHoldTensor(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::VarType:
    case c10::TypeKind::ClassType:
    case c10::TypeKind::InterfaceType: return true;
    default: break;
  }
  const auto parts = type.containedTypes();
  return std::ranges::any_of(parts, [](const auto& part) { return mayHoldTensor(*part); });
}

bool takesApart(const Node* node) {
  static const std::unordered_set<c10::Symbol> kinds{
      prim::ListUnpack, prim::TupleUnpack, prim::TupleIndex, prim::TupleSlice, aten::__getitem__};
  return kinds.count(node->kind()) > 0;
}

bool putsTogether(const Node* node) {
  static const std::unordered_set<c10::Symbol> kinds{
      prim::ListConstruct, prim::TupleConstruct, prim::DictConstruct};
  return kinds.count(node->kind()) > 0;
}

// Whether the node changes which values a list, dict or object holds (append, insert, pop, an assigned attribute),
// and writes to no tensor.
bool changesHoldersOnly(const Node* node) {
  if (node->kind() == prim::SetAttr) {
    return true;
  }
  const auto* schema = node->maybeSchema();
  if (schema == nullptr || !schema->is_mutable()) {
    return false;
  }
  return std::ranges::all_of(schema->arguments(), [](const c10::Argument& argument) {
    const auto* info = argument.alias_info();
    if (info == nullptr || !info->isWrite()) {
      return true;
    }
    const auto kind = argument.type()->kind();
    const auto& parts = info->containedTypes(); // Tensor(a!)[] is a list whose tensors are written to
    return (kind == c10::TypeKind::ListType || kind == c10::TypeKind::DictType) &&
           std::ranges::none_of(parts, [](const auto& part) { return part.isWrite(); });
  });
}

} // namespace

AliasClasses::AliasClasses(Graph& graph, const Module* self, Attributes attributes)
    : attribute_rule_(attributes) {
  if (self != nullptr) {
    self_ = *self;
  }
  addAll(graph, Inputs::MayAlias);
}

AliasClasses::AliasClasses(Graph& graph, Inputs inputs, const Kinds& kinds) : kinds_(kinds) {
  addAll(graph, inputs);
}

void AliasClasses::addAll(Graph& graph, Inputs inputs) {
  std::optional<size_t> first;
  for (const Value* input : graph.inputs()) {
    const size_t index = classOf(input);
    classes_[index].outside = true;
    if (inputs == Inputs::MayAlias && mayShareMemory(input)) {
      first = first.value_or(index);
      unite(*first, index);
    }
  }
  for (Node* node : graph.nodes()) {
    add(node);
  }
}

size_t AliasClasses::find(size_t index) {
  while (classes_[index].parent != index) {
    index = classes_[index].parent = classes_[classes_[index].parent].parent;
  }
  return index;
}

size_t AliasClasses::classOf(const Value* value) {
  const auto [entry, inserted] = indices_.try_emplace(value, classes_.size());
  if (inserted) {
    classes_.push_back({classes_.size(), {}, {value}, {}});
  }
  return find(entry->second);
}

void AliasClasses::unite(size_t a, size_t b) {
  a = find(a);
  b = find(b);
  if (a == b) {
    return;
  }
  if (classes_[a].values.size() < classes_[b].values.size()) {
    std::swap(a, b);
  }
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), from.begin(), from.end());
    from = {};
  };
  classes_[b].parent = a;
  classes_[a].outside |= classes_[b].outside;
  append(classes_[a].values, classes_[b].values);
  append(classes_[a].writers, classes_[b].writers);
  append(classes_[a].contents, classes_[b].contents);
}

void AliasClasses::uniteWithContents(const Value* value, const Value* operand) {
  if (mayShareMemory(operand)) {
    std::unordered_set<size_t> shared;
    collect(classOf(operand), shared);
    for (const size_t index : shared) {
      unite(classOf(value), index);
    }
  }
}

void AliasClasses::addBySchema(Node* node, const c10::FunctionSchema& schema) {
  std::vector<const Value*> shared; // operands that the schema says something about
  for (size_t i = 0; i < node->inputs().size() && i < schema.arguments().size(); ++i) {
    const Value* operand = node->input(i);
    const auto* info = schema.arguments()[i].alias_info();
    if (info == nullptr || !mayShareMemory(operand)) {
      continue;
    }
    shared.push_back(operand);
    if (info->isWrite()) {
      std::unordered_set<size_t> written;
      collect(classOf(operand), written);
      for (const size_t index : written) {
        classes_[index].writers.push_back(node);
      }
    }
  }
  const bool into_container = std::ranges::any_of(shared, [](const Value* operand) {
    return operand->type()->kind() == c10::TypeKind::ListType ||
           operand->type()->kind() == c10::TypeKind::DictType;
  });
  if (into_container && schema.is_mutable()) { // append, insert, __setitem__
    for (const Value* operand : node->inputs()) {
      uniteWithContents(shared.front(), operand);
    }
  }
  for (size_t i = 0; i < node->outputs().size(); ++i) {
    const Value* output = node->output(i);
    const auto* info = i < schema.returns().size() ? schema.returns()[i].alias_info() : nullptr;
    for (const Value* operand : info == nullptr ? std::vector<const Value*>{} : shared) {
      unite(classOf(output), classOf(operand));
    }
    // Schemas say little about lists, dicts and the values taken out of them: list(), values(), get().
    const bool plain = i < schema.returns().size() && schema.returns()[i].type() == c10::TensorType::get();
    if (returnsHiddenAlias(node->kind()) || (!plain && mayHoldTensor(*output->type()))) {
      for (const Value* operand : node->inputs()) {
        uniteWithContents(output, operand);
      }
    }
  }
}

// For an operator of a pattern, whose overload is not known: the effects of all overloads together.
void AliasClasses::addByName(Node* node, c10::Symbol kind) {
  const bool writes = mayWrite(node, kind);
  const bool shares = writes || returnsHiddenAlias(kind) || anyOverload(node, kind, [](const auto& schema) {
                        return std::ranges::any_of(schema.returns(), [&](const auto& result) {
                          return (result.alias_info() != nullptr && !schema.is_mutable()) ||
                                 result.type() != c10::TensorType::get();
                        });
                      });
  for (const Value* operand : node->inputs()) {
    if (writes && mayShareMemory(operand)) {
      classes_[classOf(operand)].writers.push_back(node);
    }
    for (const Value* output : shares ? node->outputs() : at::ArrayRef<Value*>()) {
      if (mayShareMemory(output)) {
        uniteWithContents(output, operand);
      }
    }
  }
}

void AliasClasses::addAttribute(Node* node) {
  // Modules may be shared and weights tied, so attributes of equal name are in one class even of different modules.
  const Value* value = node->kind() == prim::SetAttr ? assignedBy(node) : node->output();
  const size_t own = classOf(value);
  classes_[own].outside = true;
  if (attribute_rule_ == Attributes::Any) {
    unite(classOf(node->owningGraph()->inputs().at(0)), own);
  }
  unite(attributes_.try_emplace(node->s(attr::name), own).first->second, own);
  const auto known =
      self_ && node->kind() == prim::GetAttr ? attributeOf(*self_, value) : std::optional<c10::IValue>();
  if (known && !known->isObject()) {
    known->visit([&](const c10::IValue& part) {
      if (part.isTensor() && part.toTensor().defined() && part.toTensor().has_storage()) {
        const auto* storage = part.toTensor().storage().unsafeGetStorageImpl();
        unite(storages_.try_emplace(storage, classOf(value)).first->second, classOf(value));
      }
      return false;
    });
  }
}

void AliasClasses::add(Node* node) {
  const auto stands_for = kinds_.find(node->kind());
  const auto kind = stands_for == kinds_.end() ? node->kind() : stands_for->second;
  for (const Value* output : node->outputs()) {
    classOf(output);
  }
  for (Block* block : node->blocks()) {
    for (size_t i = 1; i < block->inputs().size() && i + 1 < node->inputs().size(); ++i) { // of a loop
      unite(classOf(block->inputs()[i]), classOf(node->input(i + 1)));
    }
    for (Node* inner : block->nodes()) {
      add(inner);
    }
  }
  if (node->kind() == prim::Constant) {
    classes_[classOf(node->output())].outside = true;
  } else if (node->kind() == prim::GetAttr) {
    addAttribute(node);
  } else if (node->kind() == prim::If || node->kind() == prim::Loop) {
    const size_t skip = node->kind() == prim::Loop ? 1 : 0; // the condition
    for (Block* block : node->blocks()) {
      for (size_t i = 0; i < node->outputs().size(); ++i) {
        unite(classOf(node->output(i)), classOf(block->outputs().at(i + skip)));
        if (skip) {
          unite(classOf(node->output(i)), classOf(block->inputs().at(i + 1)));
        }
      }
    }
  } else if (putsTogether(node)) {
    for (const Value* operand : node->inputs()) {
      if (mayShareMemory(operand)) {
        const size_t content = classOf(operand);
        classes_[classOf(node->output())].contents.push_back(content);
      }
    }
  } else if (takesApart(node)) {
    for (const Value* output : node->outputs()) {
      unite(classOf(output), classOf(mainOperand(node)));
    }
    const auto contents = classes_[classOf(mainOperand(node))].contents; // a copy: uniting moves classes
    for (const size_t content : contents) {
      unite(classOf(mainOperand(node)), content);
    }
  } else if (isNormalization(kind) && node->inputs().size() > kTraining) {
    if (mayWrite(node, kind)) {
      classes_[classOf(node->input(kRunningMean))].writers.push_back(node);
      classes_[classOf(node->input(kRunningVar))].writers.push_back(node);
    }
  } else if (const auto* schema = kind == node->kind() ? node->maybeSchema() : nullptr) {
    addBySchema(node, *schema);
  } else if (!torch::jit::getAllOperatorsFor(kind).empty()) {
    addByName(node, kind);
  } else if (mayWrite(node)) { // its effects are not known
    for (const Value* operand : node->inputs()) {
      if (mayShareMemory(operand)) {
        classes_[classOf(operand)].writers.push_back(node);
        for (const Value* output : node->outputs()) {
          unite(classOf(output), classOf(operand));
        }
      }
    }
    if (node->kind() == prim::SetAttr) {
      addAttribute(node);
    }
  } else {
    for (const Value* operand : node->inputs()) {
      for (const Value* output : node->outputs()) {
        if (mayShareMemory(operand) && mayShareMemory(output)) {
          unite(classOf(output), classOf(operand));
        }
      }
    }
  }
}

void AliasClasses::remove(Node* node) {
  for (Block* block : node->blocks()) {
    for (Node* inner : block->nodes()) {
      remove(inner);
    }
  }
  for (const Value* operand : node->inputs()) {
    std::unordered_set<size_t> written;
    collect(classOf(operand), written);
    for (const size_t index : written) {
      std::erase(classes_[index].writers, node);
    }
  }
  for (const Value* output : node->outputs()) {
    std::erase(classes_[classOf(output)].values, output);
    indices_.erase(output);
  }
}

void AliasClasses::replace(const Value* old, const Value* replacement) {
  if (mayShareMemory(old) && mayShareMemory(replacement)) {
    unite(classOf(old), classOf(replacement));
  }
}

bool AliasClasses::mayAlias(const Value* a, const Value* b) {
  if (!mayShareMemory(a) || !mayShareMemory(b)) {
    return false;
  }
  std::unordered_set<size_t> of_a, of_b;
  collect(classOf(a), of_a);
  collect(classOf(b), of_b);
  return std::ranges::any_of(of_a, [&](size_t index) { return of_b.count(index) > 0; });
}

void AliasClasses::collect(size_t index, std::unordered_set<size_t>& seen) {
  index = find(index);
  if (seen.insert(index).second) {
    for (const size_t content : classes_[index].contents) {
      collect(content, seen);
    }
  }
}

template <class Found>
bool AliasClasses::findWriter(const Value* value, const Found& found) {
  if (!mayShareMemory(value)) {
    return false;
  }
  std::unordered_set<size_t> seen;
  collect(classOf(value), seen);
  const bool holds = !isTensor(value);
  return std::ranges::any_of(seen, [&](size_t index) {
    return std::ranges::any_of(classes_[index].writers, [&](Node* writer) {
      return (holds || !changesHoldersOnly(writer)) && found(writer);
    });
  });
}

std::vector<Node*> AliasClasses::writersOf(const Value* value) {
  std::vector<Node*> writers;
  findWriter(value, [&](Node* writer) {
    writers.push_back(writer);
    return false;
  });
  return writers;
}

bool AliasClasses::isWritten(const Value* value) {
  return findWriter(value, [](Node*) { return true; });
}

bool AliasClasses::onlyWithin(
    const Value* value, const std::unordered_set<const Node*>& nodes, const Node* point) {
  const size_t index = classOf(value);
  if (classes_[index].outside) {
    return false;
  }
  for (const Block* block = point->owningBlock(); block != value->node()->owningBlock();) {
    const Node* owner = block->owningNode();
    if (owner == nullptr || owner->kind() == prim::Loop) {
      return false; // the next iteration sees it too
    }
    block = owner->owningBlock();
  }
  const auto& values = classes_[index].values;
  return std::ranges::all_of(values, [&](const Value* other) {
    if (nodes.count(other->node())) {
      return true;
    }
    const auto& uses = other->uses();
    return (other->node()->kind() != prim::Param && other->node()->isAfter(point)) ||
           std::ranges::all_of(uses, [&](const auto& use) { return nodes.count(use.user) > 0; });
  });
}

} // namespace jit_passes
