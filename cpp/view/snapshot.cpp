#include "snapshot.h"

#include "facts/known_values.h"
#include "facts/shape_facts.h"
#include "graph/alias.h"
#include "graph/module.h"
#include "graph/names.h"
#include "graph/operators.h"
#include "graph/places.h"

namespace jit_passes {
namespace {

const auto kQuantize = symbol("jit_passes::quantize");
const auto kQuantizePerChannel = symbol("jit_passes::quantize_per_channel");
const auto kDequantize = symbol("jit_passes::dequantize");
const auto kDequantizePerChannel = symbol("jit_passes::dequantize_per_channel");
const auto kRound = symbol("jit_passes::fake_quantize"); // before quantize, unless halves go to even

void setConstant(ValueRecord& record, const c10::IValue& constant) {
  record.constant = constant;
  if (constant.isTensor()) {
    const auto tensor = constant.toTensor();
    record.shape.emplace(tensor.sizes().begin(), tensor.sizes().end());
    record.dtype = tensor.scalar_type();
  }
}

// The name of a block's argument, "Loop.block0.1". Its name in the graph is a number, which files change.
std::string nameOfArgument(const Value* value, const NodeNames& names) {
  const Block* block = value->node()->owningBlock();
  const Node* owner = block->owningNode();
  const auto found = names.find(owner);
  if (owner == nullptr || found == names.end()) {
    return value->debugNameBase();
  }
  const auto blocks = owner->blocks();
  const auto number = std::ranges::find(blocks, block) - blocks.begin();
  return found->second + ".block" + std::to_string(number) + "." + std::to_string(value->offset());
}

std::string nameOf(const Value* value, const NodeNames& names) {
  const Node* node = value->node();
  if (node->kind() == prim::Param) {
    return nameOfArgument(value, names);
  }
  const auto found = names.find(node);
  if (found == names.end() || found->second.empty()) {
    return value->debugName();
  }
  return found->second + (node->outputs().size() > 1 ? "." + std::to_string(value->offset()) : "");
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
      recordValue(input);
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
    record.source = node->kind() == prim::Constant ? "" : lines_.of(node);
    record.block = blockOf(node->owningBlock());
    for (const Value* output : node->outputs()) {
      recordValue(output);
      record.outputs.push_back(output->unique());
    }
    for (const Block* block : node->blocks()) {
      for (const Value* input : block->inputs()) {
        recordValue(input);
      }
    }
    snapshot_.nodes.push_back(std::move(record));
  }

  void recordValue(const Value* value) {
    ValueRecord record = recordOf(value, nameOf(value, names_), written_.count(value) > 0);
    const auto held = parameters_ == nullptr ? std::nullopt : parameters_->fixed(value);
    const bool object = value->type()->kind() == c10::TypeKind::ClassType;
    if (value->node()->kind() == prim::GetAttr && (parameters_ != nullptr || object)) {
      record.name = attributePath(value);
    }
    if (held) {
      setConstant(record, *held);
    }
    if (followsFromSizes(value)) {
      from_sizes_.insert(value);
      record.from_sizes = true;
    }
    snapshot_.values.push_back(std::move(record));
  }

  // Operands must have been recorded before.
  bool followsFromSizes(const Value* value) const {
    const Node* node = value->node();
    const auto known = [&](const Value* operand) {
      const auto constant = constantOf(operand);
      return from_sizes_.count(operand) > 0 || (constant && (constant->isScalar() || isTensor(operand))) ||
             (isTensor(operand) && node->kind() == aten::size && !written_.count(operand));
    };
    const bool lists = node->kind() == prim::ListConstruct || node->kind() == prim::ListUnpack;
    const bool whole = *value->type() == *c10::ListType::ofInts();
    const bool isNumber = value->type()->isSubtypeOf(*c10::NumberType::get());
    return !written_.count(value) && (lists ? whole || isNumber : computesNumber(node)) &&
           std::ranges::all_of(node->inputs(), known);
  }

  int64_t blockOf(const Block* block) { return blocks_.emplace(block, blocks_.size()).first->second; }

  Graph& graph_;
  NodeNames names_;
  std::unordered_set<const Value*> written_;
  const KnownValues* parameters_; // null where they do not count as constants
  std::unordered_set<const Value*> from_sizes_;
  SourceLines lines_;
  std::unordered_map<const Block*, int64_t> blocks_{{graph_.block(), 0}};
  Snapshot snapshot_;
};

// The overload of a node's operator. The search takes longer than the rest of a snapshot, so nodes with equal types
// of operands, which decide the overload, share one answer.
std::string overloadOf(const Node* node) {
  thread_local std::unordered_map<std::string, std::string> known;
  if (node->kind().is_prim()) {
    return "";
  }
  std::string key = node->kind().toQualString();
  for (const Value* input : node->inputs()) {
    const auto& type = input->type();
    key += static_cast<char>(type->kind());
    for (size_t i = 0; i < std::min<size_t>(type->containedTypeSize(), 2); ++i) { // a dict has two
      key += static_cast<char>(type->containedType(i)->kind());
    }
  }
  const auto found = known.find(key);
  if (found != known.end()) {
    return found->second;
  }
  const auto* schema = node->maybeSchema(); // a library that defines it may be loaded later
  return schema == nullptr ? "" : known.emplace(std::move(key), schema->overload_name()).first->second;
}

// For %y = prim::If(%c), the result of each block becomes %y. For %y = prim::Loop(%n, %c, %x), the block's argument
// is %x in the first round and the block's result in the next ones, and the last result becomes %y.
std::vector<std::pair<int64_t, int64_t>> carriedBy(const Node* node) {
  std::vector<std::pair<int64_t, int64_t>> carried;
  const bool loops = node->kind() == prim::Loop;
  if (!loops && node->kind() != prim::If) {
    return carried;
  }
  const auto add = [&](const Value* from, const Value* to) {
    carried.emplace_back(from->unique(), to->unique());
  };
  const size_t first =
      loops ? 1 : 0; // a loop's block takes the number of the round and returns whether to go on
  for (const Block* block : node->blocks()) {
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      add(block->outputs().at(first + i), node->output(i));
      if (loops) {
        add(node->input(2 + i), block->inputs().at(first + i));
        add(block->outputs().at(first + i), block->inputs().at(first + i));
      }
    }
  }
  return carried;
}

} // namespace

NodeRecord recordOf(Node* node) {
  NodeRecord record;
  record.kind = node->kind().toQualString();
  std::tie(record.module, record.module_type) = moduleOf(node);
  record.moves_data = movesData(node);
  for (const Value* input : node->inputs()) {
    record.inputs.push_back(input->unique());
  }
  record.overload = overloadOf(node);
  record.carried = carriedBy(node);
  return record;
}

ValueRecord recordOf(const Value* value, const std::string& name, bool written) {
  const auto& uses = value->uses();
  ValueRecord record;
  record.id = value->unique();
  record.name = name;
  record.is_tensor = isTensor(value);
  record.written = written;
  record.result = std::ranges::any_of(uses, [](const Use& use) { return use.user->kind() == prim::Return; });
  if (const auto type = value->type()->cast<c10::TensorType>()) {
    record.shape = type->sizes().sizes();
    record.dtype = type->scalarType();
  }
  if (const auto constant = constantOf(value)) {
    setConstant(record, *constant);
  }
  return record;
}

std::vector<QuantizedValue> quantizedValues(Graph& graph) {
  const auto quantizes = [](const Node* node) {
    return node->kind() == kQuantize || node->kind() == kQuantizePerChannel;
  };
  const auto dequantizes = [](const Node* node) {
    return node->kind() == kDequantize || node->kind() == kDequantizePerChannel;
  };
  const auto names = nodeNames(graph);
  std::vector<QuantizedValue> found;
  std::unordered_map<const Value*, size_t> codes; // the number in `found` of each value in codes
  for (const Node* node : nodesInOrder(graph)) {
    const auto name = names.find(node);
    for (const Value* operand : node->inputs()) {
      if (name == names.end() || node->kind() == kRound || !dequantizes(operand->node())) {
        continue;
      }
      const auto read = codes.find(mainOperand(operand->node()));
      if (read != codes.end() && found[read->second].reader.empty()) {
        found[read->second].reader = name->second;
      }
    }
    const auto place = quantizes(node) ? placeOf(node) : std::nullopt;
    if (!place) {
      continue;
    }
    const Value* value = mainOperand(node);
    while (quantizes(value->node()) || dequantizes(value->node()) || value->node()->kind() == kRound) {
      value = mainOperand(value->node());
    }
    codes.emplace(node->output(), found.size());
    found.push_back({*place, nameOf(value, names), ""});
  }
  return found;
}

Snapshot takeSnapshot(const std::shared_ptr<Graph>& graph) { return Recorder(graph).record(); }

Snapshot takeSnapshot(const torch::jit::Module& module, const std::string& method) {
  const Options none;
  const PassContext context(module, method, none);
  const KnownValues known(context, /*attributes_apart=*/true);
  return Recorder(context.graph(), &known).record();
}

} // namespace jit_passes
