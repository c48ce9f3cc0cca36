// torch.classes.jit_passes.Plan: a region of int8 operators, float tensors in, float tensors out.
#pragma once

#include "prepared.h"

namespace jit_passes::x86 {

// Any threads may call one plan. It keeps what it has prepared for the sizes of inputs used last.
class Plan : public torch::CustomClassHolder {
 public:
  explicit Plan(Program program); // checked

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);
  // The time of each step of one such call: the name of the operator, the kernel, the sizes of the result, the
  // multiply-adds, and nanoseconds, waiting for other threads included.
  using Profile = std::vector<std::tuple<std::string, std::string, std::vector<int64_t>, int64_t, int64_t>>;
  Profile profile(const std::vector<at::Tensor>& inputs);
  State state();
  // A table for people: operators, grids and weights.
  std::string toString() const;

 private:
  std::shared_ptr<const Prepared> prepared(const Inputs& inputs);
  std::vector<at::Tensor> run(
      const std::vector<at::Tensor>& inputs, std::shared_ptr<const Prepared>& ready,
      std::vector<int64_t>* nanoseconds);
  at::Tensor takeArena(int64_t bytes);
  void giveBack(at::Tensor arena);

  Program program_;
  // Of each input: whether an operator reads it, and not only its sizes; and as it is, not only to quantize it.
  std::vector<bool> taken_, read_;
  std::vector<bool> beside_floats_; // whether all that read its elements compute with float32 beside them
  Weights weights_;
  std::mutex mutex_;
  std::list<std::pair<Inputs, std::shared_ptr<const Prepared>>> prepared_; // the one used last in front
  std::vector<at::Tensor> arenas_;                                         // that no call uses
};

} // namespace jit_passes::x86
