#include "insertion.h"

#include "batch_norm.h"
#include "graph/attributes.h"
#include "graph/module.h"
#include "graph/places.h"

namespace jit_passes {
namespace {

std::vector<c10::IValue> elements(const c10::IValue& packed) { return packed.toTupleRef().elements().vec(); }

struct Known {
  c10::Symbol kind;
  std::shared_ptr<torch::jit::Operator> op;
};

const Known& knownOperator(const std::string& name) {
  thread_local std::unordered_map<std::string, Known> found;
  if (const auto seen = found.find(name); seen != found.end()) {
    return seen->second;
  }
  const auto kind = symbol(name);
  for (const auto& known : torch::jit::getAllOperatorsFor(kind)) {
    if (isPlaceSchema(known->schema())) {
      return found.emplace(name, Known{kind, known}).first->second;
    }
  }
  TORCH_CHECK(
      false, "there is no operator ", name,
      " whose last argument is 'str spec': is the library that defines it loaded?");
}

void checkNames(const Insertion& insertion) {
  for (const auto& [name, value] : insertion.operands) {
    TORCH_CHECK(
        insertion.schema->argumentIndexWithName(name).value_or(0) > 0, "the place '", insertion.name,
        "' has a value for '", name, "', which is no argument of ", *insertion.schema);
  }
}

// Inserts deferred_weight, whose results are the weight to quantize and the factor of the batch norm.
Node* deferWeight(Value* weight, Node* norm, const c10::IValue& axis, Node* before) {
  static const auto fold_factor = symbol("jit_passes::fold_factor");
  static const auto deferred_weight = symbol("jit_passes::deferred_weight");
  const auto statistics = {inputOf(norm, "weight"), inputOf(norm, "running_var"), inputOf(norm, "eps")};
  Value* factor = insertValue(before, fold_factor, statistics, norm);
  const auto operands = {weight, factor, insertConstant(before, axis), insertConstant(before, false)};
  Node* node = insertNode(before, deferred_weight, operands, norm, /*outputs=*/2);
  node->output(0)->setType(weight->type());
  node->output(1)->setType(c10::OptionalType::ofTensor());
  return node;
}

// Scripts give the bias of a convolution the type Tensor?, even if it is a tensor.
Value* asTensor(Value* value, Node* before) {
  if (value->type()->kind() != c10::TypeKind::OptionalType) {
    return value;
  }
  return insertValue(before, prim::unchecked_cast, {value}, before);
}

} // namespace

Insertions::Insertions(PassContext& context)
    : context_(context),
      graph_(context.graph()),
      nodes_(nodesInOrder(*graph_)),
      start_(graph_->block()->nodes().front()) {
  std::ranges::for_each(nodes_, forgetPlace);
  forEachValue(graph_->block(), [&](Value* value) { values_[value->unique()] = value; });
  for (const c10::IValue& packed : elements(context.option("places"))) {
    all_.push_back(read(packed));
  }
  // Inserts at the end and moves to the front: PyTorch renumbers all nodes after a few insertions between two nodes.
  Node *end = graph_->return_node(), *last = end->prev();
  for (const c10::IValue& packed : elements(context.option("states"))) {
    states_.push_back(readState(packed));
  }
  const bool alone = last == graph_->param_node(); // in an empty graph they are in front already
  while (!alone && end->prev() != last) {
    end->prev()->moveBefore(graph_->block()->nodes().front());
  }
}

Insertion Insertions::read(const c10::IValue& packed) const {
  const auto fields = packed.toGenericDict();
  const auto& known = knownOperator(fields.at("op").toStringRef());
  Insertion insertion{
      find(fields.at("value").toInt(), fields.at("uses")),
      fields.at("home").isNone() ? nullptr : nodes_.at(fields.at("home").toInt()),
      known.kind,
      &known.op->schema(),
      {},
      {}};
  for (const auto& entry : fields.at("operands").toGenericDict()) {
    insertion.operands.emplace(entry.key().toStringRef(), entry.value());
  }
  const auto name = insertion.operands.find("name");
  insertion.name = name == insertion.operands.end() ? "" : name->second.toStringRef();
  checkNames(insertion);
  return insertion;
}

AnnotatedValue Insertions::find(int64_t value, const c10::IValue& uses) const {
  AnnotatedValue found{values_.at(value), {}};
  for (const c10::IValue& use : uses.toListRef()) {
    const auto fields = elements(use);
    found.uses.emplace_back(nodes_.at(fields[0].toInt()), fields[1].toInt());
  }
  return found;
}

Value* Insertions::readState(const c10::IValue& packed) {
  const auto fields = elements(packed);
  const auto module = fields[1].isNone() ? "" : moduleOf(nodes_.at(fields[1].toInt())).first;
  const auto path = addTensorAttribute(
      context_.module(), module, fields[0].toStringRef(), fields[2].toTensor(), fields[3].toBool());
  return readAttribute(*graph_, graph_->return_node(), path);
}

Node* Insertions::nodeFor(const Insertion& insertion) const {
  const auto& [value, uses] = insertion.annotated;
  if (!uses.empty()) {
    return uses.front().user;
  }
  if (value->node() == graph_->param_node()) {
    return start_;
  }
  if (isConstant(value)) {
    return value->uses().at(0).user;
  }
  Node* maker = value->node();
  return maker->kind() == prim::Param ? maker->owningBlock()->nodes().front() : maker->next();
}

Node* Insertions::insert(const Insertion& insertion, Value* value, Node* before, const Node* like) {
  std::vector<Value*> operands{asTensor(value, before)};
  const auto& arguments = insertion.schema->arguments();
  for (size_t i = 1; i < arguments.size(); ++i) {
    const auto found = insertion.operands.find(arguments[i].name());
    const bool given = found != insertion.operands.end();
    TORCH_CHECK(
        given || arguments[i].default_value(), "the place '", insertion.name, "' has no value for '",
        arguments[i].name(), "' of ", *insertion.schema);
    const c10::IValue what = given ? found->second : *arguments[i].default_value();
    if (what.isTuple() && elements(what)[0].toStringRef() == "fold") {
      const auto fold = elements(what);
      Node* deferred = deferWeight(operands.front(), nodes_.at(fold[1].toInt()), fold[2], before);
      operands.front() = deferred->output(0);
      operands.push_back(deferred->output(1));
    } else {
      operands.push_back(operand(what, before));
    }
  }
  const size_t results = insertion.schema->returns().size();
  Node* node = insertNode(before, insertion.kind, operands, like == nullptr ? before : like, results);
  if (results > 0) {
    node->output(0)->setType(operands.front()->type());
  }
  return node;
}

Value* Insertions::operand(const c10::IValue& what, Node* before) {
  if (!what.isTuple()) {
    return insertConstant(before, what);
  }
  const auto fields = elements(what);
  const auto& role = fields[0].toStringRef();
  if (role == "value") {
    return values_.at(fields[1].toInt());
  }
  return role == "state" ? states_.at(fields[1].toInt()) : shared(role);
}

// Reads each attribute once for all places.
Value* Insertions::shared(const std::string& role) {
  auto& module = context_.module();
  if (const auto found = shared_.find(role); found != shared_.end()) {
    return found->second;
  }
  Value* value = nullptr;
  if (role == "observe" && !module.hasattr("training")) {
    value = insertConstant(start_, true);
  } else if (role == "observe") {
    Value* training = readAttribute(*graph_, start_, "training");
    Value* enabled = readSwitch(module, *graph_, start_, "observer_enabled", true);
    value = insertValue(start_, aten::__and__, {training, enabled}, start_, c10::BoolType::get());
  } else if (role == "enabled") {
    value = readSwitch(module, *graph_, start_, "fake_quantize_enabled", true);
  } else if (role == "corrections") {
    value = attribute("scale_corrections", at::zeros({1}, at::kLong));
  } else {
    TORCH_CHECK(role == "group", "there is no operand '", role, "'");
    value = attribute("process_group", "");
  }
  return shared_[role] = value;
}

// Reads an attribute of the root module, which is added if it is missing.
Value* Insertions::attribute(const std::string& name, const c10::IValue& initially) {
  auto& module = context_.module();
  if (!attributeSlot(*module.type(), name)) {
    const auto type = initially.isTensor() ? c10::TypePtr(c10::TensorType::get()) : c10::StringType::get();
    const auto role = initially.isTensor() ? AttributeRole::Buffer : AttributeRole::Plain;
    addAttribute(module, name, type, initially, role);
  }
  return readAttribute(*graph_, start_, name);
}

} // namespace jit_passes
