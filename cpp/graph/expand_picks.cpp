// Replace the call of a module that an index picks at run time by branches that call each module it may pick:
//
//   %layer : Interface = prim::ModuleContainerIndex(%layers, %i)
//   %y : Tensor = prim::CallMethod[name="forward"](%layer, %x)
//
//     ->  %first : bool = aten::eq(%i, 0)
//         %y : Tensor = prim::If(%first)
//           block0(): %y.1 = the method of layers.0
//           block1(): the next module, and after the last one an error
#include "bound_modules.h"

namespace jit_passes {
namespace {

const auto pick = symbol("prim::ModuleContainerIndex");

class PickedCall {
 public:
  explicit PickedCall(Node* call)
      : call_(call),
        container_(mainOperand(objectOf(call)->node())),
        index_(objectOf(call)->node()->input(1)),
        type_(container_->type()->expect<c10::ClassType>()) {}

  void expand() {
    for (size_t i = 0; i < type_->numAttributes(); ++i) {
      const auto& name = type_->getAttributeName(i);
      const bool number = name.find_first_not_of("0123456789") == std::string::npos;
      if (type_->getAttribute(i)->is_module() && (byName() || number)) {
        names_.push_back(name);
      }
    }
    const auto results = oneOf(0, call_);
    for (size_t i = 0; i < results.size(); ++i) {
      call_->output(i)->replaceAllUsesWith(results[i]);
    }
    Node* picked = objectOf(call_)->node();
    call_->destroy();
    if (!picked->hasUses()) {
      picked->destroy();
    }
  }

 private:
  bool byName() const { return index_->type()->kind() == c10::TypeKind::StringType; }

  // The result of the module at this index or of one of the next ones, in front of a node.
  std::vector<Value*> oneOf(size_t place, Node* before) {
    auto& graph = *call_->owningGraph();
    if (place == names_.size()) {
      return nothing(before);
    }
    const auto key =
        byName() ? c10::IValue(names_[place]) : c10::IValue(static_cast<int64_t>(std::stoll(names_[place])));
    Value* is_it =
        insertValue(before, aten::eq, {index_, insertConstant(before, key)}, call_, c10::BoolType::get());
    Node* branch = insertNode(before, prim::If, {is_it}, call_, call_->outputs().size());
    Block* own = branch->addBlock();
    Node* get = graph.createGetAttr(container_, names_[place]);
    own->appendNode(get);
    std::vector<Value*> operands(call_->inputs().begin(), call_->inputs().end());
    operands[0] = get->output();
    Node* call = graph.create(prim::CallMethod, operands, call_->outputs().size());
    call->s_(attr::name, call_->s(attr::name));
    own->appendNode(call);
    Block* other = branch->addBlock();
    const auto rest = oneOf(place + 1, other->return_node());
    for (size_t i = 0; i < call_->outputs().size(); ++i) {
      const auto& type = call_->output(i)->type();
      own->registerOutput(call->output(i)->setType(type));
      other->registerOutput(rest[i]);
      branch->output(i)->setType(type);
    }
    for (Node* made : {get, call}) {
      made->copyMetadata(call_);
    }
    return branch->outputs().vec();
  }

  std::vector<Value*> nothing(Node* before) {
    Value* message = insertConstant(before, "no module is at the place that the model picks");
    insertNode(before, prim::RaiseException, {message, insertConstant(before, c10::IValue())}, call_, 0);
    std::vector<Value*> results;
    for (const Value* output : call_->outputs()) {
      results.push_back(insertValue(before, prim::Uninitialized, {}, call_, output->type()));
    }
    return results;
  }

  Node* call_;
  Value *container_, *index_;
  c10::ClassTypePtr type_;
  std::vector<std::string> names_;
};

} // namespace

bool expandPicks(Graph& graph) {
  const auto calls = nodesWhere(graph, [](const Node* node) {
    return node->kind() == prim::CallMethod && objectOf(node)->node()->kind() == pick &&
           mainOperand(objectOf(node)->node())->type()->cast<c10::ClassType>() != nullptr;
  });
  for (Node* call : calls) {
    PickedCall(call).expand();
  }
  return !calls.empty();
}

} // namespace jit_passes
