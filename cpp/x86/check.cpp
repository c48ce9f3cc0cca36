// Programs that no code has to look at again: files are not trusted.
#include "attention.h"
#include "dynamic.h"
#include "numbers.h"
#include "parts.h"
#include "recurrent.h"
#include "signature.h"
#include "types.h"

namespace jit_passes::x86 {
namespace {

// Sizes and numbers of things beyond these are mistakes, and products of a few of them fit 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 30, kMaxCount = int64_t{1} << 20;
constexpr int64_t kMaxPadding = int64_t{1} << 24; // by an operator of its own
// Convolutions that a transposed one falls into.
constexpr int64_t kMaxResidues = 4096;
// Sums of products and what stands for the zero point each stay below this.
constexpr int64_t kMaxSum = int64_t{1} << 30;

bool liesWithin(const at::Tensor& tensor, int64_t elements) {
  const int64_t offset = tensor.storage_offset();
  return offset >= 0 && tensor.numel() <= elements && offset <= elements - tensor.numel();
}

bool between(int64_t number, int64_t low, int64_t high) { return number >= low && number <= high; }

// "not a plan: conv1:conv2d (convolution): ..."
class Checker {
 public:
  explicit Checker(const Program& program)
      : program_(program), computed_(program.grids.size()), numbers_(program.numbers.size()) {}

  void check() {
    TORCH_CHECK(between(program_.inputs, 1, kMaxCount), "not a plan: ", program_.inputs, " inputs");
    TORCH_CHECK(
        program_.grids.size() <= size_t(kMaxCount) && program_.operators.size() <= size_t(kMaxCount),
        "not a plan: more than ", kMaxCount, " values or operators");
    for (size_t i = 0; i < program_.grids.size(); ++i) {
      checkGrid(program_.grids[i], i);
    }
    checkNumbersOf(program_);
    for (const Operator& op : program_.operators) {
      checkOperator(op);
    }
    TORCH_CHECK(
        between(program_.outputs.size(), 1, kMaxCount), "not a plan: ", program_.outputs.size(), " outputs");
    for (const int64_t output : program_.outputs) {
      TORCH_CHECK(isComputed(output), "not a plan: it returns value ", output, ", which is not computed");
    }
  }

  void checkForm(const Operator& op) {
    op_ = &op;
    require(isKind(op.kind), "its kind is none");
    const Signature& form = signatureOf(op.kind);
    const auto count = [&](size_t found, size_t min, size_t max, const char* of) {
      require(found >= min && found <= max, found, " ", of, ", and it has ", min, " to ", max);
    };
    count(op.inputs.size(), form.min_inputs, form.max_inputs, "inputs");
    count(op.attributes.size(), form.min_attributes, form.max_attributes, "attributes");
    count(op.tensors.size(), form.min_tensors, form.max_tensors, "tensors");
    for (const auto& [attribute, number] : op.computed) {
      require(
          between(attribute, 0, int64_t(op.attributes.size()) - 1) && mayCompute(op, attribute),
          "it computes its attribute ", attribute);
    }
    for (const at::Tensor& tensor : op.tensors) {
      require(
          tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
              !tensor.is_quantized() && tensor.is_contiguous() && !tensor.requires_grad(),
          "its tensors must be plain, dense and of the CPU");
      // A file may say that a tensor is larger than what it holds.
      require(
          tensor.numel() == 0 || liesWithin(tensor, tensor.storage().nbytes() / tensor.element_size()),
          "a tensor is larger than its storage");
    }
    checkKind(op);
  }

 private:
  void checkOperator(const Operator& op) {
    checkForm(op);
    for (const int64_t input : op.inputs) {
      require(isComputed(input), "its operand, value ", input, ", is not computed before it");
    }
    for (const auto& [attribute, number] : op.computed) {
      require(between(number, 0, int64_t(numbers_.size()) - 1), "number ", number, " of ", numbers_.size());
      forEachSized(program_, number, numbers_, [&](int64_t value) {
        require(isComputed(value), "it needs the size of value ", value, ", which is not computed before it");
      });
    }
    require(
        between(op.output, 0, int64_t(computed_.size()) - 1) && !computed_[op.output], "value ", op.output,
        " is none, or has been computed already");
    computed_[op.output] = true;
    require(fitsTypes(op, program_.grids), "it does not have operands and a result of these types");
    require(
        op.kind != Kind::Affine || op.inputs.size() == 1 || !program_.grids[op.output].is_float,
        "it scales several values in float32");
    if (const Grid& grid = program_.grids[op.output]; op.kind == Kind::Constant && !grid.is_float) {
      const auto [low, high] = op.tensors[0].aminmax();
      require(
          low.item<int64_t>() >= grid.low && high.item<int64_t>() <= grid.high, "codes beyond [", grid.low,
          ", ", grid.high, "]");
    }
    const int64_t input = op.kind == Kind::Input ? op.attributes[0] : 0;
    require(between(input, 0, program_.inputs - 1), "input ", input, " of ", program_.inputs);
  }

  void checkKind(const Operator& op) {
    switch (op.kind) {
      case Kind::Convolution:
      case Kind::TransposedConvolution: return checkConvolution(op);
      case Kind::Linear: checkWeights(op, 2); return checkSum(op);
      case Kind::DynamicLinear: checkDynamic(op); return checkWeights(op, 2);
      case Kind::DynamicConvolution:
      case Kind::DynamicTransposedConvolution: checkDynamic(op); return checkConvolution(op);
      case Kind::Recurrent: return checkRecurrent(op);
      case Kind::Function: return checkFunction(op);
      case Kind::Affine:
        checkWeights(op, 2);
        return require(op.tensors[kWeight].size(1) == 1, "a channel has more than one factor");
      case Kind::Table: return checkTable(op);
      case Kind::Fill: return require(between(op.attributes[0], 0, UINT32_MAX), "it has no float32");
      case Kind::Power:
      case Kind::Add: return checkNumbers(op.tensors[0], 2, "factors");
      case Kind::MaxPool:
      case Kind::AveragePool: return checkPool(op);
      case Kind::AdaptiveAverage:
      case Kind::ResizeNearest:
      case Kind::ResizeBilinear: return checkSizes(op);
      case Kind::Mean:
      case Kind::Sum:
      case Kind::Length:
      case Kind::Largest:
      case Kind::Smallest:
        require(between(op.attributes[0], 0, 1), "whether axes are kept is 0 or 1");
        return checkAxes(op, 1);
      case Kind::Pad:
        require(op.attributes.size() % 2 == 0, "a padding on one side only");
        return each(op.attributes, 0, kMaxPadding, "a padding");
      case Kind::MatrixProduct:
        return require(between(op.attributes[0], 0, 1), "whether it has batches is 0 or 1");
      case Kind::LayerNorm:
      case Kind::RmsNorm:
      case Kind::GroupNorm: return checkNorm(op);
      case Kind::Constant:
        return require(
            op.tensors[0].dim() <= kMostAxes && between(op.tensors[0].numel(), 1, kMaxSize),
            "its sizes are none");
      case Kind::Softmax:
        require(op.attributes.size() < 2 || between(op.attributes[1], 0, 1), "what it hides is 0 or 1");
        return checkAxes(op, 0);
      case Kind::Concat:
      case Kind::Permute:
      case Kind::Transpose:
      case Kind::Unsqueeze:
      case Kind::Squeeze:
      case Kind::Flatten: return checkAxes(op, 0);
      case Kind::Roll: return checkRoll(op);
      case Kind::Expand: return each(op.attributes, -1, kMaxSize, "a size");
      case Kind::Reshape: return checkShape(op, 0);
      case Kind::Unflatten: return checkShape(op, 1);
      case Kind::Shuffle:
      case Kind::Slice:
      case Kind::Narrow:
      case Kind::Part: return require(isRange(op), "its numbers are none of a part of an axis");
      default: return;
    }
  }

  void checkConvolution(const Operator& op) {
    using A = ConvolutionAttributes;
    const auto& a = op.attributes;
    checkWeights(op, 5);
    checkSum(op);
    const auto& weight = op.tensors[kWeight];
    checkAxesOf(a[A::Spatial]);
    require(
        between(a[A::Groups], 1, weight.size(0)) && weight.size(0) % a[A::Groups] == 0, weight.size(0),
        " results in ", a[A::Groups], " groups");
    const bool transposed = isTransposed(op.kind);
    int64_t residues = 1;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t kernel = weight.size(2 + i);
      const bool used = i + a[A::Spatial] >= 3;
      checkWindow(used, kernel, a[A::Stride + i], a[A::PadBefore + i], a[A::Dilation + i]);
      const int64_t most = used ? kMostWindow : 0;
      require(between(a[A::PadAfter + i], transposed ? -most : 0, most), "a padding of ", a[A::PadAfter + i]);
      residues *= a[A::Stride + i];
    }
    require(
        !transposed || residues <= kMaxResidues, "strides of a product of ", residues, ", more than ",
        kMaxResidues);
  }

  void checkAxesOf(int64_t spatial) {
    require(between(spatial, 1, 3), "it has 1 to 3 spatial axes, not ", spatial);
  }

  // Along an axis that is used, or one of size 1.
  void checkWindow(bool used, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
    require(
        used || (kernel == 1 && stride == 1 && pad == 0 && dilation == 1),
        "a window in more than its spatial axes");
    require(
        between(kernel, 1, kMostWindow) && between(stride, 1, kMostWindow) && between(pad, 0, kMostWindow) &&
            between(dilation, 1, kMostWindow),
        "a window of ", kernel, ", a stride of ", stride, ", a padding of ", pad, ", a dilation of ",
        dilation);
  }

  void checkWeights(const Operator& op, int64_t dims) {
    const auto &weight = op.tensors[kWeight], &bias = op.tensors[kBias];
    require(
        weight.scalar_type() == at::kChar && weight.dim() == dims && weight.numel() > 0,
        "weights are int8 with ", dims, " axes, not ", weight.scalar_type(), " of the shape ",
        weight.sizes());
    for (const int64_t size : weight.sizes()) {
      require(between(size, 1, kMaxSize), "weights of the shape ", weight.sizes());
    }
    checkNumbers(op.tensors[kWeightScales], weight.size(0), "scales of weights");
    require((op.tensors[kWeightScales] > 0).all().item<bool>(), "a scale of its weights is not above 0");
    require(
        bias.scalar_type() == at::kFloat && bias.dim() == 1 && bias.size(0) == weight.size(0),
        "the bias is float32, a number for each of ", weight.size(0), " results");
    require(at::isfinite(bias).all().item<bool>(), "its bias is not finite");
    const auto sums = weight.to(at::kShort).abs().reshape({weight.size(0), -1}).sum(1, false, at::kLong);
    require(
        sums.max().item<int64_t>() < kMaxSum / 255 && weight.numel() / weight.size(0) <= kMostProducts,
        "its weights are too many or too large for sums in int32");
  }

  void checkSum(const Operator& op) {
    require(hasSum(op) == (op.tensors.size() > kFactors), "a sum has an operand and factors");
    if (hasSum(op)) {
      checkNumbers(op.tensors[kFactors], 2, "factors");
      require(op.tensors[kFactors][0].item<float>() != 0, "the factor of its own result is 0");
    }
  }

  void checkNorm(const Operator& op) {
    for (const size_t i : {NormTensors::Weight, NormTensors::Bias}) {
      const at::Tensor& numbers = op.tensors[i];
      require(
          numbers.scalar_type() == at::kFloat && numbers.dim() == 1 &&
              numbers.numel() == op.tensors[0].numel() && at::isfinite(numbers).all().item<bool>(),
          "weight and bias are finite numbers of float32, one for each channel");
    }
    const int64_t channels = op.tensors[0].numel(), groups = op.attributes.empty() ? 1 : op.attributes[0];
    require(
        between(channels, 1, kMaxSize) && between(groups, 1, channels) && channels % groups == 0, "it has ",
        channels, " channels in ", groups, " groups");
    checkNumbers(op.tensors[NormTensors::Eps], 1, "what is added to the variance");
    require(op.tensors[NormTensors::Eps].item<double>() > 0, "what is added to the variance is not above 0");
  }

  void checkDynamic(const Operator& op) {
    require(
        between(dynamicAttribute(op, DynamicAttributes::PerRow), 0, isLinear(op.kind)),
        "whether rows have grids is 0 or 1, and 0 where they are no rows of a linear layer");
    require(
        between(dynamicAttribute(op, DynamicAttributes::Form), 0, int64_t(RangeForm::Count) - 1),
        "no formulas of that number find a grid");
  }

  void checkRecurrent(const Operator& op) {
    using A = RecurrentAttributes;
    const auto& a = op.attributes;
    require(between(a[A::Cell], 0, int64_t(Cell::Count) - 1), "cell ", a[A::Cell], " is none");
    require(
        between(a[A::Directions], 1, 2) && between(a[A::BatchFirst], 0, 1) &&
            between(a[A::Form], 0, int64_t(RangeForm::Count) - 1),
        "directions are 1 or 2, whether the batch is first is 0 or 1, and formulas of a grid have such a "
        "number");
    checkWeights(op, 2);
    const Cell cell{a[A::Cell]};
    const auto& weight = op.tensors[kWeight];
    require(
        weight.size(0) == a[A::Directions] * gatesOf(cell) * weight.size(1), "weights of the shape ",
        weight.sizes(), " are none of ", a[A::Directions], " directions with ", gatesOf(cell), " gates");
    require(
        int64_t(op.inputs.size()) == 1 + statesOf(cell), "it reads ", statesOf(cell), " states, and has ",
        op.inputs.size() - 1);
  }

  void checkFunction(const Operator& op) {
    const int64_t which = op.attributes[0];
    require(between(which, 0, FloatFunction::kCount - 1), "function ", which, " is none");
    const at::Tensor& numbers = op.tensors[0];
    require(
        numbers.scalar_type() == at::kDouble && numbers.dim() == 1 &&
            numbers.numel() == FloatFunction::numbersOf(which) && !at::isnan(numbers).any().item<bool>(),
        "the numbers of its function are float64, ", FloatFunction::numbersOf(which), " of them");
  }

  void checkTable(const Operator& op) {
    const auto& table = op.tensors[0];
    require(
        table.scalar_type() == at::kByte && table.dim() == 1 && table.size(0) == 256,
        "a table is uint8 with 256 entries");
  }

  void checkNumbers(const at::Tensor& numbers, int64_t count, const char* what) {
    require(
        numbers.scalar_type() == at::kDouble && numbers.dim() == 1 && numbers.size(0) == count, what,
        " are float64, ", count, " of them, not ", numbers.scalar_type(), " of the shape ", numbers.sizes());
    require(at::isfinite(numbers.to(at::kFloat)).all().item<bool>(), what, " are not finite");
  }

  void checkPool(const Operator& op) {
    using A = PoolAttributes;
    const auto& a = op.attributes;
    checkAxesOf(a[A::Spatial]);
    require(
        between(a[A::Ceil], 0, 1) && between(a[A::CountPadding], 0, 1) && between(a[A::Divisor], 0, kMaxSize),
        "a switch that is not 0 or 1, or a divisor below 0");
    for (size_t i = 0; i < 3; ++i) {
      const int64_t kernel = a[A::Kernel + i], pad = a[A::Pad + i];
      checkWindow(i + a[A::Spatial] >= 3, kernel, a[A::Stride + i], pad, a[A::Dilation + i]);
      require(pad <= kernel / 2, "a padding of more than half of the window");
      require(op.kind == Kind::MaxPool || a[A::Dilation + i] == 1, "an average with a dilation");
    }
  }

  void checkSizes(const Operator& op) {
    const bool blends = op.kind == Kind::ResizeBilinear;
    const int64_t spatial = op.attributes[0], sizes = op.attributes.size() - 1 - blends;
    checkAxesOf(spatial);
    require(
        !blends || (spatial == 2 && between(op.attributes.back(), 0, 1)),
        "it has two axes, and whether corners are aligned is 0 or 1");
    if (op.tensors.empty()) {
      require(sizes == spatial, sizes, " sizes of ", spatial, " axes");
    } else {
      require(sizes == 0, "sizes and factors");
      checkNumbers(op.tensors[0], spatial, "factors");
      const auto& factors = op.tensors[0];
      require(
          at::logical_and(factors > 0, factors <= double(kMostWindow)).all().item<bool>(),
          "a factor is not above 0, or too large");
    }
    for (int64_t i = 1; i <= sizes; ++i) {
      const int64_t size = op.attributes[i];
      require(
          between(size, 1, kMaxSize) || (size == -1 && op.kind == Kind::AdaptiveAverage), "a size of ", size);
    }
  }

  // Sizes, behind an axis.
  void checkShape(const Operator& op, size_t from) {
    const std::vector<int64_t> sizes(op.attributes.begin() + from, op.attributes.end());
    require(from == 0 || between(op.attributes[0], -8, 7), "an axis of ", op.attributes[0]);
    require(std::count(sizes.begin(), sizes.end(), -1) <= 1, "more than one size is open");
    each(sizes, -1, kMaxSize, "a size");
  }

  void checkRoll(const Operator& op) {
    const size_t axes = op.attributes.size() / 2;
    require(op.attributes.size() % 2 == 0, "it is rolled as far as ", axes, " numbers say, along other axes");
    each({op.attributes.begin(), op.attributes.begin() + axes}, -kMaxSize, kMaxSize, "a distance");
    checkAxes(op, axes);
  }

  void checkAxes(const Operator& op, size_t from) {
    each({op.attributes.begin() + from, op.attributes.end()}, -8, 7, "an axis");
  }

  void each(const std::vector<int64_t>& numbers, int64_t low, int64_t high, const char* what) {
    for (const int64_t number : numbers) {
      require(between(number, low, high), what, " of ", number);
    }
  }

  bool isComputed(int64_t value) const {
    return between(value, 0, int64_t(computed_.size()) - 1) && computed_[value];
  }

  template <typename... Message>
  void require(bool condition, const Message&... message) {
    TORCH_CHECK(
        condition, "not a plan: ", op_->name, isKind(op_->kind) ? " (" : "",
        isKind(op_->kind) ? nameOf(op_->kind) : "", isKind(op_->kind) ? ")" : "", ": ", message...);
  }

  const Program& program_;
  std::vector<bool> computed_;
  std::vector<bool> numbers_; // of which all sizes are computed
  const Operator* op_ = nullptr;
};

} // namespace

void check(const Program& program) { Checker(program).check(); }
void checkForm(const Operator& op) { Checker(Program()).checkForm(op); }

} // namespace jit_passes::x86
