// Packs weights in the order in which kernels read them, with the multipliers of their sums.
#include "weights.h"

#include "transposed.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace jit_passes::x86 {
namespace {

Window windowOf(const Operator& op) {
  using A = ConvolutionAttributes;
  Window window;
  if (!isConvolution(op.kind)) {
    window.groups = isAffine(op.kind) ? op.tensors[kWeight].size(0) : 1;
    return window;
  }
  const auto& a = op.attributes;
  const auto sizes = op.tensors[kWeight].sizes();
  window.groups = a[A::Groups];
  window.kernel_d = sizes[2], window.kernel_h = sizes[3], window.kernel_w = sizes[4];
  window.stride_d = a[A::Stride], window.stride_h = a[A::Stride + 1], window.stride_w = a[A::Stride + 2];
  window.dilation_d = a[A::Dilation], window.dilation_h = a[A::Dilation + 1];
  window.dilation_w = a[A::Dilation + 2];
  window.pad_front = a[A::PadBefore], window.pad_top = a[A::PadBefore + 1];
  window.pad_left = a[A::PadBefore + 2];
  return window;
}

// The weights of a convolution in the order of axes that kernels take.
at::Tensor channelsLast(const at::Tensor& weight) { return weight.permute({0, 2, 3, 4, 1}); }

using Kernels = std::vector<Convolution>;

std::shared_ptr<const Kernels> pack(const Program& program, const Operator& op, bool dense) {
  const at::NoGradGuard no_gradients;
  const auto& weight = op.tensors[kWeight];
  const Grid& grid = program.grids[op.inputs[0]];
  // For float32 results the zero point is subtracted after the products: see SumsToFloats.
  const int64_t zero_point = isAffine(op.kind) || program.grids[op.output].is_float ? 0 : grid.zero_point;
  auto kernels = std::make_shared<Kernels>();
  const auto add = [&](const Window& window, const at::Tensor& ordered) {
    kernels->emplace_back(
        window, weight.size(1) * window.groups, weight.size(0), ordered.const_data_ptr<int8_t>(),
        static_cast<int32_t>(zero_point), dense);
  };
  if (isTransposed(op.kind)) {
    for (const Residues& residues : residuesOf(op)) {
      const Window window = residues.window(op.attributes[ConvolutionAttributes::Groups]);
      auto taps = residues.taps(weight).flip({2, 3, 4});
      if (taps.numel() == 0) {
        taps = weight.new_zeros(
            {weight.size(0), weight.size(1), window.kernel_d, window.kernel_h, window.kernel_w});
      }
      add(window, channelsLast(taps).contiguous());
    }
  } else {
    add(windowOf(op), isConvolution(op.kind) ? channelsLast(weight).contiguous() : weight);
  }
  return kernels;
}

// The sum of the weights of each result; for a transposed convolution, for each of its kernels.
std::vector<int32_t> sumsOf(const Operator& op) {
  std::vector<int32_t> sums;
  const auto add = [&](const at::Tensor& weight) {
    const auto own = weight.flatten(1).sum(1, false, at::kInt);
    sums.insert(sums.end(), own.const_data_ptr<int32_t>(), own.const_data_ptr<int32_t>() + own.numel());
  };
  const at::Tensor& weight = op.tensors[kWeight];
  if (isTransposed(op.kind)) {
    for (const Residues& residues : residuesOf(op)) {
      add(residues.taps(weight));
    }
  } else {
    add(weight);
  }
  return sums;
}

// The multipliers and offsets of a layer. Scales are rounded to float32 first, as in the reference model. An affine
// operator reads values with different scales and zero points, which become part of its numbers for each channel.
std::shared_ptr<const Packed> numbersOf(
    const Program& program, const Operator& op, std::shared_ptr<const Kernels> kernels, const Sizes& widths) {
  const bool affine = isAffine(op.kind);
  const int64_t outputs = op.tensors[kWeight].size(0);
  const Grid* in = &program.grids[op.inputs[0]];
  const Grid& out = program.grids[op.output];
  auto packed = std::make_shared<Packed>(
      Packed{std::move(kernels), std::vector<float>(outputs), std::vector<float>(outputs), 0, {}});
  if (out.is_float) {
    packed->sums = sumsOf(op);
  }
  const double out_scale = static_cast<float>(out.scale);
  double own = 1, zero_of_residual = 0; // the factor of the result, and the residual's zero point
  if (hasSum(op)) {
    const double* factors = op.tensors[kFactors].const_data_ptr<double>();
    const Grid& residual = program.grids[op.inputs[1]];
    const double multiplier = factors[1] * static_cast<float>(residual.scale) / out_scale;
    own = factors[0], zero_of_residual = residual.zero_point * multiplier;
    packed->residual_multiplier = static_cast<float>(multiplier);
  }
  int64_t end = affine ? widths[0] : outputs; // the end of the channels with the grid `in`
  for (int64_t c = 0, input = 0; c < outputs; ++c) {
    for (; c == end; end += widths[input]) {
      in = &program.grids[op.inputs[++input]];
    }
    const double weight_scale = static_cast<float>(op.tensors[kWeightScales].const_data_ptr<double>()[c]);
    const double multiplier = own * static_cast<float>(in->scale) * weight_scale / out_scale;
    const double zero =
        affine ? in->zero_point * multiplier * op.tensors[kWeight].const_data_ptr<int8_t>()[c] : 0;
    packed->multiplier[c] = static_cast<float>(multiplier);
    const double bias = own * op.tensors[kBias].const_data_ptr<float>()[c] / out_scale;
    packed->offset[c] = static_cast<float>(offsetOf(out) + bias - zero - zero_of_residual);
  }
  return packed;
}

std::shared_ptr<const Packed> packRecurrent(const Operator& op) {
  using A = RecurrentAttributes;
  const at::Tensor& weight = op.tensors[kWeight];
  const at::Tensor scales = op.tensors[kWeightScales].to(at::kFloat);
  auto packed = std::make_shared<Packed>();
  packed->recurrent = std::make_shared<const RecurrentLayer>(
      Cell{op.attributes[A::Cell]}, op.attributes[A::Directions], weight.size(1),
      weight.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(),
      op.tensors[kBias].const_data_ptr<float>());
  return packed;
}

void release(const at::Tensor& weight) { weight.storage().set_data_ptr({}); }

// The weights that a kernel was made with, in the sizes of `taps`.
at::Tensor unpacked(const Convolution& kernel, const at::Tensor& taps) {
  const bool linear = taps.dim() == 2;
  const auto ordered = at::empty(linear ? taps.sizes() : channelsLast(taps).sizes(), at::kChar);
  kernel.unpack(ordered.mutable_data_ptr<int8_t>());
  return linear ? ordered : ordered.permute({0, 4, 1, 2, 3});
}

void restore(const Operator& op, const Packed& packed) {
  const at::Tensor& weight = op.tensors[kWeight];
  at::Tensor whole;
  if (isRecurrent(op.kind)) {
    whole = at::empty(weight.sizes(), at::kChar);
    packed.recurrent->unpack(whole.mutable_data_ptr<int8_t>());
  } else if (isTransposed(op.kind)) {
    whole = at::empty(weight.sizes(), at::kChar);
    const auto residues = residuesOf(op);
    for (size_t i = 0; i < residues.size(); ++i) {
      if (at::Tensor taps = residues[i].taps(whole); taps.numel() > 0) {
        taps.copy_(unpacked(packed.kernel(i), taps).flip({2, 3, 4}));
      }
    }
  } else {
    whole = unpacked(packed.kernel(), weight).contiguous();
  }
  weight.storage().set_data_ptr(
      whole.storage().set_data_ptr({})); // no operator writes to a tensor of inference mode
}

} // namespace

std::shared_ptr<const Packed> Weights::packed(
    const Program& program, const Operator& op, bool dense, const Sizes& widths) {
  const std::lock_guard lock(mutex_);
  const at::Tensor& weight = op.tensors[kWeight];
  const void* key = weight.unsafeGetTensorImpl();
  auto& packed = packed_[{key, hasSum(op), dense, widths}];
  if (packed) {
    return packed;
  }
  const auto other = packed_.find({key, !hasSum(op), dense, widths});
  if (other != packed_.end() && other->second) {
    return packed = numbersOf(program, op, other->second->kernels, widths);
  }
  if (const auto found = released_.find(key); found != released_.end()) {
    restore(op, *found->second.packed);
  }
  packed =
      isRecurrent(op.kind) ? packRecurrent(op) : numbersOf(program, op, pack(program, op, dense), widths);
  if (!isAffine(op.kind)) {
    release(weight);
    released_.insert_or_assign(key, Released{op, packed});
    untrimmed_ += weight.numel();
  }
  return packed;
}

void Weights::trim() {
  constexpr int64_t kWorthIt = 1 << 20; // bytes; it takes a millisecond
  const std::lock_guard lock(mutex_);
  if (untrimmed_ >= kWorthIt) {
    untrimmed_ = 0;
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
  }
}

Weights::Whole::Whole(Weights& weights) : weights_(weights), lock_(weights.mutex_) {
  try {
    for (const auto& [key, released] : weights_.released_) {
      restore(released.op, *released.packed);
    }
  } catch (...) { // out of memory
    weights_.releaseAll();
    throw;
  }
}

Weights::Whole::~Whole() { weights_.releaseAll(); }

void Weights::releaseAll() {
  for (const auto& [key, released] : released_) {
    release(released.op.tensors[kWeight]);
  }
}

} // namespace jit_passes::x86
