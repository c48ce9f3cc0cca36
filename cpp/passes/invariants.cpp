// Invariants that hold once a stage is done. Each looks at every node once.
#include "graph/operators.h"
#include "graph/places.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

using Problem = std::optional<std::string>;

Problem firstProblem(const PassContext& context, const std::function<Problem(const Node*)>& problemOf) {
  Problem first;
  nodesWhere(*context.graph(), [&](const Node* node) {
    if (!first) {
      first = problemOf(node);
    }
    return false;
  });
  return first;
}

bool isMatrix(const Value* value) {
  const auto tensor = constantTensor(value);
  return tensor && tensor->dim() == 2 && tensor->is_floating_point();
}

bool hasPaddingMode(const Node* node) {
  const auto op = weightedOperator(node);
  if (!op || op->spatial_dims == 0 || op->transposed || !constantTensor(node, "weight") ||
      !isConstant(inputOf(node, "padding")) || !isConstant(inputOf(node, "dilation"))) {
    return false;
  }
  return constantOf(node, "padding")->isString();
}

// Other spellings may be left where the graph does not know enough, such as for computed weights.
Problem otherSpelling(const Node* node) {
  static const auto convolution = symbol("aten::_convolution");
  static const auto mm = symbol("aten::mm");
  static const auto never = symbols({"aten::relu6", "aten::hardtanh"});
  const auto kind = node->kind();
  if (never.count(kind)) {
    return "a clip is no relu or clamp: " + describe(node);
  }
  if (kind == convolution && constantTensor(node, "weight") && constantFrom(node, 3)) {
    return "a convolution is as tracing records it: " + describe(node);
  }
  if ((kind == aten::matmul || kind == mm) && isMatrix(node->input(1))) {
    return "a product by a constant matrix is no linear: " + describe(node);
  }
  return hasPaddingMode(node) ? Problem("padding is a word: " + describe(node)) : std::nullopt;
}

Problem checkCanonical(const PassContext& context) { return firstProblem(context, otherSpelling); }

Problem checkObservedOnce(const PassContext& context) {
  std::unordered_set<const Value*> observed;
  return firstProblem(context, [&](const Node* node) -> Problem {
    const bool twice = isObserver(node) && !observed.insert(mainOperand(node)).second;
    return twice ? Problem("a value has two observers: " + describe(mainOperand(node)->node()))
                 : std::nullopt;
  });
}

struct Grid {
  c10::IValue scale, zero_point;
};

std::optional<Grid> gridOf(const Node* node) {
  if (!isConstant(node->input(1)) || !isConstant(node->input(2))) {
    return std::nullopt;
  }
  return Grid{*constantOf(node->input(1)), *constantOf(node->input(2))};
}

bool isPositive(const c10::IValue& scale) {
  if (!scale.isTensor()) {
    return scale.toDouble() > 0 && std::isfinite(scale.toDouble());
  }
  const auto values = scale.toTensor();
  if (values.numel() == 0) {
    return true;
  }
  const auto [low, high] = at::aminmax(values); // NaN if one value is
  return low.item<double>() > 0 && std::isfinite(high.item<double>());
}

bool holds(const c10::IValue& number, double low, double high) {
  if (!number.isTensor()) {
    return low <= static_cast<double>(number.toInt()) && static_cast<double>(number.toInt()) <= high;
  }
  const auto values = number.toTensor();
  if (values.numel() == 0) {
    return true;
  }
  const auto [least, largest] = at::aminmax(values);
  return low <= least.item<double>() && largest.item<double>() <= high;
}

bool areEqual(const c10::IValue& one, const c10::IValue& other) {
  if (!one.isTensor() || !other.isTensor()) {
    return one == other;
  }
  return one.toTensor().is_same(other.toTensor()) || at::equal(one.toTensor(), other.toTensor());
}

// The operands of quantize: (x, scale, zero_point, [axis,] quant_min, quant_max, dtype).
Problem badCodes(const Node* node, const Grid& grid) {
  const size_t last = node->inputs().size() - 1;
  const auto low = constantNumber(node->input(last - 2)), high = constantNumber(node->input(last - 1)),
             dtype = constantNumber(node->input(last));
  if (!low || !high || !dtype) {
    return std::nullopt;
  }
  if (*low >= *high) {
    return "it has no two codes";
  }
  return holds(grid.zero_point, *low, *high) ? std::nullopt : Problem("its zero point is no code of its");
}

Problem badGrid(const Node* node) {
  const bool quantizes = startsWith(node, "jit_passes::quantize");
  if (!quantizes && !startsWith(node, "jit_passes::dequantize")) {
    return std::nullopt;
  }
  const auto grid = gridOf(node);
  if (!grid) {
    return std::nullopt;
  }
  Problem problem;
  if (!isPositive(grid->scale)) {
    problem = "its scale is not positive and finite";
  } else if (quantizes) {
    problem = badCodes(node, *grid);
  } else if (startsWith(inputOf(node, "q")->node(), "jit_passes::quantize")) {
    const auto written = gridOf(inputOf(node, "q")->node());
    if (written &&
        !(areEqual(written->scale, grid->scale) && areEqual(written->zero_point, grid->zero_point))) {
      problem = "it reads codes with another scale or zero point than they were written with";
    }
  } else if (const auto codes = constantTensor(node, "q")) {
    problem = at::isIntegralType(codes->scalar_type(), false) ? std::nullopt
                                                              : Problem("its constant codes are no integers");
  }
  return problem ? Problem(*problem + ": " + describe(node)) : std::nullopt;
}

Problem checkValidGrids(const PassContext& context) { return firstProblem(context, badGrid); }

Problem checkNoDialect(const PassContext& context) {
  return firstProblem(context, [](const Node* node) -> Problem {
    return isQuantization(node) ? Problem("an operator of the dialect is left: " + describe(node))
                                : std::nullopt;
  });
}

const RegisterInvariant canonical{
    "canonical", "Convolutions, linears and clips have one spelling each.", checkCanonical};
const RegisterInvariant observed_once{"observed_once", "No value has two observers.", checkObservedOnce};
const RegisterInvariant valid_grids{
    "valid_grids", "Scales are positive, zero points are codes, and both agree.", checkValidGrids};
const RegisterInvariant no_dialect{
    "no_dialect", "No operator of the dialect's quantization.", checkNoDialect};

} // namespace
} // namespace jit_passes
