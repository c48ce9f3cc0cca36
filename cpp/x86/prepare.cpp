#include "moves.h"
#include "operators/declaration.h"
#include "orders.h"
#include "phases.h"

namespace jit_passes::x86 {
namespace {

// Makes the phases: a step each, or one for each step of time, and the border of what it is the first to write.
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
      case Does::Enter: return enter(step);
      case Does::Take: return taken(step.source, out(step));
      case Does::Quantize: return quantized(in(step), out(step));
      case Does::Dequantize: return dequantized(in(step), out(step));
      case Does::Convolve: return convolve(program_, lowered_, step);
      case Does::Chain: return chained(lowered_, step, scratch_);
      case Does::LookUp: return lookUp(step);
      case Does::Add: return add(step);
      case Does::Multiply: return multiply(step);
      case Does::Divide: return binary(step, floatQuotient(in(step, 0), in(step, 1)));
      case Does::Fill: return binary(step, floatFill(operatorOf(step), in(step, 0), in(step, 1)));
      case Does::MaxPool: return maxPool(step);
      case Does::Average: return average(step);
      case Does::Mean: return mean(step);
      case Does::Reduce: return reduced(step);
      case Does::Scale: return scaledChannels(operatorOf(step), in(step), out(step));
      case Does::Resample:
        return operatorOf(step).kind == Kind::ResizeBilinear ? blended(operatorOf(step), in(step), out(step))
                                                             : resample(step);
      case Does::Pad: return padded(in(step), out(step), operatorOf(step).attributes);
      case Does::Copy: return copied(step, in(step), out(step));
      case Does::Roll: return rolled(operatorOf(step), in(step), out(step));
      case Does::Load: return loaded(operatorOf(step), out(step));
      case Does::Interleave: return interleaved(step, lowered_.memory);
      case Does::Pack: return packedOperand(step, lowered_.memory, form_);
      case Does::Product: return product(step, lowered_.memory, form_);
      case Does::Softmax: return softmax(step);
      case Does::Normalize: return normalize(step);
      case Does::NormalizeGroups: return normalized(operatorOf(step), step, in(step), out(step));
      case Does::Measure: return measured(in(step), out(step));
      case Does::QuantizeRows: return quantizedRows(operatorOf(step), step, lowered_.memory);
      case Does::QuantizeImage: return quantized(in(step), out(step), gridOf(step));
      case Does::Apply: {
        const Dims dims = pixelDims(out(step).sizes, out(step).axis);
        return unary(step.function, image(in(step), dims), image(out(step), dims));
      }
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

  // Of codes on a grid that follows from extents, which are the second input.
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
    const Dims dims = pixelDims(from.sizes, from.axis);
    const Placed codes = image(from, dims);
    const Strides to = floatStrides(dims, strides, from.axis < 0 ? 1 : strides[from.axis]);
    const Dequantize kernel{
        static_cast<float>(from.grid->scale), static_cast<int32_t>(from.grid->zero_point)};
    return {
        kernel.items(codes.image), [=, number = step.output](const Call& call, int64_t begin, int64_t end) {
          kernel.run(codes.in(call), reinterpret_cast<float*>(call.result(number)), to, begin, end);
        }};
  }

  Part lookUp(const Step& step) {
    const Memory &from = in(step), &to = out(step);
    const Dims dims = pixelDims(to.sizes, to.axis);
    return unary(LookUp{step.table}, image(from, dims), image(to, dims));
  }

  // The operand of an operator that broadcasts, with the axes of the result.
  static Placed operand(const Memory& from, const Memory& to, const Dims& dims) {
    const size_t missing = to.sizes.size() - from.sizes.size();
    Sizes strides(to.sizes.size(), 0);
    for (size_t i = 0; i < from.sizes.size(); ++i) {
      strides[i + missing] = from.sizes[i] == 1 ? 0 : from.strides[i];
    }
    const int64_t axis = to.axis - static_cast<int64_t>(missing);
    return {imageOf(dims, strides, axis < 0 ? 1 : from.sizes[axis]), from.offset, from.home};
  }

  template <typename Kernel>
  Part binary(const Step& step, Kernel kernel) const {
    const Memory& to = out(step);
    const Dims dims = pixelDims(to.sizes, to.axis);
    const Placed a = operand(in(step, 0), to, dims), b = operand(in(step, 1), to, dims), y = image(to, dims);
    return {kernel.items(y.image), [=](const Call& call, int64_t begin, int64_t end) {
              kernel.run(a.in(call), b.in(call), y.in(call), begin, end);
            }};
  }

  Part normalize(const Step& step) const {
    if (!in(step).grid->is_float) {
      return normalized(operatorOf(step), step, in(step), out(step));
    }
    const auto [floats, codes] = results(step);
    return normalizedFloats(operatorOf(step), in(step), floats, codes);
  }

  Part softmax(const Step& step) const {
    if (!in(step).grid->is_float) {
      return softmaxed(step, in(step), out(step));
    }
    const auto [floats, codes] = results(step);
    return softmaxedFloats(operatorOf(step), in(step), floats, codes);
  }

  // The float32 and the codes that a step gives, one or both.
  std::pair<const Memory*, const Memory*> results(const Step& step) const {
    const Memory* to = &out(step);
    if (to->grid->is_float) {
      return {to, nullptr};
    }
    return {step.kept ? &lowered_.memory[*step.kept] : nullptr, to};
  }

  Part add(const Step& step) const {
    if (step.grid->is_float) {
      return binary(step, floatSum(operatorOf(step), in(step, 0), in(step, 1)));
    }
    const Grid &a = *in(step, 0).grid, &b = *in(step, 1).grid;
    const double* factors = operatorOf(step).tensors[0].const_data_ptr<double>();
    const double of_a = factors[0] * static_cast<float>(a.scale) / static_cast<float>(step.grid->scale);
    const double of_b = factors[1] * static_cast<float>(b.scale) / static_cast<float>(step.grid->scale);
    Add kernel{};
    kernel.a_multiplier = of_a, kernel.b_multiplier = of_b;
    kernel.offset = offsetOf(*step.grid) - a.zero_point * of_a - b.zero_point * of_b;
    kernel.range = codeRangeOf(*step.grid);
    kernel.table = step.table;
    return binary(step, kernel);
  }

  Part multiply(const Step& step) const {
    if (step.grid->is_float) {
      return binary(step, floatProduct(in(step, 0), in(step, 1)));
    }
    const Grid &a = *in(step, 0).grid, &b = *in(step, 1).grid;
    Multiply kernel{};
    kernel.a_zero_point = a.zero_point, kernel.b_zero_point = b.zero_point;
    kernel.multiplier = static_cast<double>(static_cast<float>(a.scale)) * static_cast<float>(b.scale) /
                        static_cast<float>(step.grid->scale);
    kernel.offset = offsetOf(*step.grid);
    kernel.range = codeRangeOf(*step.grid);
    kernel.table = step.table;
    return binary(step, kernel);
  }

  // Sizes along depth, height and width, from 0 to 2.
  static int64_t sizeOf(const Image& image, size_t i) {
    return i == 0 ? image.depth : i == 1 ? image.height : image.width;
  }

  std::array<std::vector<Span>, 3> spans(const Operator& op, const Image& x, const Image& y) const {
    using A = PoolAttributes;
    const auto& a = op.attributes;
    std::array<std::vector<Span>, 3> spans;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t from = sizeOf(x, i), to = sizeOf(y, i);
      spans[i] = op.kind == Kind::AdaptiveAverage
                     ? adaptiveSpans(from, to)
                     : windowSpans(
                           from, to, a[A::Kernel + i], a[A::Stride + i], a[A::Dilation + i], a[A::Pad + i],
                           a[A::Pad + i], a[A::CountPadding] != 0);
    }
    return spans;
  }

  Part maxPool(const Step& step) const {
    const Placed x = image(in(step)), y = image(out(step));
    const Operator& op = operatorOf(step);
    auto [z_spans, y_spans, x_spans] = spans(op, x.image, y.image);
    const int64_t* dilation = &op.attributes[PoolAttributes::Dilation];
    if (out(step).grid->is_float) {
      return unary(MaxFloats{z_spans, y_spans, x_spans, dilation[0], dilation[1], dilation[2]}, x, y);
    }
    return unary(MaxPool{z_spans, y_spans, x_spans, dilation[0], dilation[1], dilation[2]}, x, y);
  }

  Part averageOf(
      const Step& step, const std::array<std::vector<Span>, 3>& spans, int64_t divisor, const Placed& x,
      const Placed& y) const {
    const Grid &from = *in(step).grid, &to = *step.grid;
    if (to.is_float) {
      return averaged(spans, divisor, x, y);
    }
    int64_t pixels = 1;
    for (const auto& along : spans) {
      int64_t longest = 0;
      for (const Span& span : along) {
        longest = std::max(longest, span.end - span.begin);
      }
      pixels *= longest;
    }
    constexpr int64_t kMaxPixels = 1 << 22; // their sum fits in int32
    TORCH_CHECK(
        pixels <= kMaxPixels, operatorOf(step).name, " averages ", pixels, " values, more than ", kMaxPixels);
    AveragePool kernel{};
    kernel.z = spans[0], kernel.y = spans[1], kernel.x = spans[2];
    kernel.ratio = static_cast<double>(static_cast<float>(from.scale)) / static_cast<float>(to.scale);
    kernel.in_zero_point = from.zero_point, kernel.offset = offsetOf(to);
    kernel.divisor = divisor;
    kernel.range = codeRangeOf(to);
    return unary(std::move(kernel), x, y);
  }

  Part average(const Step& step) const {
    const Placed x = image(in(step)), y = image(out(step));
    const Operator& op = operatorOf(step);
    const int64_t divisor = op.kind == Kind::AveragePool ? op.attributes[PoolAttributes::Divisor] : 0;
    return averageOf(step, spans(op, x.image, y.image), divisor, x, y);
  }

  // The result of an operator that goes over axes, along those of its operand, where it has the size 1.
  static Placed resultOf(const Operator& op, const Memory& from, const Memory& to, Dims dims) {
    const int64_t rank = from.sizes.size();
    // The strides of the result along the axes of the operand.
    Sizes strides(rank, 0);
    for (int64_t axis = 0, kept = 0; axis < rank; ++axis) {
      if (!isReduced(op, axis, rank)) {
        strides[axis] = to.strides[kept];
      }
      kept += op.attributes[0] || !isReduced(op, axis, rank);
    }
    for (Dim& dim : dims) {
      dim.size = dim.axis >= 0 && isReduced(op, dim.axis, rank) ? 1 : dim.size;
    }
    return {imageOf(dims, strides, to.channels(), to.bytes()), to.offset, to.home};
  }

  Part mean(const Step& step) const {
    const Memory &from = in(step), &to = out(step);
    const Dims dims = axisDims(from.sizes, from.axis);
    const Placed x = image(from, dims), y = resultOf(operatorOf(step), from, to, dims);
    std::array<std::vector<Span>, 3> spans;
    for (size_t i = 0; i < spans.size(); ++i) {
      spans[i] = adaptiveSpans(sizeOf(x.image, i), sizeOf(y.image, i));
    }
    return averageOf(step, spans, 0, x, y);
  }

  Part reduced(const Step& step) const {
    const Memory &from = in(step), &to = out(step);
    const Dims dims = axisDims(from.sizes, from.axis);
    return unary(
        ReduceFloats{*declarationOf(operatorOf(step).kind).reduces}, image(from, dims),
        resultOf(operatorOf(step), from, to, dims));
  }

  Part resample(const Step& step) const {
    Placed x = image(in(step)), y = image(out(step));
    x.image.channels *= in(step).bytes(), y.image.channels *= out(step).bytes();
    const Operator& op = operatorOf(step);
    Resample kernel;
    std::vector<int64_t>* const from[] = {&kernel.from_z, &kernel.from_y, &kernel.from_x};
    const size_t unused = 3 - op.attributes[0];
    for (size_t i = 0; i < 3; ++i) {
      const bool factor = !op.tensors.empty() && i >= unused;
      *from[i] = nearest(
          sizeOf(x.image, i), sizeOf(y.image, i),
          factor ? std::optional(op.tensors[0].const_data_ptr<double>()[i - unused]) : std::nullopt,
          op.attributes[0] == 2);
    }
    return unary(std::move(kernel), x, y);
  }

  const Program& program_;
  Lowered lowered_;
  int64_t& scratch_;
  const Form form_ = bestForm(); // of kernels that read what others have packed
};

} // namespace

std::vector<Phase> phasesOf(const Program& program, Lowered lowered, int64_t& scratch) {
  return Preparation(program, std::move(lowered), scratch).run();
}

} // namespace jit_passes::x86
