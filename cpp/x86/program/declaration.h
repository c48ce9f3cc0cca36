// One declaration for each operator of a plan. Defining a RegisterOperator registers it.
#pragma once

#include "shapes.h"
#include "x86/kernels/floats.h"

namespace jit_passes::x86 {

// Codes or float32.
enum class Types {
  Codes, // only
  Same,  // either, of all operands and the result
  Mixed, // either, of each by itself; float32 where one of the operands is
  ToCodes,
  ToFloats,
  Floats, // without operands
  Stored, // without operands: of its own tensor
  Real    // float32, of all operands and the result
};

// The work of a step.
enum class Does {
  Compute, // by the kernel that the operator's declaration has
  Enter,   // quantizes an input of the plan
  Take,    // float32 of it
  Quantize,
  Convolve,
  ConvolveTransposed,
  Chain,
  Pack, // of the right operand of a product
  Product,
  Measure,      // the extents of float32, for a grid
  QuantizeRows, // on grids that follow from it; inputs: float32 and, if there is one grid for all, its extents
  QuantizeImage, // the same on one grid; inputs: float32 and extents
  ToFloats,      // sums of a layer whose result is float32; see addendOf
  Recur,         // through all steps of a recurrent layer
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
struct Planned;

// An operator of PyTorch, "conv2d" for aten::conv2d, and the function that makes an operator of a plan of it. The
// function throws Refusal (reader.h) for a node that a plan cannot compute.
struct From {
  const char* name;
  Planned (*plan)(const RegionReader&, torch::jit::Node*);
  size_t any_dtype = SIZE_MAX; // as in Declaration, by its position in the node
};

struct Count {
  size_t least, most;
};

// An operator and the sizes of its operands. The operand of Kind::Input is the input of the plan.
struct Operands {
  const Operator& op;
  std::vector<const Sizes*> sizes;

  const Sizes& operator[](size_t i) const { return *sizes[i]; }
  const Sizes& first() const { return *sizes[0]; }
};

// Defaults.
inline void checkNothing(const Operator& /*op*/) {}
inline void checkNoValue(const Operator& /*op*/, const Program& /*program*/) {}
inline Sizes sizesOfFirst(const Operands& operands) { return operands.first(); }
inline int64_t axesOfFirst(const Operator& /*op*/, int64_t first, int64_t /*most*/) { return first; }
inline bool computesNone(const Operator& /*op*/, int64_t /*attribute*/) { return false; }
inline bool computesAll(const Operator& /*op*/, int64_t /*attribute*/) { return true; }
inline int64_t lastAxisOf(const Operator& /*op*/, int64_t rank) { return rank - 1; }
// In front of as many spatial axes as the first attribute says.
inline int64_t axisInFront(const Operator& op, int64_t rank) { return rank - 1 - op.attributes[0]; }
inline int64_t axisOfAttribute(const Operator& op, int64_t rank) { return axisOf(op.attributes[0], rank); }
inline int64_t secondAxis(const Operator& /*op*/, int64_t /*rank*/) { return kAffineAxis; }
inline bool givesAnyCodes(const Operator& /*op*/) { return true; }

struct Declaration {
  const char* name = nullptr;
  Count inputs{1, 1}, attributes{0, 0}, tensors{0, 0};
  Types types = Types::Codes;
  int64_t most_axes = kMostAxes; // of operands and result
  LayerKind layer = LayerKind::None;
  bool dynamic = false;               // a layer whose input is quantized as the plan runs
  const char* in_floats = nullptr;    // the kind of the form that gives float32 of codes
  const char* dynamic_form = nullptr; // the kind of the form whose input is quantized as the plan runs
  size_t any_dtype = SIZE_MAX; // the operand that may have any dtype where it comes in: truths, indices
  bool moves = false;          // only moves the elements of its operand
  bool keeps_codes = moves;    // the result has the grid of the operand
  bool permutes = false;       // its axes, see permutationOf
  bool views = false;          // the result is a view: other sizes, strides and offset
  bool takes_shape = false;    // all attributes are sizes of the result
  bool decodes = false; // its kernel of float32 goes over rows, and makes float32 of codes as it reads them
  std::optional<ReduceFloats::Which> reduces = std::nullopt; // axes

  std::vector<From> from = {};
  // Throw for attributes and tensors that the operator cannot have. `check_values` sees the whole program.
  void (*check)(const Operator&) = checkNothing;
  void (*check_values)(const Operator&, const Program&) = checkNoValue;
  // The sizes of the result. Throws for operands of other sizes than the operator takes.
  Sizes (*infer)(const Operands&) = sizesOfFirst;
  // The least number of axes of the result, before sizes are known. `first`: the axes of the first operand, 0 if
  // unknown; `most`: the largest number among all operands.
  int64_t (*least_axes)(const Operator&, int64_t first, int64_t most) = axesOfFirst;
  // Whether the model may compute this attribute from sizes.
  bool (*computes)(const Operator&, int64_t attribute) = computesNone;
  // Whether the result can be codes, for types that have both forms.
  bool (*gives_codes)(const Operator&) = givesAnyCodes;
  // The axis along which operands lie one after the other in the result; null for operators that join nothing.
  int64_t (*joins)(const Operator&, int64_t rank) = nullptr;
  // The axis that must be innermost in memory; null if any axis may be.
  int64_t (*channels)(const Operator&, int64_t rank) = nullptr;
  // An axis of the operand that is best innermost where any may be, or -1; null if all are as good.
  int64_t (*prefers)(const Operator&, int64_t rank) = nullptr;
  // Makes the steps of the operator of that number.
  void (*lower)(Lowering&, size_t index) = nullptr;
  // The step that the functions of lowering/general.h make. The kernel of a step that computes: made ready for the sizes
  // and grids of one step.
  Does step = Does::Compute;
  // An element of the result follows from the elements in its place in the operands, which may broadcast: a step may
  // write over its operands.
  bool elementwise = false;
  Part (*kernel)(const StepContext&) = nullptr;
  // The order of the result's axes in memory (orders.h); null for a contiguous result.
  Sizes (*order)(const Operator&, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes) =
      nullptr;
};

inline const Declaration& declarationOf(Kind kind) { return kind.declaration(); }
std::vector<const Declaration*> declarations(); // of all kinds
// A kind that no file declares has a name alone.
bool isKind(Kind kind);

class RegisterOperator {
 public:
  explicit RegisterOperator(const Declaration& declaration);
};

inline const Kind Kind::Affine("affine");
inline const Kind Kind::Input("input");
inline const Kind Kind::Linear("linear");
inline const Kind Kind::Constant("constant");
inline const Kind Kind::Table("table");
inline const Kind Kind::Power("power");
inline const Kind Kind::Pad("pad");
inline const Kind Kind::Convolution("convolution");
inline const Kind Kind::Transpose("transpose");
inline const Kind Kind::Quantize("quantize");
inline const Kind Kind::Concat("concat");
inline const Kind Kind::Add("add");
inline const Kind Kind::Unflatten("unflatten");
inline const Kind Kind::Shuffle("shuffle");
inline const Kind Kind::Recurrent("recurrent");
inline const Kind Kind::Permute("permute");
inline const Kind Kind::Fill("fill");
inline const Kind Kind::GroupedLinear("linear_grouped");
inline const Kind Kind::TransposedConvolution("transposed_convolution");
inline const Kind Kind::Slice("slice");
inline const Kind Kind::Multiply("multiply");
inline const Kind Kind::MatrixProduct("matrix_product");
inline const Kind Kind::Function("function");
inline const Kind Kind::Flatten("flatten");
inline const Kind Kind::Expand("expand");

} // namespace jit_passes::x86
