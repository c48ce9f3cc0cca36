#include "phases.h"
#include "step_context.h"
#include "x86/lowering/arena.h"
#include "x86/program/declaration.h"
#include "x86/program/orders.h"

namespace jit_passes::x86 {
namespace {

// Makes the phases: one for each step, or one for each time step. A phase also fills the border of memory that it is
// the first to write.
class Preparation {
 public:
  Preparation(const Program& program, Lowered lowered, int64_t& scratch)
      : program_(program), lowered_(std::move(lowered)), scratch_(scratch) {}

  std::vector<Phase> run() {
    std::vector<Phase> phases;
    for (size_t i = 0; i < lowered_.steps.size(); ++i) {
      const Step& step = lowered_.steps[i];
      if (step.does == Does::Recur) {
        std::ranges::move(recurrent(program_, lowered_, step, scratch_), std::back_inserter(phases));
        continue;
      }
      Phase phase = describe(program_, lowered_, step);
      if (step.does == Does::ConvolveTransposed) {
        phase.parts = convolveTransposed(program_, lowered_, step);
      } else if (step.does == Does::ToFloats) {
        phase.parts = toFloats(operatorOf(step), step, lowered_.memory);
      } else {
        phase.parts.push_back(partOf(step));
      }
      if (step.does != Does::Exit) {
        fillBorder(ownerOf(lowered_, step.output), i, step, phase.parts);
      }
      phases.push_back(std::move(phase));
    }
    return phases;
  }

 private:
  Part partOf(const Step& step) {
    switch (step.does) {
      case Does::Compute: {
        const Operator& op = operatorOf(step);
        return declarationOf(op.kind).kernel({op, step, lowered_.memory, form_});
      }
      case Does::Enter: return enter(step);
      case Does::Take: return taken(step.source, out(step));
      case Does::Quantize: return quantized(in(step), out(step));
      case Does::Convolve: return convolve(program_, lowered_, step);
      case Does::Chain: return chained(lowered_, step, scratch_);
      case Does::Copy: return copied(step, in(step), out(step));
      case Does::Pack: return packedOperand(step, lowered_.memory, form_);
      case Does::Product: return product(step, lowered_.memory, form_);
      case Does::Measure: return measured(in(step), out(step));
      case Does::QuantizeRows: return quantizedRows(operatorOf(step), step, lowered_.memory);
      case Does::QuantizeImage: return quantized(in(step), out(step), gridOf(step));
      case Does::Exit: return exit(step);
      case Does::ConvolveTransposed:
      case Does::ToFloats:
      case Does::Recur:
      case Does::Rename: break;
    }
    TORCH_INTERNAL_ASSERT(false, "no step");
  }

  const Operator& operatorOf(const Step& step) const { return program_.operators[step.index]; }
  const Memory& in(const Step& step, size_t i = 0) const { return lowered_.memory[step.inputs[i]]; }
  const Memory& out(const Step& step) const { return lowered_.memory[step.output]; }

  // The grid that follows from extents, which are the step's second input.
  DynamicGrid gridOf(const Step& step) const {
    const int64_t form = dynamicAttribute(operatorOf(step), DynamicAttributes::Form);
    return {in(step, 1).offset, static_cast<RangeForm>(form)};
  }

  void fillBorder(const Memory& memory, size_t index, const Step& step, std::vector<Part>& parts) const {
    if (memory.first != index || memory.border == Border{}) {
      return;
    }
    const Placed whole = image(memory);
    const auto grid = memory.grid ? std::nullopt : std::optional(gridOf(step));
    const int64_t zero_point = memory.grid ? memory.grid->zero_point : 0;
    const FillBorder fill{memory.border, static_cast<uint8_t>(zero_point)};
    parts.push_back({fill.items(whole.image), [=](const Call& call, int64_t begin, int64_t end) {
                       FillBorder own = fill;
                       own.value = grid ? static_cast<uint8_t>(grid->in(call).zero_point) : fill.value;
                       own.run(whole.in(call), begin, end);
                     }});
  }

  Part enter(const Step& step) {
    const Memory& to = out(step);
    const Dims dims = pixelDims(to.sizes, to.axis);
    const Placed codes = image(to, dims);
    const Quantize kernel = quantizeTo(*to.grid);
    return {
        kernel.items(codes.image),
        [=, source = step.source, axis = to.axis](const Call& call, int64_t begin, int64_t end) {
          const auto& [x, strides] = call.sources[source];
          const Strides own = floatStrides(dims, strides, axis < 0 ? 1 : strides[axis]);
          kernel.run(x, own, codes.in(call), begin, end);
        }};
  }

  Part exit(const Step& step) {
    const Memory& from = in(step);
    const Sizes strides = stridesOf(from.sizes, lowered_.orders[step.output]);
    if (from.grid->is_float) {
      return given(from, strides, step.output);
    }
    const int64_t channel = from.axis < 0 ? 1 : strides[from.axis];
    const Dims dims = alongNeighbours(pixelDims(from.sizes, from.axis), strides, channel, 1);
    const Placed codes = image(from, dims);
    const Strides to = floatStrides(dims, strides, channel);
    const Dequantize kernel{
        static_cast<float>(from.grid->scale), static_cast<int32_t>(from.grid->zero_point)};
    return {
        kernel.items(codes.image), [=, number = step.output](const Call& call, int64_t begin, int64_t end) {
          kernel.run(codes.in(call), reinterpret_cast<float*>(call.result(number)), to, begin, end);
        }};
  }

  const Program& program_;
  Lowered lowered_;
  int64_t& scratch_;
  const Form form_ = bestForm(); // for kernels that read data packed by others
};

} // namespace

std::vector<Phase> phasesOf(const Program& program, Lowered lowered, int64_t& scratch) {
  return Preparation(program, std::move(lowered), scratch).run();
}

} // namespace jit_passes::x86
