#include "editor.h"

#include "graph/module.h"

namespace jit_passes {

Editor::Editor(PassContext& context)
    : context_(context),
      graph_(context.graph()),
      snapshot_(takeSnapshot(graph_)),
      nodes_(nodesInOrder(*graph_)) {
  for (const Node* node : nodes_) {
    indices_.emplace(node, indices_.size());
  }
  forEachValue(graph_->block(), [&](Value* value) { values_[value->unique()] = value; });
}

PassContext& Editor::context() const {
  checkOpen();
  return context_;
}

void Editor::checkOpen() const { TORCH_CHECK(open_, "the pass is over: its graph can be edited no more"); }

bool Editor::hasModule() const { return context().hasModule(); }

Node* Editor::node(int64_t index) const {
  checkOpen();
  TORCH_CHECK(
      index >= 0 && index < static_cast<int64_t>(nodes_.size()) && nodes_[index] != nullptr,
      "the node is not in the graph any more");
  return nodes_[index];
}

Node* Editor::placeOf(int64_t before) const { return before == kEnd ? graph_->return_node() : node(before); }

Value* Editor::value(int64_t id) const {
  checkOpen();
  const auto found = values_.find(id);
  TORCH_CHECK(found != values_.end(), "the value is not in the graph any more");
  return found->second;
}

void Editor::own(Node* made) {
  indices_.emplace(made, nodes_.size());
  nodes_.push_back(made);
}

void Editor::forget(const Node* node, std::vector<int64_t>& gone, std::unordered_set<int64_t>& results) {
  for (const Block* block : node->blocks()) {
    for (const Value* input : block->inputs()) {
      values_.erase(input->unique());
    }
    for (const Node* inner : block->nodes()) {
      forget(inner, gone, results);
    }
    for (const Value* output : block->outputs()) {
      results.insert(output->unique());
    }
  }
  for (const Value* output : node->outputs()) {
    values_.erase(output->unique());
  }
  const auto index = indices_.find(node);
  nodes_[index->second] = nullptr;
  gone.push_back(index->second);
  indices_.erase(index);
}

Editor::Inserted Editor::adopt(Node* made, const Node* like) {
  Inserted inserted{recordOf(made), {}, static_cast<int64_t>(nodes_.size())};
  if (like != nullptr && made->kind() != prim::Constant) {
    inserted.node.source = sourceLine(like);
  }
  for (Value* output : made->outputs()) {
    const auto id = output->unique();
    values_[id] = output;
    inserted.node.outputs.push_back(id);
    inserted.values.push_back(recordOf(output, output->debugName(), false));
  }
  own(made);
  return inserted;
}

Editor::Inserted Editor::insert(
    const std::string& kind, const std::vector<int64_t>& inputs, int64_t before, int64_t like) {
  const auto wanted = symbol(kind);
  TORCH_CHECK(
      !wanted.is_prim() || wanted == prim::ListConstruct || wanted == prim::TupleConstruct, kind,
      " cannot be inserted: only operators, prim::ListConstruct and prim::TupleConstruct can");
  std::vector<Value*> operands;
  for (const int64_t id : inputs) {
    operands.push_back(value(id));
  }
  Node* place = placeOf(before);
  Node* origin = node(like);
  if (wanted == prim::ListConstruct) {
    TORCH_CHECK(!operands.empty(), "a list needs an element: an empty one has no type");
    const auto type = c10::unshapedType(operands[0]->type());
    for (const Value* operand : operands) {
      TORCH_CHECK(
          operand->type()->isSubtypeOf(*type), "a list has elements of one type, not ",
          type->annotation_str(), " and ", operand->type()->annotation_str());
    }
    return adopt(graph_->createList(type, operands)->insertBefore(place)->copyMetadata(origin), origin);
  }
  if (wanted == prim::TupleConstruct) {
    return adopt(graph_->createTuple(operands)->insertBefore(place)->copyMetadata(origin), origin);
  }
  Node* made = insertNode(place, wanted, operands, origin);
  const auto* schema = made->maybeSchema();
  if (schema == nullptr) {
    const auto mismatch = operatorMismatch(made);
    made->destroy();
    TORCH_CHECK(false, mismatch);
  }
  while (made->outputs().size() > schema->returns().size()) {
    made->eraseOutput(made->outputs().size() - 1);
  }
  while (made->outputs().size() < schema->returns().size()) {
    made->addOutput();
  }
  c10::TypeEnv variables; // the t of aten::pop.t(t[](a!) self, int idx) -> t(*)
  for (size_t i = 0; i < operands.size() && i < schema->arguments().size(); ++i) {
    c10::matchTypeVariables(schema->arguments()[i].type(), operands[i]->type(), variables);
  }
  for (size_t i = 0; i < made->outputs().size(); ++i) {
    const auto& type = schema->returns()[i].type();
    const auto found = c10::tryEvalTypeVariables(type, variables);
    made->output(i)->setType(found != nullptr ? found : type);
  }
  return adopt(made, origin);
}

Editor::Inserted Editor::insertConstant(const c10::IValue& constant, int64_t before) {
  TORCH_CHECK(
      !constant.isGenericDict(),
      "a constant is None, a bool, number, string, tensor, or a tuple or list of these, not a dict: insert "
      "prim::DictConstruct");
  return adopt(jit_passes::insertConstant(placeOf(before), constant)->node(), nullptr);
}

Editor::Inserted Editor::insertAttribute(const std::string& path, int64_t before) {
  TORCH_CHECK(hasModule(), "a graph after autograd has no module to read '", path, "' from");
  TORCH_CHECK(
      !path.empty() && attributeAt(context().module(), path), "the module has no attribute '", path, "'");
  Value* owner = readAttribute(*graph_, placeOf(before), path);
  for (Value* part = owner->node()->input(); part->node()->kind() == prim::GetAttr;
       part = part->node()->input()) {
    own(part->node());
    values_[part->unique()] = part;
  }
  return adopt(owner->node(), nullptr);
}

std::string Editor::addAttribute(
    const std::string& name, const at::Tensor& tensor, bool parameter, int64_t like) {
  const auto path = moduleOf(node(like)).first;
  TORCH_CHECK(
      !name.empty() && name.find('.') == std::string::npos, "an attribute's name has no dots, not '", name,
      "'");
  return addTensorAttribute(context().module(), path, name, tensor, parameter);
}

void Editor::setOperand(int64_t user, int64_t operand, int64_t replacement) {
  Node* target = node(user);
  TORCH_CHECK(
      operand >= 0 && operand < static_cast<int64_t>(target->inputs().size()), describe(target), " has ",
      target->inputs().size(), " operands, and none at ", operand);
  target->replaceInput(operand, value(replacement));
}

void Editor::replaceUses(int64_t old, int64_t replacement) {
  if (old != replacement) { // PyTorch's loop would not end
    value(old)->replaceAllUsesWith(value(replacement));
  }
}

Editor::Removed Editor::remove(int64_t index) {
  Node* target = node(index);
  for (const Value* output : target->outputs()) {
    TORCH_CHECK(
        !output->hasUses(), describe(target), " cannot be removed: ", describe(output->uses()[0].user),
        " uses its result; replace that first");
  }
  Removed removed;
  std::unordered_set<int64_t> results;
  forget(target, removed.nodes, results);
  target->destroy();
  for (const int64_t id : results) {
    const auto found = values_.find(id);
    const auto is_result = [](const Use& use) { return use.user->kind() == prim::Return; };
    if (found != values_.end() && std::ranges::none_of(found->second->uses(), is_result)) {
      removed.results.push_back(id);
    }
  }
  return removed;
}

} // namespace jit_passes
