// The declarations of operators of a plan, one for each. Defining a RegisterOperator registers it.
#pragma once

#include "shapes.h"
#include "x86/kernels/floats.h"

#include <variant>

namespace jit_passes::x86 {

// The types of operands and result: codes or float32.
enum class Types {
  Codes, // codes only
  Same,  // one type for all operands and the result
  Mixed, // each operand by itself; the result is float32 if an operand is
  ToCodes,
  ToFloats,
  Floats, // without operands
  Stored, // without operands: the type of its tensor
  Real    // float32 for all operands and the result
};

// The work of a step.
enum class Does {
  Compute, // by the kernel in the operator's declaration
  Enter,   // quantizes an input of the plan
  Take,    // reads an input of the plan as float32
  Quantize,
  Convolve,
  ConvolveTransposed,
  Chain,
  Pack, // packs the right operand of a product
  Product,
  Measure,       // finds the extents of float32, for a grid
  QuantizeRows,  // on grids found from the numbers; inputs: float32 and, for one grid, its extents
  QuantizeImage, // an image on one grid; inputs: float32 and extents
  ToFloats,      // a layer whose result is float32; see addendOf
  Recur,         // all steps of a recurrent layer
  Copy,
  Rename,
  Exit
};

// How an operator uses its weights.
enum class LayerKind { None, Convolution, TransposedConvolution, Linear, Affine, Recurrent };

class Lowering;
struct StepContext;
struct Part;
class RegionReader;
// The forms that a node may have in a plan (building/reader.h): an operator, several, or a clip of its first operand. A
// node may also be one of its operands, unchanged.
struct Planned;
struct PlannedOperators;
struct Clipped;
using SameValue = torch::jit::Value*;

// Gives a node its form. Throws Refusal (program.h) for a node that a plan cannot compute.
template <typename Form>
using FromNode = Form (*)(const RegionReader&, torch::jit::Node*);

// An operator of PyTorch, "conv2d" for aten::conv2d, or of another library, "mine::gate"; and the function that gives
// its nodes a form. A second `From` of one kind of nodes is an error.
struct From {
  const char* name;
  std::variant<FromNode<Planned>, FromNode<PlannedOperators>, FromNode<Clipped>, FromNode<SameValue>> plan;
  // The node's operand, by its name, that may have any dtype: truths or indices. See Declaration::any_dtype.
  const char* any_dtype = nullptr;
  // Whether a plan computes the node of a float model in float32, where `types` allow it. A layer whose input must be
  // quantized is none.
  bool in_floats = true;
};

template <typename Form>
bool becomes(const From& from) {
  return std::holds_alternative<FromNode<Form>>(from.plan);
}

struct Count {
  size_t least, most;
};

// An operator and the sizes of its operands. An input of the plan has itself as operand.
struct Operands {
  const Operator& op;
  std::vector<const Sizes*> sizes;

  const Sizes& operator[](size_t i) const { return *sizes[i]; }
  const Sizes& first() const { return *sizes[0]; }
};

// Defaults for fields of a declaration.
inline void checkNothing(const Operator& /*op*/) {}
inline void checkNoValue(const Operator& /*op*/, const Program& /*program*/) {}
inline Sizes sizesOfFirst(const Operands& operands) { return operands.first(); }
inline int64_t axesOfFirst(const Operator& /*op*/, int64_t first, int64_t /*most*/) { return first; }
inline bool computesNone(const Operator& /*op*/, int64_t /*attribute*/) { return false; }
inline bool computesAll(const Operator& /*op*/, int64_t /*attribute*/) { return true; }
inline int64_t lastAxisOf(const Operator& /*op*/, int64_t rank) { return rank - 1; }
inline int64_t firstAttribute(const Operator& op) {
  TORCH_CHECK(
      !op.attributes.empty(), op.name, " (", nameOf(op.kind), ") takes an axis from its first attribute");
  return op.attributes[0];
}
// The axis in front of the spatial axes, whose number is the first attribute.
inline int64_t axisInFront(const Operator& op, int64_t rank) { return rank - 1 - firstAttribute(op); }
inline int64_t axisOfAttribute(const Operator& op, int64_t rank) { return axisOf(firstAttribute(op), rank); }
inline int64_t secondAxis(const Operator& /*op*/, int64_t /*rank*/) { return kAffineAxis; }
inline bool givesAnyCodes(const Operator& /*op*/) { return true; }

struct Declaration {
  const char* name = nullptr;
  Count inputs{1, 1}, attributes{0, 0}, tensors{0, 0};
  Types types = Types::Codes;
  int64_t most_axes = kMostPlanAxes; // of operands and result
  LayerKind layer = LayerKind::None;
  bool dynamic = false;               // a layer whose input is quantized at run time
  const char* in_floats = nullptr;    // the kind of the form that gives float32 from codes
  const char* dynamic_form = nullptr; // the kind of the form whose input is quantized at run time
  size_t any_dtype = SIZE_MAX;        // the input, by its number, that may come into the plan in any dtype
  bool moves = false;                 // only moves the elements of its operand
  bool keeps_codes = moves;           // the result has the grid of the operand
  bool permutes = false;              // permutes axes, see permutationOf
  bool views = false;                 // the result is a view: other sizes, strides and offset
  bool takes_shape = false;           // all attributes are sizes of the result
  bool decodes = false;               // its float32 kernel works over rows, and decodes codes
  std::optional<ReduceFloats::Which> reduces = std::nullopt; // reduces axes

  std::vector<From> from = {};
  // Throw Refusal for wrong attributes and tensors. `check_values` sees the whole program.
  void (*check)(const Operator&) = checkNothing;
  void (*check_values)(const Operator&, const Program&) = checkNoValue;
  // The sizes of the result. An error for sizes of operands that the operator does not take.
  Sizes (*infer)(const Operands&) = sizesOfFirst;
  // The least number of axes of the result, before sizes are known. `first`: the axes of the first operand, 0 if
  // unknown; `most`: the largest number among all operands.
  int64_t (*least_axes)(const Operator&, int64_t first, int64_t most) = axesOfFirst;
  // Whether the model may compute this attribute from sizes.
  bool (*computes)(const Operator&, int64_t attribute) = computesNone;
  // Whether the result can be codes, for types that have both forms.
  bool (*gives_codes)(const Operator&) = givesAnyCodes;
  // The axis along which the result joins its operands; null for operators that join nothing.
  int64_t (*joins)(const Operator&, int64_t rank) = nullptr;
  // The axis that must be innermost in memory; null if any axis may be.
  int64_t (*channels)(const Operator&, int64_t rank) = nullptr;
  // If any axis may be innermost: the axis of the operand for which the kernel is fastest, or -1; null if all are
  // equal.
  int64_t (*prefers)(const Operator&, int64_t rank) = nullptr;
  // Makes the steps of the operator with this number.
  void (*lower)(Lowering&, size_t index) = nullptr;
  // The step that the functions of lowering/general.h make.
  Does step = Does::Compute;
  // An element of the result depends only on the elements at its place in the operands, which may broadcast: a step
  // may overwrite its operands.
  bool elementwise = false;
  // Makes the kernel of a step that computes, for the sizes and grids of this step.
  Part (*kernel)(const StepContext&) = nullptr;
  // The order of the result's axes in memory (orders.h); null for a contiguous result.
  Sizes (*order)(const Operator&, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes) =
      nullptr;
};

inline const Declaration& declarationOf(Kind kind) { return kind.declaration(); }
// Where a kind of nodes comes from: its row, and the declaration that has the row; null for a row of RegisterNodes.
struct Source {
  From from;
  const Declaration* declaration;
};
// The source of a node's kind, null for a kind that no plan has; all sources, by "aten::conv2d" for "conv2d"; and the
// number of registrations, which grows as libraries are loaded.
const Source* sourceOf(const torch::jit::Node* node);
std::map<std::string, Source> sources();
size_t countRegistrations();
// Whether an operator's file declares the kind. A kind without a declaration has only a name.
bool isKind(Kind kind);

// Checks and registers a declaration. Errors are kept, see registry.h. A package's names begin with its own:
// "mine::gate".
class RegisterOperator {
 public:
  JIT_PASSES_API explicit RegisterOperator(const Declaration& declaration);
};

// Registers nodes without an operator of their own: clips, nodes that return an operand, and nodes that become operators
// of other declarations. These nodes are in plans in float32, if `in_floats`.
class RegisterNodes {
 public:
  JIT_PASSES_API explicit RegisterNodes(const std::vector<From>& from);
};

} // namespace jit_passes::x86
