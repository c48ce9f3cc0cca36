// Numbers that a graph computes of sizes, as numbers of a program.
#pragma once

#include "reader.h"
#include "x86/program/numbers.h"

namespace jit_passes::x86 {

class GraphNumbers {
 public:
  // `asked` is called for each tensor that a size is asked of, in front of who needs it.
  using Asked = std::function<void(const Value* tensor)>;
  GraphNumbers(const RegionReader& reader, Program& program, Asked asked)
      : reader_(reader), program_(program), asked_(std::move(asked)) {}

  // Sets the attributes that the model computes. Refuses what does not follow from sizes.
  void set(Operator& op, const Computed& computed);

  // A number that is a power of one that follows from sizes, such as its inverse root; nothing for others.
  std::optional<Operator> power(const Value* value);

  // Says which values of the program the sizes are of, now that all are known. Throws where one is not there when it is
  // needed.
  void settle(const std::function<std::optional<int64_t>(const Value* tensor)>& valueOf);

 private:
  // factor base^exponent; without a base, the factor alone.
  struct Power {
    double factor, exponent = 1;
    const Value* base = nullptr;

    // Nothing where the base, below 0, would give another number: the root of its square is not the base.
    std::optional<Power> raised(double by) const;
  };
  std::optional<Power> powerOf(const Value* value, int depth);
  int64_t number(const Value* value);
  Number made(const Value* value);

  const RegionReader& reader_;
  Program& program_;
  Asked asked_;
  std::unordered_map<const Value*, int64_t> known_;
  std::vector<std::pair<size_t, const Value*>> sizes_; // numbers that are sizes, and of what
};

} // namespace jit_passes::x86
