// The rows of a plan's profile, one for each phase.
#include "phases.h"

namespace jit_passes::x86 {
namespace {

// The kernel of a convolution with its window, such as "transposed depthwise 3x3".
std::string convolutionName(const Operator& op) {
  const auto& weight = op.tensors[kWeight];
  const int64_t groups = op.attributes[ConvolutionAttributes::Groups], spatial = op.attributes[0];
  std::ostringstream name;
  name << (isDynamic(op.kind) ? "dynamic " : "") << (isTransposed(op.kind) ? "transposed " : "");
  name
      << (groups == 1                                       ? "convolution "
          : groups == weight.size(0) && weight.size(1) == 1 ? "depthwise "
                                                            : "grouped ");
  for (int64_t axis = 5 - spatial; axis < 5; ++axis) {
    name << (axis > 5 - spatial ? "x" : "") << weight.size(axis);
  }
  return name.str();
}

// The multiply-adds: all weights for each pixel of the result, or, in a transposed convolution, of the operand.
int64_t productsOf(const Operator& op, const Memory& from, const Memory& to) {
  const Memory& pixels = isTransposed(op.kind) ? from : to;
  return countOf(pixels.sizes) / std::max<int64_t>(pixels.channels(), 1) * op.tensors[kWeight].numel();
}

} // namespace

Phase describe(const Program& program, const Lowered& lowered, const Step& step) {
  Phase phase;
  if (step.does == Does::Exit) {
    phase.kernel = "dequantize";
    phase.sizes = lowered.memory[step.inputs[0]].sizes;
    return phase;
  }
  const Operator& op = program.operators[step.index];
  phase.name = op.name;
  phase.sizes = lowered.memory[step.output].sizes;
  phase.tables = step.own_tables;
  if (step.does == Does::Chain) {
    for (const Step& part : step.chain) {
      const Phase described = describe(program, lowered, part);
      phase.kernel += (phase.kernel.empty() ? "" : ", ") + described.kernel;
      phase.products += described.products;
      phase.tables.insert(phase.tables.end(), described.tables.begin(), described.tables.end());
    }
    return phase;
  }
  phase.kernel = step.does == Does::Copy            ? "copy"
                 : step.does == Does::Pack          ? "pack"
                 : step.does == Does::Measure       ? "range of rows"
                 : step.does == Does::QuantizeRows  ? "quantize rows"
                 : step.does == Does::QuantizeImage ? "quantize as it comes"
                 : isConvolution(op.kind)           ? convolutionName(op)
                                                    : nameOf(op.kind);
  phase.kernel += hasSum(op) ? " + add" : "";
  const bool grouped = step.does == Does::Compute && isLinear(op.kind);
  phase.kernel += (step.does == Does::ToFloats || grouped) && addendOf(step, op) ? " + add" : "";
  phase.kernel +=
      step.does == Does::ToFloats && !lowered.memory[step.output].grid->is_float ? " + quantize" : "";
  if (step.does == Does::Convolve || step.does == Does::ConvolveTransposed || step.does == Does::ToFloats) {
    phase.products = productsOf(op, lowered.memory[step.inputs[0]], lowered.memory[step.output]);
  } else if (grouped) {
    phase.products = countOf(phase.sizes) * op.attributes[GroupedAttributes::Inputs];
  } else if (step.does == Does::Recur) {
    phase.products = countOf(phase.sizes) / phase.sizes.back() * op.tensors[kWeight].numel();
  } else if (step.does == Does::Product) {
    const Sizes& sizes = lowered.memory[step.inputs[0]].sizes;
    phase.products = countOf(phase.sizes) * through(step.views[0], {sizes, sizes, 0}).sizes.back();
  }
  return phase;
}

} // namespace jit_passes::x86
