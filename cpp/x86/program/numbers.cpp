#include "numbers.h"

#include "declaration.h"
#include "simplify.h"

namespace jit_passes::x86 {
namespace {

class Resolved {
 public:
  Resolved(const Program& program, const std::vector<Sizes>& inputs)
      : from_(program),
        inputs_(inputs),
        program_{program.inputs, program.grids, {}, program.outputs},
        sizes_(program.grids.size()),
        known_(program.numbers.size()) {}

  Program run() {
    for (Operator op : from_.operators) {
      for (const auto& [attribute, number] : op.computed) {
        if (const Number& of = from_.numbers[number]; of.how == Number::How::Sizes) {
          op.attributes = sizes_[of.a];
          break;
        }
        op.attributes[attribute] = std::clamp(numberOf(op, number), -kFar, kFar);
      }
      const bool computes = !op.computed.empty();
      op.computed.clear();
      if (computes && op.kind == Kind::Pad) {
        cutOff(op);
      } else if (op.kind == Kind::Power) {
        settle(op);
      }
      if (computes) {
        checkForm(op);
      }
      add(std::move(op));
    }
    simplify(program_);
    return std::move(program_);
  }

 private:
  void add(Operator op) {
    sizes_[op.output] = inferResult(op, sizes_, inputs_);
    program_.operators.push_back(std::move(op));
  }

  // Turns a power into a constant, once its number is known.
  void settle(Operator& power) {
    const int64_t base = power.attributes[0];
    const auto* numbers = power.tensors[0].const_data_ptr<double>();
    const bool whole = numbers[1] == std::floor(numbers[1]);
    require(
        power, base >= 0 || whole, "takes the power ", numbers[1], " of ", base,
        ", which is below 0: only whole powers are real numbers");
    const double value = numbers[0] * std::pow(static_cast<double>(base), numbers[1]);
    power.kind = Kind::Constant;
    power.attributes.clear();
    power.tensors = {at::scalar_tensor(value, at::kFloat)};
  }

  // Replaces negative paddings by slices: a negative padding removes elements.
  void cutOff(Operator& pad) {
    for (size_t i = 0; i < pad.attributes.size(); i += 2) {
      int64_t &before = pad.attributes[i], &behind = pad.attributes[i + 1];
      if (before >= 0 && behind >= 0) {
        continue;
      }
      const int64_t value = pad.inputs[0], rank = sizes_[value].size(), axis = rank - 1 - int64_t(i) / 2;
      require(pad, axis >= 0, "pads more axes than there are, got the shape ", sizes_[value]);
      const int64_t size = sizes_[value][axis], end = size + std::min<int64_t>(behind, 0);
      require(
          pad, end + std::min<int64_t>(before, 0) >= 0, "cuts off more than there is, got the shape ",
          sizes_[value]);
      pad.inputs[0] = static_cast<int64_t>(program_.grids.size());
      program_.grids.push_back(Grid(program_.grids[value]));
      sizes_.emplace_back();
      add({Kind::Slice, pad.name, {value}, pad.inputs[0], {axis, std::max<int64_t>(-before, 0), end, 1}, {}});
      before = std::max<int64_t>(before, 0), behind = std::max<int64_t>(behind, 0);
    }
  }

  int64_t numberOf(const Operator& op, int64_t number) {
    if (!known_[number]) {
      known_[number] = find(op, from_.numbers[number]);
    }
    return *known_[number];
  }

  int64_t find(const Operator& op, const Number& number) {
    using How = Number::How;
    if (number.how == How::Constant) {
      return number.a;
    }
    if (number.how == How::Size) {
      const Sizes& sizes = sizes_[number.a];
      const int64_t rank = sizes.size();
      require(
          op, number.b >= -rank && number.b < rank, "needs the size of axis ", number.b,
          " of a value of the shape ", sizes);
      return sizes[axisOf(number.b, rank)];
    }
    const int64_t a = numberOf(op, number.a), b = numberOf(op, number.b);
    int64_t result = 0;
    bool fits = true;
    switch (number.how) {
      case How::Sum: fits = !__builtin_add_overflow(a, b, &result); break;
      case How::Difference: fits = !__builtin_sub_overflow(a, b, &result); break;
      case How::Product: fits = !__builtin_mul_overflow(a, b, &result); break;
      case How::Smaller: return std::min(a, b);
      case How::Larger: return std::max(a, b);
      default:
        require(op, b != 0, "needs ", a, " divided by ", b);
        if (b == -1) {
          fits = number.how != How::Quotient || !__builtin_sub_overflow(int64_t{0}, a, &result);
          break;
        }
        const bool other_way = a % b != 0 && (a < 0) != (b < 0);
        result = number.how == How::Quotient ? a / b - other_way : a % b + (other_way ? b : 0);
    }
    require(op, fits, "needs a number that is too large");
    return result;
  }

  const Program& from_;
  const std::vector<Sizes>& inputs_;
  Program program_;
  std::vector<Sizes> sizes_;
  std::vector<std::optional<int64_t>> known_;
};

} // namespace

void checkNumbersOf(const Program& program) {
  using How = Number::How;
  const auto between = [](int64_t number, int64_t low, int64_t high) {
    return number >= low && number <= high;
  };
  TORCH_CHECK(
      program.numbers.size() <= size_t(kMostNumbers), "not a plan: more than ", kMostNumbers, " numbers");
  const auto isOne = [&](int64_t number) { return program.numbers[number].how != How::Sizes; };
  for (const Operator& op : program.operators) {
    for (const auto& [attribute, number] : op.computed) {
      const bool fits = number < 0 || number >= int64_t(program.numbers.size()) || isOne(number) ||
                        (op.attributes.size() == 1 && declarationOf(op.kind).takes_shape);
      TORCH_CHECK(fits, "not a plan: ", op.name, " has one attribute for all sizes of a value");
    }
  }
  std::vector<int64_t> depths;
  for (const auto& [how, a, b] : program.numbers) {
    const int64_t before = depths.size();
    int64_t depth = 0;
    if (how == How::Size || how == How::Sizes) {
      TORCH_CHECK(
          between(a, 0, int64_t(program.grids.size()) - 1), "not a plan: number ", before,
          " is a size of value ", a, ", which is none");
    } else if (how != How::Constant) {
      TORCH_CHECK(
          how >= How::Constant && how <= How::Larger && between(a, 0, before - 1) &&
              between(b, 0, before - 1) && isOne(a) && isOne(b),
          "not a plan: number ", before, " is made of none, or of numbers that do not precede it");
      depth = 1 + std::max(depths[a], depths[b]);
    }
    TORCH_CHECK(depth <= kMostDepth, "not a plan: number ", before, " lies deeper than ", kMostDepth);
    depths.push_back(depth);
  }
}

std::optional<Program> withNumbers(const Program& program, const std::vector<Sizes>& inputs) {
  const auto computes = [](const Operator& op) { return !op.computed.empty() || op.kind == Kind::Power; };
  return std::ranges::any_of(program.operators, computes) ? std::optional(Resolved(program, inputs).run())
                                                          : std::nullopt;
}

} // namespace jit_passes::x86
