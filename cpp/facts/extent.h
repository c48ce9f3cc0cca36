// The size of one axis of a tensor, as far as a graph tells it before it runs.
#pragma once

#include <variant>

#include "graph/graph.h"

namespace jit_passes {

// There are four kinds: a number; the size of an axis; an integer that the model computes or takes; or open, which
// is -1 in a list of sizes. Each size has one kind only, so that equal sizes compare equal.
class Extent {
 public:
  // A negative axis counts from the end, for a tensor of unknown rank.
  struct Axis {
    const Value* tensor;
    int64_t axis;

    bool operator==(const Axis&) const = default;
  };

  static Extent ofNumber(int64_t number) { return Extent(number); }
  static Extent ofAxis(const Value* tensor, int64_t axis) { return Extent(Axis{tensor, axis}); }
  // The value has the type int, or is a tensor of one integer, as in traces.
  static Extent ofInteger(const Value* value) { return Extent(value); }
  // The element -1 of a list: the operator that takes the list finds this size itself.
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
