// A graph as plain data, for code that only looks: quantizers, rules' checks and reports.
#pragma once

#include "graph/graph.h"

namespace jit_passes {

struct NodeRecord {
  std::string name; // "" for constants and dialect nodes
  std::string kind;
  std::string module;
  std::string module_type;
  std::string source;
  int64_t block = 0; // blocks are numbered; 0 is the method's own
  bool moves_data = false;
  std::vector<int64_t> inputs; // values, by unique()
  std::vector<int64_t> outputs;
  std::optional<std::string> overload; // of the operator's schemas, the node's; none where it has none
  // Of a branch or loop: values that go into a block or out of it, and what they are called there.
  std::vector<std::pair<int64_t, int64_t>> carried;
};

// Without name, line, block and results.
NodeRecord recordOf(Node* node);

struct ValueRecord {
  int64_t id = 0;
  std::string name;
  bool is_tensor = false;
  bool written = false; // an in-place operator may write to it
  bool result = false;  // the method, or a block of it, returns it
  // It is a whole number, or a list of these, that follows from sizes of tensors and from constants alone.
  bool from_sizes = false;
  std::optional<c10::IValue> constant;
  // A tensor's shape, the sizes one by one, and its dtype, as far as the graph knows them.
  std::optional<std::vector<std::optional<int64_t>>> shape;
  std::optional<at::ScalarType> dtype;
};

ValueRecord recordOf(const Value* value, const std::string& name, bool written);

struct Snapshot {
  std::vector<NodeRecord> nodes;
  std::vector<ValueRecord> values;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
};

struct QuantizedValue {
  int64_t place;
  std::string name;   // of the value; one that is quantized again has the name that it had before
  std::string reader; // of the first operator that reads it dequantized; "" for none
};
// One for each quantize in the graph that stands for a place, in program order.
std::vector<QuantizedValue> quantizedValues(Graph& graph);

Snapshot takeSnapshot(const std::shared_ptr<Graph>& graph);
// Parameters, and buffers that the graph does not write to, count as constants. A value read from a
// module is called by its path.
Snapshot takeSnapshot(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes
