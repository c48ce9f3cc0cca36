// torch.classes.jit_passes.Plan: a region of int8 operators, float tensors in, float tensors out.
#pragma once

#include "prepare.h"

namespace jit_passes::x86 {

// Any threads may call one plan. What it has prepared for sizes of inputs is kept for those used last.
class Plan : public torch::CustomClassHolder {
 public:
  explicit Plan(Program program); // checked

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);
  State state() const { return stateOf(program_); }
  // A table for people: operators, grids and weights.
  std::string toString() const;

 private:
  // Prepared for some sizes, and not running.
  struct Prepared {
    std::vector<Sizes> sizes;
    std::vector<std::unique_ptr<Execution>> idle;
  };

  std::unique_ptr<Execution> take(const std::vector<Sizes>& sizes);
  void giveBack(const std::vector<Sizes>& sizes, std::unique_ptr<Execution> execution);

  const Program program_;
  Weights weights_;
  std::mutex mutex_;
  std::list<Prepared> prepared_; // the one used last in front
};

} // namespace jit_passes::x86
