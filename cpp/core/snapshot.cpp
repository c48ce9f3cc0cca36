#include "snapshot.h"

#include "alias.h"
#include "known_values.h"
#include "module.h"
#include "operators.h"

namespace jit_passes {
namespace {

void setConstant(ValueRecord& record, const c10::IValue& constant) {
  record.constant = constant;
  if (constant.isTensor()) {
    const auto tensor = constant.toTensor();
    record.shape.emplace(tensor.sizes().begin(), tensor.sizes().end());
    record.dtype = tensor.scalar_type();
  }
}

class Recorder {
 public:
  explicit Recorder(const std::shared_ptr<Graph>& graph, const KnownValues* parameters = nullptr)
      : graph_(*graph),
        names_(nodeNames(*graph)),
        written_(writtenValues(graph, /*attributes_apart=*/parameters != nullptr)),
        parameters_(parameters) {}

  Snapshot record() {
    for (const Value* input : graph_.inputs()) {
      recordValue(input, input->debugNameBase());
      snapshot_.inputs.push_back(input->unique());
    }
    for (const Value* output : graph_.outputs()) {
      snapshot_.outputs.push_back(output->unique());
    }
    for (Node* node : nodesInOrder(graph_)) {
      recordNode(node);
    }
    return std::move(snapshot_);
  }

 private:
  void recordNode(Node* node) {
    NodeRecord record = recordOf(node);
    if (const auto found = names_.find(node); found != names_.end()) {
      record.name = found->second;
    }
    record.source = node->kind() == c10::prim::Constant ? "" : sourceLine(node);
    record.block = blockOf(node->owningBlock());
    for (const Value* output : node->outputs()) {
      const auto suffix = node->outputs().size() > 1 ? "." + std::to_string(output->offset()) : "";
      recordValue(output, record.name.empty() ? output->debugName() : record.name + suffix);
      record.outputs.push_back(output->unique());
    }
    for (const Block* block : node->blocks()) {
      for (const Value* input : block->inputs()) {
        recordValue(input, input->debugName());
      }
    }
    snapshot_.nodes.push_back(std::move(record));
  }

  void recordValue(const Value* value, const std::string& name) {
    ValueRecord record = recordOf(value, name, written_.count(value) > 0);
    const auto held = parameters_ == nullptr ? std::nullopt : parameters_->parameter(value);
    if (parameters_ != nullptr && value->node()->kind() == c10::prim::GetAttr) {
      record.name = attributePath(value);
    }
    if (held) {
      setConstant(record, *held);
    }
    snapshot_.values.push_back(std::move(record));
  }

  int64_t blockOf(const Block* block) {
    return blocks_.emplace(block, static_cast<int64_t>(blocks_.size())).first->second;
  }

  Graph& graph_;
  NodeNames names_;
  std::unordered_set<const Value*> written_;
  const KnownValues* parameters_; // null where they are no constants
  std::unordered_map<const Block*, int64_t> blocks_{{graph_.block(), 0}};
  Snapshot snapshot_;
};

// Nodes of a fresh graph look their operator up one by one, which takes longer than all the rest of a snapshot.
// The types of the operands decide, so nodes that have the same ones share the answer.
std::string overloadOf(const Node* node) {
  thread_local std::unordered_map<std::string, std::string> known;
  if (node->kind().is_prim()) {
    return "";
  }
  std::string key = node->kind().toQualString();
  for (const Value* input : node->inputs()) {
    const auto& type = input->type();
    key += static_cast<char>(type->kind());
    if (type->containedTypeSize() == 1) {
      key += static_cast<char>(type->containedType(0)->kind());
    }
  }
  const auto [found, is_new] = known.try_emplace(std::move(key));
  if (const auto* schema = is_new ? node->maybeSchema() : nullptr) {
    found->second = schema->overload_name();
  }
  return found->second;
}

} // namespace

std::vector<Node*> nodesInOrder(Graph& graph) {
  std::vector<Node*> nodes;
  forEachNode(graph, [&](Node* node) { nodes.push_back(node); });
  return nodes;
}

NodeRecord recordOf(Node* node) {
  NodeRecord record;
  record.kind = node->kind().toQualString();
  std::tie(record.module, record.module_type) = moduleOf(node);
  record.moves_data = movesData(node);
  for (const Value* input : node->inputs()) {
    record.inputs.push_back(static_cast<int64_t>(input->unique()));
  }
  record.overload = overloadOf(node);
  return record;
}

ValueRecord recordOf(const Value* value, const std::string& name, bool written) {
  const auto& uses = value->uses();
  ValueRecord record;
  record.id = static_cast<int64_t>(value->unique());
  record.name = name;
  record.is_tensor = value->type()->isSubtypeOf(*c10::TensorType::get());
  record.written = written;
  record.result =
      std::ranges::any_of(uses, [](const Use& use) { return use.user->kind() == c10::prim::Return; });
  if (const auto type = value->type()->cast<c10::TensorType>()) {
    record.shape = type->sizes().sizes();
    record.dtype = type->scalarType();
  }
  if (const auto constant = constantOf(value)) {
    setConstant(record, *constant);
  }
  return record;
}

Snapshot takeSnapshot(const std::shared_ptr<Graph>& graph) { return Recorder(graph).record(); }

Snapshot takeSnapshot(const torch::jit::Module& module, const std::string& method) {
  const Options none;
  const PassContext context(module, method, none);
  const KnownValues known(context, /*attributes_apart=*/true);
  return Recorder(context.graph(), &known).record();
}

} // namespace jit_passes
