#include "refusals.h"

#include "facts/shapes.h"
#include "graph/operators.h"
#include "graph_numbers.h"
#include "reader.h"
#include "x86/program/checks.h"
#include "x86/program/types.h"

namespace jit_passes::x86 {
namespace {

class Refusals {
 public:
  Refusals(const PassContext& context, bool codes)
      : context_(context), codes_(codes), reader_(context, /*sized=*/true) {}

  std::optional<std::string> of(Node* node) {
    if (keepsAxes(node)) {
      axes_[node->output()] = axesOf(mainOperand(node));
    }
    try {
      check(node);
    } catch (const Refusal& refusal) {
      return refusal.reason;
    } catch (const std::exception& error) { // a mistake in a file of operators
      const auto* known = dynamic_cast<const c10::Error*>(&error);
      TORCH_CHECK(
          false, describe(node),
          " cannot be read for a plan: ", known ? known->what_without_backtrace() : error.what());
    }
    return std::nullopt;
  }

 private:
  // Whether the node is a function of each element, a quantize or a dequantize.
  static bool keepsAxes(const Node* node) {
    return !node->inputs().empty() && node->outputs().size() == 1 && isTensor(node->output()) &&
           (keepsShape(node) || startsWith(node, "jit_passes::"));
  }

  void check(Node* node) {
    if (isPlanned(node)) {
      std::visit([&](auto&& form) { check(node, std::move(form)); }, formOf(reader_, node));
    }
  }

  void check(Node* /*node*/, SameValue /*operand*/) {}

  void check(Node* node, const Clipped& /*clip*/) {
    refuseAxes("reads", axesOf(mainOperand(node)), declarationOf(Kind::Function).most_axes);
  }

  void check(Node* node, const PlannedOperators& planned) {
    std::vector<int64_t> axes;
    for (const Value* operand : planned.operands) {
      axes.push_back(checkOperand(operand));
    }
    for (const Operator& op : planned.operators) {
      checkCounts(op);
      axes.push_back(checkAxes(op, axes));
      declarationOf(op.kind).check(op);
    }
    for (size_t i = 0; i < planned.results.size(); ++i) {
      axes_[node->output(i)] = axes[planned.results[i]];
    }
  }

  // Checks the node without its sizes. Readers of a result with too many axes are refused.
  void check(Node* node, Planned planned) {
    Operator& op = planned.op;
    const Declaration& form = declarationOf(op.kind);
    std::vector<int64_t> axes;
    for (const Value* operand : planned.operands) {
      axes.push_back(checkOperand(operand));
      op.inputs.push_back(op.inputs.size());
    }
    if (op.attributes.size() < form.attributes.least) {
      checkCounts(op); // throws: axes of the result follow from attributes
    }
    if (!axes.empty() && axes[0] == 0 && addsAxes(op)) {
      axes[0] = shapes().axes(planned.operands[0]).least;
    }
    const int64_t first = axes.empty() ? 0 : axes[0], most = axes.empty() ? 0 : std::ranges::max(axes);
    axes_[resultOf(node)] = form.least_axes(op, first, most);
    refuseAxes("reads", most, mostAxesOf(form));
    refuseAxes("gives", axesOf(resultOf(node)), mostAxesOf(form));
    numbers_.set(op, planned.computed);
    checkCounts(op);
    form.check(op);
    refuseUnless(!codes_ || hasCodes(op), "it cannot have so many numbers on integers");
  }

  // Whether the result has the axes of the first operand, and more.
  static bool addsAxes(const Operator& op) {
    const auto least = [&](int64_t axes) { return declarationOf(op.kind).least_axes(op, axes, axes); };
    return least(1) > std::max<int64_t>(least(0), 1);
  }

  // Facts about all shapes take as long to find as all other answers, and few graphs need them.
  const Shapes& shapes() {
    if (!shapes_) {
      shapes_ = std::make_unique<const Shapes>(context_, Images::Batched, /*attributes_apart=*/true);
    }
    return *shapes_;
  }

  // A layer may be quantized at run time later, and may then take more axes.
  static int64_t mostAxesOf(const Declaration& form) {
    return form.dynamic_form ? std::max(form.most_axes, Kind(form.dynamic_form).declaration().most_axes)
                             : form.most_axes;
  }

  int64_t axesOf(const Value* value) const {
    const auto found = axes_.find(value);
    return std::max(x86::axesOf(value), found == axes_.end() ? 0 : found->second);
  }

  // Returns the fewest axes that the operand can have.
  int64_t checkOperand(const Value* operand) {
    TORCH_CHECK(operand, "its `from` names an operand that it does not have");
    if (const Node* moved = movedConstant(operand->node())) {
      reader_.constant(moved->output()); // each region has a copy of the moves
    }
    if (const auto constant = reader_.constant(operand)) {
      const at::Tensor& elements = constant->first;
      refuseUnless(elements.numel() > 0, "its constant is empty");
      return elements.dim();
    }
    refuseUnless(
        isTensor(operand) || numbers_.power(operand),
        "one of its operands is a number that the model computes");
    return axesOf(operand);
  }

  const PassContext& context_;
  const bool codes_;
  const RegionReader reader_;
  std::unique_ptr<const Shapes> shapes_;
  std::unordered_map<const Value*, int64_t> axes_; // fewest axes of results, by declarations
  Program program_;                                // used for numbers only
  GraphNumbers numbers_{reader_, program_, [](const Value*) {}};
};

} // namespace

std::map<int64_t, std::string> planRefusals(
    const torch::jit::Module& module, const std::string& method, bool codes) {
  const Options no_options;
  const PassContext context(module, method, no_options);
  const auto nodes = nodesInOrder(*context.graph());
  Refusals refusals(context, codes);
  std::map<int64_t, std::string> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (auto reason = refusals.of(nodes[i])) {
      found.emplace(i, std::move(*reason));
    }
  }
  return found;
}

} // namespace jit_passes::x86
