// What a plan knows of an operator before it is lowered: one declaration for each kind, registered by being defined.
#pragma once

#include <span>

#include "x86/lower.h"
#include "x86/shapes.h"

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

class Lowering;
class Reader;
struct Planned;

// An operator of PyTorch that becomes this one, by its name, and how.
struct From {
  const char* name;
  Planned (*plan)(const Reader&, torch::jit::Node*);
};

struct Count {
  size_t least, most;
};

// An operator, and the sizes of its operands: of an input of the plan, the sizes that come.
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
  const char* name;
  Count inputs{1, 1}, attributes{0, 0}, tensors{0, 0};
  Types types = Types::Codes;
  int64_t most_axes = kMostAxes; // of operands and result
  bool moves = false;            // elements of one operand, without a change
  bool keeps_codes = moves;      // the result has the grid of the operand
  bool views = false;            // strides and an offset say all that it does
  bool takes_shape = false;      // its attributes are sizes, all of them

  // What of a graph becomes this operator.
  std::vector<From> from = {};
  // Throws where the operator cannot be what it says, whatever its counts; with what the program has besides.
  void (*check)(const Operator&) = checkNothing;
  void (*check_values)(const Operator&, const Program&) = checkNoValue;
  // The sizes of the result. Throws, with the name of the operator, where it cannot have such operands.
  Sizes (*infer)(const Operands&) = sizesOfFirst;
  // Axes of the result at least, where the first operand has so many, and that of the most so many; 0 if unknown.
  int64_t (*least_axes)(const Operator&, int64_t first, int64_t most) = axesOfFirst;
  // Whether the model may compute an attribute of sizes.
  bool (*computes)(const Operator&, int64_t attribute) = computesNone;
  bool (*gives_codes)(const Operator&) = givesAnyCodes;
  // The axis of the channels, of tensors with so many axes; null if the operator works along none.
  int64_t (*channels)(const Operator&, int64_t rank) = nullptr;
  // How steps are made of it, and the step, where that is one of several (lowering.h).
  void (Lowering::*lower)(size_t index) = nullptr;
  Does step = Does::Rename;
  // How the axes of the result lie in memory (orders.h), by the orders and sizes of all values; null if contiguous.
  Sizes (*order)(const Operator&, const std::vector<Sizes>& orders, const std::vector<Sizes>& sizes) =
      nullptr;
};

const Declaration& declarationOf(Kind kind);
std::span<const Declaration> declarations(); // of all kinds
// Whether it is a kind at all: a number from a file may be none.
bool isKind(Kind kind);

class RegisterOperator {
 public:
  RegisterOperator(Kind kind, const Declaration& declaration);
};

} // namespace jit_passes::x86
