// Numbers that a graph computes from sizes, as numbers of a program.
#pragma once

#include "reader.h"
#include "x86/program/numbers.h"

namespace jit_passes::x86 {

class GraphNumbers {
 public:
  // `asked` is called for each tensor whose size is needed, before it is used.
  using Asked = std::function<void(const Value* tensor)>;
  GraphNumbers(const RegionReader& reader, Program& program, Asked asked)
      : reader_(reader), program_(program), asked_(std::move(asked)) {}

  // Sets the attributes that the model computes. Refuses numbers that do not follow from sizes.
  void set(Operator& op, const Computed& computed);

  // The operator for a power of a number that follows from sizes, such as an inverse root; nothing for other values.
  std::optional<Operator> power(const Value* value);

  // Connects sizes with the values of the program, once all are known. A value that is computed too late is an
  // error.
  void settle(const std::function<std::optional<int64_t>(const Value* tensor)>& valueOf);

 private:
  // factor * base^exponent, or the factor alone without a base.
  struct Power {
    double factor, exponent = 1;
    const Value* base = nullptr;

    // Nothing if a negative base would give another number: the root of its square is not the base.
    std::optional<Power> raised(double by) const;
  };
  std::optional<Power> powerOf(const Value* value, int depth);
  int64_t number(const Value* value);
  Number made(const Value* value);

  const RegionReader& reader_;
  Program& program_;
  Asked asked_;
  std::unordered_map<const Value*, int64_t> known_;
  std::vector<std::pair<size_t, const Value*>> sizes_; // numbers that are sizes, with their tensors
};

} // namespace jit_passes::x86
