// A graph as plain data, for code that only reads it: quantizers, checks of rules, and reports.
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
  std::optional<std::string> overload; // the overload of the node's operator, if it has a schema
  // For a branch or loop: pairs (from, to), where the value `to` gets the content of `from` at the edge of a block.
  std::vector<std::pair<int64_t, int64_t>> carried;
};

// The record without name, line, block and results.
NodeRecord recordOf(Node* node);

struct ValueRecord {
  int64_t id = 0;
  std::string name;
  bool is_tensor = false;
  bool written = false; // an in-place operator may write to it
  bool result = false;  // the method, or a block of it, returns it
  // Whether it is a whole number, or a list of whole numbers, computed from sizes of tensors and constants alone.
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
  std::string name;   // the value's name; a value that is quantized again keeps its first name
  std::string reader; // the name of the first operator that reads the dequantized value; "" if there is none
};
// Entries for each quantize in the graph that stands for a place, in program order.
std::vector<QuantizedValue> quantizedValues(Graph& graph);

Snapshot takeSnapshot(const std::shared_ptr<Graph>& graph);
// Parameters, and buffers that the graph does not write to, count as constants. The name of a value that is read
// from a module is its path.
Snapshot takeSnapshot(const torch::jit::Module& module, const std::string& method);

} // namespace jit_passes
