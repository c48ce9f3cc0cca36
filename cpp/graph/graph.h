// Functions that every pass uses to read and edit TorchScript graphs.
#pragma once

#include "jit.h"

namespace jit_passes JIT_PASSES_API {

namespace aten = c10::aten;
namespace attr = c10::attr;
namespace prim = c10::prim;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Use;
using torch::jit::Value;

// Visits every node, nested blocks included, in program order; the visited node may be destroyed.
// An exception is rethrown with the node and the user's source line in its message.
void forEachNode(Block* block, const std::function<void(Node*)>& visit);

inline void forEachNode(Graph& graph, const std::function<void(Node*)>& visit) {
  forEachNode(graph.block(), visit);
}
// forEachNode for visits that return whether they changed something. Returns whether one did.
bool changeNodes(Graph& graph, const std::function<bool(Node*)>& visit);
// Replaces each node with one output by the value that `replacementOf` returns for it. Null keeps the node.
bool replaceNodes(Graph& graph, const std::function<Value*(Node*)>& replacementOf);

// All nodes in program order; other code refers to a node by its number in this list. nodesWhere gives the nodes
// that pass a test.
std::vector<Node*> nodesInOrder(Graph& graph);
std::vector<Node*> nodesWhere(Graph& graph, const std::function<bool(const Node*)>& test);

// Visits inputs of the block and results of its nodes, nested blocks included.
void forEachValue(Block* block, const std::function<void(Value*)>& visit);

inline c10::Symbol symbol(const std::string& name) { return c10::Symbol::fromQualString(name); }
std::unordered_set<c10::Symbol> symbols(std::initializer_list<const char*> names);

// "aten::conv2d of layer1.0.conv1 (model.py:12)": how messages speak of a node.
std::string describe(const Node* node);
// "model.py:12": the line of the user's model that the node comes from, rather than of a PyTorch module that it
// calls. "" where the graph has no line. For a loaded model: the line of the original code, which the file notes, or
// "code/__torch__/model.py:12 in the file".
std::string sourceLine(const Node* node);
std::string lineOf(const torch::jit::SourceRange& range);

// The lines of all nodes of a graph. Many nodes share a source range, so each range is looked into once.
class SourceLines {
 public:
  std::string of(const Node* node);

 private:
  struct Line {
    std::string text;
    bool is_of_torch;
  };

  const Line& at(const torch::jit::SourceRange& range);

  std::map<std::tuple<const torch::jit::Source*, size_t, size_t>, Line> known_;
};
// "aten::relu does not take (Tensor, int); it is aten::relu(Tensor self) -> Tensor".
std::string operatorMismatch(const Node* node);
// The path of the module that the node was written in, "layer1.0.conv1", and that module's type.
std::pair<std::string, std::string> moduleOf(const Node* node);

// The operand of that name in the operator's schema. If there is none, inputOf raises an error and operandOf returns
// null.
Value* inputOf(const Node* node, std::string_view name);
Value* operandOf(const Node* node, std::string_view name);
void setOperand(Node* node, std::string_view name, Value* value);
// The first operand, under any name: for code that operators of many kinds share.
inline Value* mainOperand(const Node* node) { return const_cast<Node*>(node)->input(0); }
// The module or object of prim::GetAttr, prim::SetAttr and prim::CallMethod; and the value that prim::SetAttr
// assigns.
inline Value* objectOf(const Node* node) { return const_cast<Node*>(node)->input(0); }
inline Value* assignedBy(const Node* set) { return const_cast<Node*>(set)->input(1); }

// The content of a constant; nothing for other values.
inline std::optional<c10::IValue> constantOf(const Value* value) { return torch::jit::toIValue(value); }
std::optional<at::Tensor> constantTensor(const Value* value);
std::optional<double> constantNumber(const Value* value);
std::optional<std::vector<int64_t>> constantInts(const Value* value);
bool isTensor(const Value* value);
bool isConstant(const Value* value);
bool isNone(const Value* value);
// Whether all operands from position `first` on are constants.
bool constantFrom(const Node* node, size_t first);
// For the operand of that name.
inline auto constantOf(const Node* n, std::string_view name) { return constantOf(inputOf(n, name)); }
inline auto constantTensor(const Node* n, std::string_view name) { return constantTensor(inputOf(n, name)); }
inline auto constantNumber(const Node* n, std::string_view name) { return constantNumber(inputOf(n, name)); }
inline auto constantInts(const Node* n, std::string_view name) { return constantInts(inputOf(n, name)); }
inline bool isNone(const Node* n, std::string_view name) { return isNone(inputOf(n, name)); }
// Whether the block always ends in an error.
bool alwaysRaises(const Block* block);

// Puts a node of that kind with Tensor outputs in front of `before`, with the metadata (source
// line, module path) of `like`.
Node* insertNode(
    Node* before, c10::Symbol kind, at::ArrayRef<Value*> inputs, const Node* like, size_t outputs = 1);
// Puts an operator in front of `before` and returns its only result, a Tensor unless `type` is given.
Value* insertValue(
    Node* before, c10::Symbol kind, at::ArrayRef<Value*> inputs, const Node* like,
    const c10::TypePtr& type = nullptr);
// A constant in front of `before`.
Value* insertConstant(Node* before, const c10::IValue& constant);
// Moves the node that computes the value, and the nodes that this one needs, in front of `before`. These nodes must
// have no effects, and must read nothing that changes in between.
void hoist(Value* value, Node* before);
// Whether the node transposes its operand, if that is a matrix.
bool isTranspose(const Node* node);
// Runs the operator of a node with one output. Its operands are among `values`, or constants.
c10::IValue computed(const Node* node, const std::unordered_map<const Value*, c10::IValue>& values);

// The id of the place (see places.h) of a quantize, a dequantize, or a node that a pass has made of one; nothing for
// other nodes. The node keeps it, but files do not: see Report.places in jit_passes/stages/module.py.
std::optional<int64_t> placeOf(const Node* node);
void setPlace(Node* node, int64_t place);
// Gives the place of `from` to `to`, which replaces it. If `to` has a place already, it keeps that one.
void handOverPlace(const Node* from, Node* to);
// Removes the place from a node of a part that was quantized earlier: its id means nothing in this model.
void forgetPlace(Node* node);

// Redirects all uses of the node's only output to `value` and destroys the node.
void replaceNode(Node* node, Value* value);
// Replaces a node by a value, and destroys the nodes that only this one used, operands of operands included. A pass
// over many large constants thus frees each one before it makes the next.
void replaceComputation(Node* node, Value* value);

// Whether the name of the node's operator, namespace included, begins with `prefix`.
inline bool startsWith(const Node* node, std::string_view prefix) {
  return std::string_view(node->kind().toQualString()).substr(0, prefix.size()) == prefix;
}

} // namespace jit_passes JIT_PASSES_API
