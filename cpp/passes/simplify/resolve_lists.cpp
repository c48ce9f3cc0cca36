// Give each reader of a list that is filled step by step a literal with the list's content there.
//
//   %l = prim::ListConstruct(%a)                     %l = prim::ListConstruct(%a)
//   %x = aten::cat(%l, %one)                   ->    %x = aten::cat(%l, %one)
//   %n = aten::append(%l, %x)                        %m = prim::ListConstruct(%a, %x)
//   %y = aten::cat(%l, %one)                         %y = aten::cat(%m, %one)
//
// followed.h says how long the elements are known. Elements at constant indices, lengths, copies, slices and sums
// are resolved too. An index out of range stays an error.
#include "followed.h"
#include "simplify.h"

namespace jit_passes {
namespace {

using Elements = std::vector<Value*>;

const auto list_extend = symbol("aten::extend"), list_reverse = symbol("aten::reverse");

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

class Lists : public Followed<Elements> {
 private:
  std::optional<Elements> contentOf(Node* node) const override {
    return node->kind() == prim::ListConstruct ? std::optional(node->inputs().vec()) : std::nullopt;
  }

  Value* insert(Node* before, const Elements& elements, const Value* like) const override {
    return insertValue(before, prim::ListConstruct, elements, like->node(), like->type());
  }

  // The elements of a followed list, or of an empty constant.
  std::optional<Elements> elementsOf(const Value* list) {
    if (const Known* known = find(list)) {
      return known->content;
    }
    const auto constant = constantOf(list);
    return constant && constant->isList() && constant->toListRef().empty() ? std::optional(Elements())
                                                                           : std::nullopt;
  }

  bool write(Node* node, Elements& elements) override {
    Value* replacement = mainOperand(node); // these operators return the list
    if (node->kind() == aten::append) {
      elements.push_back(inputOf(node, "el"));
    } else if (node->kind() == list_extend || node->kind() == aten::add_) {
      const Known* other = find(node->input(1));
      if (other == nullptr) {
        return false;
      }
      const Elements more = other->content; // a copy: `other` may be this list
      elements.insert(elements.end(), more.begin(), more.end());
    } else if (node->kind() == aten::insert) {
      const auto at = endOf(inputOf(node, "idx"), elements, 0);
      if (!at) {
        return false;
      }
      elements.insert(elements.begin() + *at, inputOf(node, "el"));
    } else if (node->kind() == aten::_set_item || node->kind() == aten::Delete || node->kind() == aten::pop) {
      const auto at = placeOf(inputOf(node, "idx"), elements);
      if (!at) {
        return false;
      }
      if (node->kind() == aten::_set_item) {
        elements[*at] = inputOf(node, "el");
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
    if (!node->outputs().empty()) {
      node->output()->replaceAllUsesWith(replacement);
    }
    return true;
  }

  bool read(Node* node) override {
    const auto elements = elementsOf(mainOperand(node));
    return elements && readElements(node, *elements);
  }

  bool readElements(Node* node, const Elements& elements) {
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
      const auto at = placeOf(inputOf(node, "idx"), elements);
      replacement = at ? elements[*at] : nullptr;
    } else if (const auto made = madeOf(node, elements)) {
      replacement = insertValue(node, prim::ListConstruct, *made, node, node->output()->type());
      follow(replacement, *made);
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
      const auto other = elementsOf(inputOf(node, "b"));
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
    const auto begin = endOf(inputOf(node, "start"), elements, 0),
               end = endOf(inputOf(node, "end"), elements, count);
    const auto step = constantOf(node, "step");
    if (!begin || !end || !step || !step->isInt() || step->toInt() <= 0) {
      return std::nullopt;
    }
    Elements part;
    for (int64_t i = *begin; i < *end; i += step->toInt()) {
      part.push_back(elements[i]);
    }
    return part;
  }
};

} // namespace

bool resolveLists(PassContext& context) { return Lists().resolve(context.graph()->block()); }

} // namespace jit_passes
