// torch.classes.jit_passes.Plan: a region of int8 operators, float tensors in, float tensors out.
#pragma once

#include "prepared.h"

namespace jit_passes::x86 {

// Several threads may call one plan. A plan stays prepared for the last used sizes of inputs.
class Plan : public torch::CustomClassHolder {
 public:
  explicit Plan(Program program); // must have been checked

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);
  // The time of each step of one call: the name of the operator, the kernel, the sizes of the result, the
  // multiply-adds, and nanoseconds, with the wait for other threads.
  using Profile = std::vector<std::tuple<std::string, std::string, std::vector<int64_t>, int64_t, int64_t>>;
  Profile profile(const std::vector<at::Tensor>& inputs);
  State state();
  // Operators, grids and weights as a table for people.
  std::string toString() const;

 private:
  std::shared_ptr<const Prepared> prepared(const Inputs& inputs);
  std::vector<at::Tensor> run(
      const std::vector<at::Tensor>& inputs, std::shared_ptr<const Prepared>& ready,
      std::vector<int64_t>* nanoseconds);
  at::Tensor takeArena(int64_t bytes);
  void giveBack(at::Tensor arena);

  Program program_;
  // For each input: whether an operator reads its elements; and whether one reads them as float32 rather than only
  // quantizes them.
  std::vector<bool> taken_, read_;
  std::vector<bool> beside_floats_; // whether all readers of its elements also read float32
  Weights weights_;
  std::mutex mutex_;
  std::list<std::pair<Inputs, std::shared_ptr<const Prepared>>> prepared_; // last used first
  std::vector<at::Tensor> arenas_;                                         // arenas that no call uses
};

} // namespace jit_passes::x86
