// jit_passes::round_with_feedback: codes of weights, chosen input by input. A weight makes up for the errors e of the
// inputs before.
//
//   q_j = clamp(round(w_j / s_j + z_j + sum over i < j of  e_i F_ij / s_j), quant_min, quant_max)
//   e_j = w_j - (q_j - z_j) s_j
//
// w: [groups, outputs, inputs]. F: [groups, inputs, inputs], which is read above the diagonal. The scales s and the
// zero points z have shapes that broadcast to that of w. All are float64, and codes too. A matrix product adds the
// errors of the blocks of inputs before, and a loop over a few outputs at a time the errors within a block.
//
// Source: Frantar et al., GPTQ, 2023 (arXiv:2210.17323), algorithm 1.
#include <ATen/Parallel.h>

#include "graph/registry.h"
#include "grid.h"
#include "vectorize.h"

namespace jit_passes {
namespace {

constexpr int64_t kOutputs = 16, kInputs = 128; // of a tile

// A view of [groups, outputs, inputs] with its steps.
struct Numbers {
  double* first;
  int64_t group, output, input;

  static Numbers of(const at::Tensor& tensor) {
    return {static_cast<double*>(tensor.data_ptr()), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
  }

  double& at(int64_t i, int64_t j) const { return first[i * output + j * input]; }
  Numbers from(int64_t g, int64_t i) const { return {first + g * group + i * output, group, output, input}; }
};

struct Tile {
  Numbers weight, wanted, scale, zero_point, codes, errors;
  const double* feedback; // of the first two inputs
  int64_t step;           // between rows of feedback
  int64_t outputs, inputs;
  double low, high;
};

JIT_PASSES_VECTORIZED void roundTile(const Tile& tile) {
  double wanted[kInputs][kOutputs] = {};
  for (int64_t i = 0; i < tile.outputs; ++i) {
    for (int64_t j = 0; j < tile.inputs; ++j) {
      wanted[j][i] = tile.wanted.at(i, j);
    }
  }
  double weight[kOutputs] = {}, scale[kOutputs], zero_point[kOutputs] = {}, codes[kOutputs], errors[kOutputs];
  std::fill_n(scale, kOutputs, 1.0);
  for (int64_t j = 0; j < tile.inputs; ++j) {
    for (int64_t i = 0; i < tile.outputs; ++i) {
      weight[i] = tile.weight.at(i, j);
      scale[i] = tile.scale.at(i, j);
      zero_point[i] = tile.zero_point.at(i, j);
    }
    for (int64_t i = 0; i < kOutputs; ++i) {
      const double code = __builtin_rint(wanted[j][i] / scale[i] + zero_point[i]);
      const double above = code < tile.low ? tile.low : code;
      codes[i] = above > tile.high ? tile.high : above;
      errors[i] = weight[i] - (codes[i] - zero_point[i]) * scale[i];
    }
    const double* feedback = tile.feedback + j * tile.step;
    for (int64_t later = j + 1; later < tile.inputs; ++later) {
      for (int64_t i = 0; i < kOutputs; ++i) {
        wanted[later][i] += errors[i] * feedback[later];
      }
    }
    for (int64_t i = 0; i < tile.outputs; ++i) {
      tile.codes.at(i, j) = codes[i];
      tile.errors.at(i, j) = errors[i];
    }
  }
}

at::Tensor roundWithFeedback(
    const at::Tensor& weight, const at::Tensor& feedback, const at::Tensor& scale,
    const at::Tensor& zero_point, int64_t quant_min, int64_t quant_max) {
  for (const at::Tensor& each : {weight, feedback, scale, zero_point}) {
    TORCH_CHECK(each.scalar_type() == at::kDouble, "all operands are float64, got ", each.scalar_type());
  }
  TORCH_CHECK(weight.dim() == 3, "the weight is [groups, outputs, inputs], got the shape ", weight.sizes());
  const int64_t groups = weight.size(0), outputs = weight.size(1), inputs = weight.size(2);
  TORCH_CHECK(
      feedback.sizes() == at::IntArrayRef({groups, inputs, inputs}), "the feedback of a weight ",
      weight.sizes(), " is ", at::IntArrayRef({groups, inputs, inputs}), ", got ", feedback.sizes());
  checkGrid(weight, quant_min, quant_max);
  const auto scales = scale.expand_as(weight), zeros = zero_point.expand_as(weight);
  const auto dense = feedback.contiguous();
  auto codes = at::empty_like(weight, at::MemoryFormat::Contiguous), errors = at::empty_like(codes);
  const int64_t tiles = (outputs + kOutputs - 1) / kOutputs;
  for (int64_t first = 0; first < inputs; first += kInputs) {
    const int64_t count = std::min(kInputs, inputs - first);
    const auto block = [&](const at::Tensor& whole) { return whole.narrow(2, first, count); };
    auto wanted = block(weight);
    if (first > 0) {
      wanted = wanted + at::matmul(errors.narrow(2, 0, first), block(dense.narrow(1, 0, first)));
    }
    const Numbers w = Numbers::of(block(weight)), aim = Numbers::of(wanted), s = Numbers::of(block(scales)),
                  z = Numbers::of(block(zeros)), q = Numbers::of(block(codes)),
                  e = Numbers::of(block(errors));
    const double* corner = dense.const_data_ptr<double>() + first * (inputs + 1);
    at::parallel_for(0, groups * tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t g = tile / tiles, i = tile % tiles * kOutputs;
        roundTile(
            {w.from(g, i), aim.from(g, i), s.from(g, i), z.from(g, i), q.from(g, i), e.from(g, i),
             corner + g * inputs * inputs, inputs, std::min(kOutputs, outputs - i), count,
             static_cast<double>(quant_min), static_cast<double>(quant_max)});
      }
    });
  }
  return codes;
}

// Other devices gain nothing from a loop over inputs.
at::Tensor roundOnCpu(
    const at::Tensor& weight, const at::Tensor& feedback, const at::Tensor& scale,
    const at::Tensor& zero_point, int64_t quant_min, int64_t quant_max) {
  const auto codes =
      roundWithFeedback(weight.cpu(), feedback.cpu(), scale.cpu(), zero_point.cpu(), quant_min, quant_max);
  return codes.to(weight.device());
}

at::Tensor roundMeta(
    const at::Tensor& weight, const at::Tensor& /*feedback*/, const at::Tensor& /*scale*/,
    const at::Tensor& /*zero_point*/, int64_t /*quant_min*/, int64_t /*quant_max*/) {
  return at::empty_like(weight, at::MemoryFormat::Contiguous);
}

const RegisterOp round_with_feedback_op{
    "round_with_feedback(Tensor weight, Tensor feedback, Tensor scale, Tensor zero_point, int quant_min, "
    "int quant_max) -> Tensor",
    "Codes of weights, which make up for the errors of the inputs before.", onCpu(roundWithFeedback),
    onMeta(roundMeta), onAnyDevice(roundOnCpu)};

} // namespace
} // namespace jit_passes
