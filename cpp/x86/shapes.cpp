#include "shapes.h"

#include "attention.h"
#include "recurrent.h"
#include "types.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kMaxCodes = int64_t{1} << 32;   // more in one value are a mistake
constexpr int64_t kMaxResized = int64_t{1} << 24; // along an axis that is resized

class Inference {
 public:
  Inference(const Operator& op, const std::vector<Sizes>& sizes, const std::vector<Sizes>& inputs) : op_(op) {
    if (op.kind == Kind::Input) {
      operands_.push_back(&inputs[op.attributes[0]]);
    }
    for (const int64_t input : op.inputs) {
      operands_.push_back(&sizes[input]);
    }
  }

  Sizes result() const {
    const size_t most = mostAxes(op_.kind);
    for (const Sizes* operand : operands_) {
      require(operand->size() <= most, "takes ", most, " axes at most, and got the shape ", *operand);
    }
    Sizes sizes = infer();
    require(
        sizes.size() <= most, "gives a tensor with ", sizes.size(), " axes; a plan takes ", most, " at most");
    int64_t codes = 1;
    for (const int64_t size : sizes) {
      // No factor is negative, and a product of two numbers below these limits does not overflow.
      require(
          size <= kMaxCodes && (codes *= std::max<int64_t>(size, 1)) <= kMaxCodes,
          "gives a tensor of the shape ", sizes, ", which is too large");
    }
    return sizes;
  }

 private:
  using A = ConvolutionAttributes;

  Sizes infer() const {
    switch (op_.kind) {
      case Kind::Convolution:
      case Kind::DynamicConvolution: return summed(convolution());
      case Kind::TransposedConvolution:
      case Kind::DynamicTransposedConvolution: return transposedConvolution();
      case Kind::Linear: return summed(linear());
      case Kind::DynamicLinear: return linear();
      case Kind::Add:
      case Kind::Multiply:
      case Kind::Divide:
      case Kind::Fill: return broadcast(first(), *operands_[1]);
      case Kind::MaxPool:
      case Kind::AveragePool: return pool();
      case Kind::AdaptiveAverage:
      case Kind::ResizeNearest:
      case Kind::ResizeBilinear: return resized();
      case Kind::Mean:
      case Kind::Sum:
      case Kind::Length:
      case Kind::Largest:
      case Kind::Smallest: return reduced();
      case Kind::Concat: return concat(op_.attributes[0]);
      case Kind::Flatten:
      case Kind::Reshape:
      case Kind::Unflatten:
      case Kind::Permute:
      case Kind::Transpose:
      case Kind::Unsqueeze:
      case Kind::Squeeze:
      case Kind::Expand:
      case Kind::Roll:
      case Kind::Shuffle:
      case Kind::Slice:
      case Kind::Narrow:
      case Kind::Part:
      case Kind::Pad: return inferMoved(op_, first());
      case Kind::Affine: return affine();
      case Kind::MatrixProduct: return matrixProduct();
      case Kind::Softmax: checkAxis(op_.attributes[0], first().size()); return first();
      case Kind::RmsNorm:
      case Kind::LayerNorm: return normalized(int64_t(first().size()) - 1);
      case Kind::GroupNorm: return normalized(kAffineAxis);
      case Kind::Recurrent: return recurrent();
      case Kind::Constant: return op_.tensors[0].sizes().vec();
      case Kind::Power: return {};
      case Kind::Input:
      case Kind::Quantize:
      case Kind::Dequantize:
      case Kind::Function:
      case Kind::Table: return first();
    }
    return {};
  }

  const Sizes& first() const { return *operands_[0]; }

  // Of a list that is joined: the first whose shape is that of the result but for one axis.
  const Sizes& firstShaped() const {
    const auto found =
        std::ranges::find_if(operands_, [](const Sizes* sizes) { return !isJoinedWithAny(*sizes); });
    return found == operands_.end() ? first() : **found;
  }

  // The first spatial axis of an operand with a batch or without one.
  size_t spatialAxis(int64_t spatial, bool may_be_empty = false) const {
    const int64_t rank = first().size();
    require(
        rank == spatial + 1 || rank == spatial + 2, "takes ", spatial + 1, " or ", spatial + 2,
        " axes, and got the shape ", first());
    for (int64_t axis = rank - spatial - 1; axis < rank && !may_be_empty; ++axis) {
      require(first()[axis] > 0, "takes no empty axes but that of the batch, and got the shape ", first());
    }
    return rank - spatial;
  }

  // The operand's, with the channels of the result, and `along` of each spatial axis and its size.
  template <typename Along>
  Sizes windowed(const Along& along) const {
    const auto& a = op_.attributes;
    const auto& weight = op_.tensors[kWeight];
    const size_t axis = spatialAxis(a[A::Spatial]), unused = 3 - a[A::Spatial];
    Sizes sizes = first();
    const int64_t channels = weight.size(1) * a[A::Groups];
    require(sizes[axis - 1] == channels, "takes ", channels, " channels, and got the shape ", first());
    sizes[axis - 1] = weight.size(0);
    for (size_t i = unused; i < 3; ++i) {
      int64_t& size = sizes[axis + i - unused];
      size = along(i, size, a[A::Dilation + i] * (weight.size(2 + i) - 1) + 1);
    }
    return sizes;
  }

  Sizes convolution() const {
    const auto& a = op_.attributes;
    return windowed([&](size_t i, int64_t size, int64_t window) {
      const int64_t padded = size + a[A::PadBefore + i] + a[A::PadAfter + i];
      require(padded >= window, "has a window larger than its padded input of the shape ", first());
      return (padded - window) / a[A::Stride + i] + 1;
    });
  }

  Sizes transposedConvolution() const {
    const auto& a = op_.attributes;
    return windowed([&](size_t i, int64_t size, int64_t window) {
      const int64_t whole = (size - 1) * a[A::Stride + i] + window;
      const int64_t left = whole - a[A::PadBefore + i] - a[A::PadAfter + i];
      require(left > 0, "has paddings that cut off all of its result for the shape ", first());
      return left;
    });
  }

  Sizes linear() const {
    const auto& weight = op_.tensors[kWeight];
    Sizes sizes = first();
    require(
        !sizes.empty() && sizes.back() == weight.size(1), "takes ", weight.size(1),
        " features, and got the shape ", first());
    sizes.back() = weight.size(0);
    return sizes;
  }

  Sizes summed(const Sizes& own) const { return operands_.size() > 1 ? broadcast(own, *operands_[1]) : own; }

  Sizes affine() const {
    const int64_t channels = op_.tensors[kWeight].size(0);
    const Sizes& of = firstShaped();
    require(of.size() > kAffineAxis, "takes ", channels, " channels, and got the shape ", of);
    const Sizes sizes = concat(kAffineAxis);
    require(sizes[kAffineAxis] == channels, "takes ", channels, " channels, and got the shape ", sizes);
    return sizes;
  }

  Sizes normalized(int64_t axis) const {
    const int64_t channels = op_.tensors[NormTensors::Weight].numel();
    require(
        axis >= 0 && axis < int64_t(first().size()) && first()[axis] == channels, "takes ", channels,
        " features, and got the shape ", first());
    if (op_.kind == Kind::GroupNorm) {
      const int64_t images = std::max<int64_t>(first()[0], 1), count = countOf(first()) / images;
      require(count > 0 || first()[0] == 0, "is a mean of no values for the shape ", first());
    }
    return first();
  }

  Sizes recurrent() const {
    using A = RecurrentAttributes;
    const int64_t directions = op_.attributes[A::Directions], time = op_.attributes[A::BatchFirst];
    const Cell cell{op_.attributes[A::Cell]};
    const auto& weight = op_.tensors[kWeight];
    require(
        first().size() == 3 && first().back() == weight.size(0), "takes three axes with ", weight.size(0),
        " features, and got the shape ", first());
    require(first()[time] > 0, "takes one step at least, and got the shape ", first());
    const Sizes state{directions, first()[1 - time], weight.size(1)};
    for (size_t i = 1; i < operands_.size(); ++i) {
      require(*operands_[i] == state, "takes states of the shape ", state, ", and got ", *operands_[i]);
    }
    Sizes sizes = first();
    sizes.back() = statesOf(cell) * directions * weight.size(1);
    return sizes;
  }

  // Vectors are a row on the left, a column on the right.
  Sizes matrixProduct() const {
    const Sizes &a = first(), &b = *operands_[1];
    require(!a.empty() && !b.empty(), "takes no numbers");
    const int64_t products = a.back(), rows = b.size() == 1 ? b[0] : b[b.size() - 2];
    require(products == rows, "got the shapes ", a, " and ", b, ", whose inner axes differ");
    const Sizes of_a(a.begin(), a.end() - std::min<size_t>(a.size(), 2));
    const Sizes of_b(b.begin(), b.end() - std::min<size_t>(b.size(), 2));
    require(
        op_.attributes[0] == 0 || (of_a.size() == 1 && of_a == of_b && b.size() == 3), "got the shapes ", a,
        " and ", b, ", which are no batches of one size");
    Sizes sizes = broadcast(of_a, of_b);
    if (a.size() > 1) {
      sizes.push_back(a[a.size() - 2]);
    }
    if (b.size() > 1) {
      sizes.push_back(b.back());
    }
    return sizes;
  }

  Sizes broadcast(const Sizes& a, const Sizes& b) const {
    Sizes sizes = a.size() < b.size() ? b : a;
    const Sizes& other = a.size() < b.size() ? a : b;
    for (size_t i = 1; i <= other.size(); ++i) {
      int64_t& size = sizes[sizes.size() - i];
      const int64_t with = other[other.size() - i];
      require(
          size == with || size == 1 || with == 1, "got the shapes ", a, " and ", b,
          ", which do not broadcast");
      size = size == 1 ? with : size;
    }
    return sizes;
  }

  Sizes pool() const {
    using A = PoolAttributes;
    const auto& a = op_.attributes;
    const size_t axis = spatialAxis(a[A::Spatial]), unused = 3 - a[A::Spatial];
    Sizes sizes = first();
    for (size_t i = unused; i < 3; ++i) {
      int64_t& size = sizes[axis + i - unused];
      const int64_t stride = a[A::Stride + i], pad = a[A::Pad + i];
      const int64_t window = a[A::Dilation + i] * (a[A::Kernel + i] - 1) + 1;
      const int64_t rest = size + 2 * pad - window + (a[A::Ceil] ? stride - 1 : 0);
      require(rest >= 0, "has a window larger than its padded input of the shape ", first());
      int64_t out = rest / stride + 1;
      if (a[A::Ceil] && (out - 1) * stride >= size + pad) {
        --out; // the last window begins inside of the input or of the padding in front of it
      }
      size = out;
    }
    return sizes;
  }

  Sizes resized() const {
    const int64_t spatial = op_.attributes[0];
    const size_t axis = spatialAxis(spatial);
    Sizes sizes = first();
    for (int64_t i = 0; i < spatial; ++i) {
      if (!op_.tensors.empty()) {
        sizes[axis + i] = static_cast<int64_t>(sizes[axis + i] * op_.tensors[0].const_data_ptr<double>()[i]);
      } else if (op_.attributes[1 + i] >= 0) {
        sizes[axis + i] = op_.attributes[1 + i];
      }
      require(
          sizes[axis + i] > 0 && sizes[axis + i] <= kMaxResized,
          "gives an image that is empty or too large for the shape ", first());
    }
    return sizes;
  }

  Sizes reduced() const {
    const int64_t rank = first().size();
    for (size_t i = 1; i < op_.attributes.size(); ++i) {
      checkAxis(op_.attributes[i], rank);
    }
    Sizes sizes;
    for (int64_t axis = 0; axis < rank; ++axis) {
      const bool reduced = isReduced(op_, axis, rank);
      if (!reduced || op_.attributes[0]) {
        sizes.push_back(reduced ? 1 : first()[axis]);
      }
    }
    require(countOf(first()) > 0 || countOf(sizes) == 0, "goes over no values of the shape ", first());
    return sizes;
  }

  Sizes concat(int64_t along) const {
    const Sizes& of = firstShaped();
    const int64_t rank = of.size(), axis = x86::checkAxis(op_, along, rank, of);
    Sizes sizes = of;
    sizes[axis] = 0;
    for (const Sizes* operand : operands_) {
      if (isJoinedWithAny(*operand)) {
        continue;
      }
      require(int64_t(operand->size()) == rank, "got the shapes ", of, " and ", *operand);
      for (int64_t i = 0; i < rank; ++i) {
        require(i == axis || (*operand)[i] == of[i], "got the shapes ", of, " and ", *operand);
      }
      sizes[axis] += (*operand)[axis];
    }
    return sizes;
  }

  int64_t checkAxis(int64_t axis, int64_t rank) const { return x86::checkAxis(op_, axis, rank, first()); }

  template <typename... Message>
  void require(bool condition, const Message&... message) const {
    x86::require(op_, condition, message...);
  }

  const Operator& op_;
  std::vector<const Sizes*> operands_;
};

} // namespace

int64_t checkAxis(const Operator& op, int64_t axis, int64_t rank, const Sizes& of) {
  require(op, axis >= -rank && axis < rank, "works along axis ", axis, ", and got the shape ", of);
  return axisOf(axis, rank);
}

bool isReduced(const Operator& op, int64_t axis, int64_t rank) {
  return std::any_of(op.attributes.begin() + 1, op.attributes.end(), [&](int64_t reduced) {
    return axisOf(reduced, rank) == axis;
  });
}

int64_t countOf(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

Sizes inferResult(const Operator& op, const std::vector<Sizes>& sizes, const std::vector<Sizes>& inputs) {
  return Inference(op, sizes, inputs).result();
}

std::vector<Sizes> inferSizes(const Program& program, const std::vector<Sizes>& inputs) {
  std::vector<Sizes> sizes(program.grids.size());
  for (const Operator& op : program.operators) {
    sizes[op.output] = inferResult(op, sizes, inputs);
  }
  return sizes;
}

} // namespace jit_passes::x86
