// Steps that are computed together.
#include "lower.h"

namespace jit_passes::x86 {
namespace {

class SumFusion {
 public:
  explicit SumFusion(Lowered& lowered) : lowered_(lowered) {}

  void run() {
    std::vector<Step>& steps = lowered_.steps;
    readUses();
    for (size_t i = 0; i < steps.size();) {
      if (steps[i].does == Step::Does::Add && (fuse(i, 0) || fuse(i, 1))) {
        steps.erase(steps.begin() + i);
        readUses();
      } else {
        ++i;
      }
    }
  }

 private:
  // Finds who writes and reads each memory under its own name, and who writes any of its bytes last.
  void readUses() {
    const size_t count = lowered_.memory.size();
    writers_.assign(count, {}), readers_.assign(count, 0), last_.assign(count, 0);
    for (size_t i = 0; i < lowered_.steps.size(); ++i) {
      const Step& step = lowered_.steps[i];
      for (const size_t id : step.inputs) {
        ++readers_[id];
      }
      if (step.does != Step::Does::Exit) {
        writers_[step.output].push_back(i);
        last_[&ownerOf(lowered_, step.output) - lowered_.memory.data()] = i;
      }
    }
    for (const Memory& memory : lowered_.memory) {
      readers_[memory.parent] += memory.is != Memory::Is::Own;
    }
  }

  // Makes the sum part of the convolution that computes this operand of it, if that alone needs it, and the other
  // operand is there in time.
  bool fuse(size_t sum, size_t operand) {
    std::vector<Step>& steps = lowered_.steps;
    const size_t own = steps[sum].inputs[operand], other = steps[sum].inputs[1 - operand];
    const Memory &to = lowered_.memory[steps[sum].output], &from = lowered_.memory[own];
    const auto fits = [&](const Memory& m) { return m.sizes == to.sizes && m.axis == to.axis; };
    if (!fits(from) || !fits(lowered_.memory[other]) || from.is != Memory::Is::Own || readers_[own] != 1 ||
        writers_[own].size() != 1) {
      return false;
    }
    Step& step = steps[writers_[own][0]];
    const size_t ready = last_[&ownerOf(lowered_, other) - lowered_.memory.data()];
    if (step.does != Step::Does::Convolve || step.sum || ready >= writers_[own][0]) {
      return false;
    }
    step.sum = std::make_shared<Step>(steps[sum]);
    step.inputs.push_back(other);
    step.output = steps[sum].output;
    return true;
  }

  Lowered& lowered_;
  std::vector<std::vector<size_t>> writers_;
  std::vector<size_t> readers_, last_;
};

} // namespace

void fuseSums(Lowered& lowered) { SumFusion(lowered).run(); }

} // namespace jit_passes::x86
