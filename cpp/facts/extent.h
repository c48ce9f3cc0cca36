// A size of a tensor, as far as a graph tells it before it runs.
#pragma once

#include <variant>

#include "graph/graph.h"

namespace jit_passes {

// One of these, and never one in the place of another: a number; the size of an axis; an integer that the model
// computes or takes; or open, which a list says by -1.
class Extent {
 public:
  // Counted from the end where it is below 0: of a tensor whose rank is not known.
  struct Axis {
    const Value* tensor;
    int64_t axis;

    bool operator==(const Axis&) const = default;
  };

  static Extent ofNumber(int64_t number) { return Extent(number); }
  static Extent ofAxis(const Value* tensor, int64_t axis) { return Extent(Axis{tensor, axis}); }
  // The value has the type int, or is a tensor of one integer, as traces have it.
  static Extent ofInteger(const Value* value) { return Extent(value); }
  // An element of a list: the operator that takes the list finds this size by itself.
  static Extent open() { return Extent(Open()); }

  bool operator==(const Extent&) const = default;

  std::optional<int64_t> number() const {
    const auto* found = std::get_if<int64_t>(&is_);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const Axis* axis() const { return std::get_if<Axis>(&is_); }
  const Value* integer() const {
    const auto* found = std::get_if<const Value*>(&is_);
    return found != nullptr ? *found : nullptr;
  }
  bool isNumber() const { return number().has_value(); }
  bool isOpen() const { return std::holds_alternative<Open>(is_); }

 private:
  struct Open {
    bool operator==(const Open&) const = default;
  };
  using Kinds = std::variant<int64_t, Axis, const Value*, Open>;

  explicit Extent(Kinds is) : is_(is) {}

  Kinds is_;
};

} // namespace jit_passes
