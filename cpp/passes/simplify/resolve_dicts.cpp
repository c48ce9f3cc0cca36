// Replace reads of a dictionary that is filled step by step by the values that it holds there.
//
//   %d = aten::dict()
//   aten::_set_item(%d, "out", %x)
//   %y = aten::__getitem__(%d, "out")            ->   %x
//   return (%d)                                       %m = prim::DictConstruct("out", %x)
//                                                     return (%m)
//
// followed.h says how long the items are known. Keys must be constants: strings, whole numbers or bools. Reading a
// missing key stays an error. Backbones of torchvision pass their features on in dictionaries.
#include "followed.h"
#include "simplify.h"

namespace jit_passes {
namespace {

// Keys and values of the graph, in the order of insertion.
using Items = std::vector<std::pair<Value*, Value*>>;

const auto empty_dict = symbol("aten::dict"), dict_contains = symbol("aten::__contains__");
const auto dict_get = symbol("aten::get"), dict_values = symbol("aten::values"),
           dict_keys = symbol("aten::keys");
const auto dict_items = symbol("aten::items");

bool isKey(const Value* value) {
  const auto constant = constantOf(value);
  return constant && (constant->isString() || constant->isInt() || constant->isBool());
}

auto placeOfKey(const Items& items, const Value* key) {
  return std::ranges::find_if(
      items, [&](const auto& item) { return *constantOf(item.first) == *constantOf(key); });
}

class Dicts : public Followed<Items> {
 private:
  std::optional<Items> contentOf(Node* node) const override {
    if (node->kind() == empty_dict && node->inputs().empty()) {
      return Items();
    }
    if (node->kind() != prim::DictConstruct) {
      return std::nullopt;
    }
    Items items;
    for (size_t i = 0; i + 1 < node->inputs().size(); i += 2) {
      Value *key = node->input(i), *value = node->input(i + 1);
      if (!isKey(key)) {
        return std::nullopt;
      }
      set(items, key, value);
    }
    return items;
  }

  Value* insert(Node* before, const Items& items, const Value* like) const override {
    std::vector<Value*> operands;
    for (const auto& [key, value] : items) {
      operands.insert(operands.end(), {insertConstant(before, *constantOf(key)), value});
    }
    return insertValue(before, prim::DictConstruct, operands, like->node(), like->type());
  }

  static void set(Items& items, Value* key, Value* value) {
    if (const auto known = placeOfKey(items, key); known != items.end()) {
      items[known - items.begin()].second = value;
    } else {
      items.emplace_back(key, value);
    }
  }

  bool write(Node* node, Items& items) override {
    const bool sets = node->kind() == aten::_set_item && isKey(node->input(1));
    if (sets) {
      set(items, node->input(1), node->input(2));
    }
    return sets;
  }

  bool read(Node* node) override {
    const Known* known = find(mainOperand(node));
    Value* replacement = known != nullptr ? resultOf(node, known->content) : nullptr;
    if (replacement != nullptr) {
      node->output()->replaceAllUsesWith(replacement);
    }
    return replacement != nullptr;
  }

  static Value* resultOf(Node* node, const Items& items) {
    if (node->kind() == aten::len) {
      return insertConstant(node, static_cast<int64_t>(items.size()));
    }
    if (node->inputs().size() > 1 && isKey(node->input(1))) {
      const auto place = placeOfKey(items, node->input(1));
      const bool has = place != items.end();
      return node->kind() == dict_contains                                   ? insertConstant(node, has)
             : has && node->kind() == aten::__getitem__                      ? place->second
             : has && node->kind() == dict_get && node->inputs().size() == 3 ? place->second
                                                                             : nullptr;
    }
    const bool keys = node->kind() == dict_keys;
    if (!keys && node->kind() != dict_values && node->kind() != dict_items) {
      return nullptr;
    }
    std::vector<Value*> elements;
    const c10::TypePtr type = node->output()->type()->expectRef<c10::ListType>().getElementType();
    for (const auto& [key, value] : items) {
      Value* own = node->kind() == dict_values ? value : insertConstant(node, *constantOf(key));
      elements.push_back(
          node->kind() == dict_items ? insertValue(node, prim::TupleConstruct, {own, value}, node, type)
                                     : own);
    }
    return insertValue(node, prim::ListConstruct, elements, node, node->output()->type());
  }
};

} // namespace

bool resolveDicts(PassContext& context) { return Dicts().resolve(context.graph()->block()); }

} // namespace jit_passes
