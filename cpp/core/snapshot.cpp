#include "snapshot.h"

#include "alias.h"
#include "operators.h"

namespace jit_passes {
namespace {

class Recorder {
 public:
  explicit Recorder(const std::shared_ptr<Graph>& graph)
      : graph_(*graph), names_(nodeNames(*graph)), written_(writtenValues(graph)) {}

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
    const auto found = names_.find(node);
    const auto [module, type] = moduleOf(node);
    const bool constant = node->kind() == c10::prim::Constant;
    NodeRecord record{
        found == names_.end() ? "" : found->second,
        node->kind().toQualString(),
        module,
        type,
        constant ? "" : sourceLine(node),
        blockOf(node->owningBlock()),
        movesData(node),
        {},
        {}};
    for (const Value* input : node->inputs()) {
      record.inputs.push_back(input->unique());
    }
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
    snapshot_.values.push_back(recordOf(value, name, written_.count(value) > 0));
  }

  int64_t blockOf(const Block* block) {
    return blocks_.emplace(block, static_cast<int64_t>(blocks_.size())).first->second;
  }

  Graph& graph_;
  NodeNames names_;
  std::unordered_set<const Value*> written_;
  std::unordered_map<const Block*, int64_t> blocks_{{graph_.block(), 0}};
  Snapshot snapshot_;
};

} // namespace

std::vector<Node*> nodesInOrder(Graph& graph) {
  std::vector<Node*> nodes;
  forEachNode(graph, [&](Node* node) { nodes.push_back(node); });
  return nodes;
}

ValueRecord recordOf(const Value* value, const std::string& name, bool written) {
  const auto& uses = value->uses();
  ValueRecord record;
  record.id = static_cast<int64_t>(value->unique());
  record.name = name;
  record.is_tensor = value->type()->isSubtypeOf(*c10::TensorType::get());
  record.written = written;
  record.result = std::any_of(uses.begin(), uses.end(), [](const torch::jit::Use& use) {
    return use.user->kind() == c10::prim::Return;
  });
  record.constant = isConstant(value) ? torch::jit::toIValue(value) : std::nullopt;
  if (const auto type = value->type()->cast<c10::TensorType>()) {
    record.shape = type->sizes().sizes();
    record.dtype = type->scalarType();
  }
  if (record.constant && record.constant->isTensor()) {
    const auto tensor = record.constant->toTensor();
    record.shape.emplace(tensor.sizes().begin(), tensor.sizes().end());
    record.dtype = tensor.scalar_type();
  }
  return record;
}

Snapshot takeSnapshot(const std::shared_ptr<Graph>& graph) { return Recorder(graph).record(); }

} // namespace jit_passes
