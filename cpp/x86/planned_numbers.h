// Numbers that a graph computes of sizes, as numbers of a program.
#pragma once

#include "numbers.h"
#include "reader.h"

namespace jit_passes::x86 {

class PlannedNumbers {
 public:
  // `asked` is called for each tensor that a size is asked of, in front of who needs it.
  using Asked = std::function<void(const Value* tensor)>;
  PlannedNumbers(const Reader& reader, Program& program, Asked asked)
      : reader_(reader), program_(program), asked_(std::move(asked)) {}

  // Sets the attributes that the model computes. Refuses what does not follow from sizes.
  void set(Operator& op, const Computed& computed);

  // Says which values of the program the sizes are of, now that all are known. Throws `RefusedOperator` where one is not
  // there when it is needed.
  void settle(const std::function<std::optional<int64_t>(const Value* tensor)>& valueOf);

 private:
  int64_t number(Value* value);
  Number made(Value* value);

  const Reader& reader_;
  Program& program_;
  Asked asked_;
  std::unordered_map<const Value*, int64_t> known_;
  std::vector<std::pair<size_t, const Value*>> sizes_; // numbers that are sizes, and of what
};

} // namespace jit_passes::x86
