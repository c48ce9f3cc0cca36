// Give whoever reads a list that is filled step by step a literal of what the list holds there.
//
//   %l = prim::ListConstruct(%a)                     %l = prim::ListConstruct(%a)
//   %x = aten::cat(%l, %one)                   ->    %x = aten::cat(%l, %one)
//   %n = aten::append(%l, %x)                        %m = prim::ListConstruct(%a, %x)
//   %y = aten::cat(%l, %one)                         %y = aten::cat(%m, %one)
//
// A list is followed from its literal on, through the block that makes it: as long as nobody else can have it, its
// elements are known. Whoever may keep it, hand it on, or write to it in another way ends that: this node and all
// behind it share one last literal, which is the object itself from there on. Nested blocks may read.
//
// Elements at constant places, lengths, copies, slices and sums are resolved too. An index out of range stays the
// error that it is.
#include "core/graph.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

using Elements = std::vector<Value*>;

const auto list_extend = symbol("aten::extend"), list_reverse = symbol("aten::reverse");

// Whether the node looks at the list, and neither writes to it nor keeps or returns it.
bool onlyReads(const Node* node, size_t input) {
  const auto* schema = node->maybeSchema();
  // Two literals of the same elements are two objects.
  if (schema == nullptr || input >= schema->arguments().size() || node->kind() == aten::__is__ ||
      node->kind() == aten::__isnot__) {
    return false;
  }
  const auto* alias = schema->arguments()[input].alias_info();
  const auto returned = [&](const c10::Argument& result) {
    return result.alias_info() != nullptr && std::ranges::any_of(alias->beforeSets(), [&](const auto& set) {
             return result.alias_info()->beforeSets().count(set) > 0;
           });
  };
  return alias == nullptr || (!alias->isWrite() && !alias->isWildcardBefore() && !alias->isWildcardAfter() &&
                              std::ranges::none_of(schema->returns(), returned));
}

// The element that a constant index means, counted from the end if it is negative.
std::optional<size_t> placeOf(const Value* index, const Elements& elements) {
  const auto number = constantOf(index);
  const auto count = static_cast<int64_t>(elements.size());
  if (!number || !number->isInt() || number->toInt() < -count || number->toInt() >= count) {
    return std::nullopt;
  }
  return number->toInt() + (number->toInt() < 0 ? count : 0);
}

// An end of a slice, or the place of an insertion, which may lie beyond the ends of the list.
std::optional<int64_t> endOf(const Value* index, const Elements& elements, int64_t otherwise) {
  const auto number = constantOf(index);
  if (!number || !(number->isInt() || number->isNone())) {
    return std::nullopt;
  }
  const auto count = static_cast<int64_t>(elements.size());
  const int64_t at = number->isInt() ? number->toInt() : otherwise;
  return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
}

class Lists {
 public:
  bool resolve(Block* block) {
    for (auto it = block->nodes().begin(); it != block->nodes().end();) {
      Node* node = *it++;
      if (resolveNode(node)) {
        node->destroy();
        changed_ = true;
        continue;
      }
      settleOperands(node);
      for (Block* nested : node->blocks()) {
        resolve(nested);
      }
      if (node->kind() == prim::ListConstruct) {
        known_[node->output()] = {node->inputs().vec()};
      }
    }
    settleOperands(block->return_node());
    return changed_;
  }

 private:
  struct Known {
    Elements elements;
    bool stale = false; // whether the literal that stands for the list has other elements
  };

  Known* find(const Value* list) {
    const auto found = known_.find(list);
    return found == known_.end() ? nullptr : &found->second;
  }

  // Of a list that is followed, or is an empty constant.
  std::optional<Elements> elementsOf(const Value* list) {
    if (const Known* known = find(list)) {
      return known->elements;
    }
    const auto constant = constantOf(list);
    return constant && constant->isList() && constant->toListRef().empty() ? std::optional(Elements())
                                                                           : std::nullopt;
  }

  // Whether it is done: nothing needs the node any more.
  bool resolveNode(Node* node) {
    for (size_t i = 1; i < node->inputs().size(); ++i) {
      if (!onlyReads(node, i)) {
        settle(node->input(i), node, false); // an element that is a list itself
      }
    }
    if (node->inputs().empty()) {
      return false;
    }
    if (Known* list = find(node->input(0)); list != nullptr && write(node, *list)) {
      return true;
    }
    const auto elements = elementsOf(node->input(0));
    return elements && read(node, *elements);
  }

  bool write(Node* node, Known& list) {
    Elements& elements = list.elements;
    Value* replacement = node->input(0); // these return the list
    if (node->kind() == aten::append) {
      elements.push_back(node->input(1));
    } else if (node->kind() == list_extend || node->kind() == aten::add_) {
      const Known* other = find(node->input(1));
      if (other == nullptr) {
        return false;
      }
      const Elements more = other->elements; // may be the list itself
      elements.insert(elements.end(), more.begin(), more.end());
    } else if (node->kind() == aten::insert) {
      const auto at = endOf(node->input(1), elements, 0);
      if (!at) {
        return false;
      }
      elements.insert(elements.begin() + *at, node->input(2));
    } else if (node->kind() == aten::_set_item || node->kind() == aten::Delete || node->kind() == aten::pop) {
      const auto at = placeOf(node->input(1), elements);
      if (!at) {
        return false;
      }
      if (node->kind() == aten::_set_item) {
        elements[*at] = node->input(2);
      } else {
        replacement = elements[*at];
        elements.erase(elements.begin() + static_cast<int64_t>(*at));
      }
    } else if (node->kind() == aten::clear) {
      elements.clear();
    } else if (node->kind() == list_reverse) {
      std::ranges::reverse(elements);
    } else {
      return false;
    }
    list.stale = true;
    if (!node->outputs().empty()) {
      node->output()->replaceAllUsesWith(replacement);
    }
    return true;
  }

  bool read(Node* node, const Elements& elements) {
    if (node->kind() == prim::ListUnpack && node->outputs().size() == elements.size()) {
      for (size_t i = 0; i < elements.size(); ++i) {
        node->output(i)->replaceAllUsesWith(elements[i]);
      }
      return true;
    }
    Value* replacement = nullptr;
    if (node->kind() == aten::len) {
      replacement = insertConstant(node, static_cast<int64_t>(elements.size()));
    } else if (node->kind() == aten::__getitem__ || node->kind() == aten::select) {
      const auto at = placeOf(node->input(1), elements);
      replacement = at ? elements[*at] : nullptr;
    } else if (const auto made = madeOf(node, elements)) {
      replacement = insertValue(node, prim::ListConstruct, *made, node, node->output()->type());
      known_[replacement] = {*made};
    }
    if (replacement != nullptr) {
      node->output()->replaceAllUsesWith(replacement);
    }
    return replacement != nullptr;
  }

  // The elements of a new list.
  std::optional<Elements> madeOf(const Node* node, Elements elements) {
    if (node->kind() == aten::list || node->kind() == aten::copy) {
      return elements;
    }
    if (node->kind() == aten::add) {
      const auto other = elementsOf(node->input(1));
      if (!other) {
        return std::nullopt;
      }
      elements.insert(elements.end(), other->begin(), other->end());
      return elements;
    }
    if (node->kind() != aten::slice) {
      return std::nullopt;
    }
    const auto count = static_cast<int64_t>(elements.size());
    const auto begin = endOf(node->input(1), elements, 0), end = endOf(node->input(2), elements, count);
    const auto step = constantOf(node->input(3));
    if (!begin || !end || !step || !step->isInt() || step->toInt() <= 0) {
      return std::nullopt;
    }
    Elements part;
    for (int64_t i = *begin; i < *end; i += step->toInt()) {
      part.push_back(elements[i]);
    }
    return part;
  }

  // Gives a node, with its blocks, literals of all lists that they read.
  void settleOperands(Node* node) {
    const auto settleInputs = [&](Node* user) {
      for (size_t i = 0; i < user->inputs().size(); ++i) {
        settle(user->input(i), node, onlyReads(user, i));
      }
    };
    settleInputs(node);
    for (Block* block : node->blocks()) {
      forEachNode(block, [&](Node* nested) {
        settleInputs(nested);
        for (Block* inner : nested->blocks()) {
          settleInputs(inner->return_node());
        }
      });
      settleInputs(block->return_node());
    }
  }

  // Makes a literal in front of the node, for it and all behind it, where the one in use has other elements.
  void settle(Value* value, Node* node, bool only_reads) {
    const auto found = known_.find(value);
    if (found == known_.end()) {
      return;
    }
    Known list = found->second;
    if (list.stale || !only_reads) {
      known_.erase(found);
    }
    if (list.stale) {
      Value* literal = insertValue(node, prim::ListConstruct, list.elements, value->node(), value->type());
      value->replaceAllUsesAfterNodeWith(literal->node(), literal);
      if (value->uses().empty()) {
        value->node()->destroy();
      }
      if (only_reads) {
        known_[literal] = {list.elements};
      }
    }
  }

  std::unordered_map<const Value*, Known> known_;
  bool changed_ = false;
};

bool resolveLists(PassContext& context) { return Lists().resolve(context.graph()->block()); }

const RegisterPass resolve_lists_pass{
    "resolve_lists", "Give readers of a list that is filled step by step what it holds there.", resolveLists,
    needs("inlined")};

} // namespace
} // namespace jit_passes
