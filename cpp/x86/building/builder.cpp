#include "builder.h"

#include "from_graph.h"
#include "graph/dialect.h"
#include "graph/names.h"
#include "graph/operators.h"
#include "graph_numbers.h"
#include "moved_codes.h"
#include "passes/quantization/fold_lookup_tables.h"
#include "reader.h"
#include "recurrent_layers.h"
#include "units.h"
#include "x86/program/made.h"
#include "x86/program/simplify.h"
#include "x86/program/sums.h"

namespace jit_passes::x86 {
namespace {

using torch::jit::Block;
using torch::jit::Graph;

const auto lookup_table_kind = c10::Symbol::fromQualString("jit_passes::lookup_table");

// A float value that a later quantize will turn into codes: an operator, then a clip, then operators that move the
// result.
struct Pending {
  Operator op;
  std::optional<int64_t> floats = {}; // its result in float32, if that is computed too
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  std::vector<Operator> moves = {};
  // Values of the graph on the way, each after this number of moves.
  std::vector<std::pair<const Value*, size_t>> names = {};
};

// Writes the program of a region, node by node.
class Walk : ProgramWriter {
 public:
  Walk(const RegionReader& reader, Block* block, const NodeNames& names)
      : reader_(reader), block_(block), names_(names) {}

  void run() {
    for (Node* node : block_->nodes()) {
      try {
        visit(node);
      } catch (const Refusal& refusal) {
        TORCH_CHECK(false, describe(node), " cannot be part of a plan: ", refusal.reason);
      }
    }
  }

  Program program() {
    program_.inputs = static_cast<int64_t>(block_->inputs().size()) - 1;
    for (const Value* output : block_->outputs()) {
      const Node* tuple = output->node();
      const bool several = tuple->kind() == c10::prim::TupleConstruct;
      for (const Value* value : several ? tuple->inputs() : at::ArrayRef<const Value*>(output)) {
        const auto known = floats_.find(value);
        TORCH_CHECK(
            known != floats_.end(), "a region returns the result of ", describe(value->node()),
            ", which no operator of a plan gives");
        program_.outputs.push_back(known->second);
      }
    }
    numbers_.settle([&](const Value* tensor) {
      const auto closed = closed_.find(tensor);
      return closed != closed_.end() ? std::optional(closed->second) : valueOf(tensor);
    });
    simplify(program_);
    check(program_);
    return std::move(program_);
  }

 private:
  struct Stored {
    int64_t value, shift;
  };

  void visit(Node* node) {
    if (isSilent(node)) {
      return;
    }
    for (const Value* value : node->inputs()) {
      refuseUnless(!reader_.isWritten(value), "something writes to its operand");
    }
    for (const Value* value : node->outputs()) {
      refuseUnless(!reader_.isWritten(value), "something writes to its result");
      refuseAxes("gives", axesOf(value), kMostMovedAxes);
    }
    if (node->kind() == quantize) {
      visitQuantize(node);
    } else if (node->kind() == dequantize) {
      visitDequantize(node);
    } else if (node->kind() == lookup_table_kind) {
      visitTable(node);
    } else if (isIdentity(node)) {
      visitIdentity(node);
    } else if (node->kind() == c10::prim::ListUnpack) {
      visitParts(node);
    } else if (isClip(node)) {
      visitClip(node);
    } else {
      visitOperator(node);
    }
  }

  std::string nameOf(const Node* node) const {
    const auto found = names_.find(node);
    return found == names_.end() ? node->kind().toUnqualString() : found->second;
  }

  void visitQuantize(Node* node) {
    const Codes codes = reader_.codesOf(node);
    const Value* x = node->input(0);
    int64_t value;
    if (const auto pending = pending_.find(x); pending != pending_.end()) {
      value = close(pending->second, codes.grid);
    } else {
      const auto known = valueOf(x);
      refuseUnless(known.has_value(), "it quantizes a value that no operator of a plan gives");
      value = requantized(node, *known, codes.grid);
    }
    codes_[node->output()] = {value, codes.shift};
  }

  int64_t rounded(const std::string& name, int64_t floats, const Grid& to) {
    return emit(quantizeOperator(name), {floats}, to);
  }

  // The program's value for an input of the region.
  std::optional<int64_t> inputOf(const Value* value) {
    const auto& inputs = block_->inputs();
    const auto found = std::find(inputs.begin(), inputs.end(), value);
    if (found == inputs.end()) {
      return std::nullopt;
    }
    const auto [known, added] = inputs_.emplace(value, 0);
    if (added) {
      known->second = emit(inputOperator(value->debugName(), found - inputs.begin() - 1), {}, kFloat32);
      axes_.back() = axesOf(value);
    }
    return known->second;
  }

  std::optional<int64_t> valueOf(const Value* value) {
    const auto coded = floats_.find(value);
    return coded != floats_.end() ? coded->second : inputOf(value);
  }

  // The value with the codes of another grid. If the grid is equal, the value itself.
  int64_t requantized(const Node* node, int64_t from, const Grid& to) {
    const Grid& grid = program_.grids[from];
    if (grid.is_float) {
      return rounded("quantize of " + node->input(0)->debugName(), from, to);
    }
    if (grid.scale == to.scale && grid.zero_point == to.zero_point && grid.low >= to.low &&
        grid.high <= to.high) {
      return from;
    }
    return emit(tableOperator(nameOf(node), rescaled(grid, to)), {from}, to);
  }

  int64_t close(const Pending& pending, Grid grid) {
    const Grid whole = grid;
    grid.low = std::isfinite(pending.low) ? codeOf(pending.low, whole) : grid.low;
    grid.high = std::isfinite(pending.high) ? std::max(codeOf(pending.high, whole), grid.low) : grid.high;
    std::vector<int64_t> values{
        pending.floats ? rounded(pending.op.name, *pending.floats, grid)
                       : emit(pending.op, pending.op.inputs, grid)};
    for (const Operator& move : pending.moves) {
      grid = movedGrid(move.kind, grid);
      values.push_back(emit(move, {values.back()}, grid));
    }
    for (const auto& [name, moves] : pending.names) {
      closed_.emplace(name, values[moves]);
    }
    return values.back();
  }

  void visitDequantize(Node* node) {
    if (reader_.find(node->input(0))) {
      return; // a weight: the operator that reads it decodes it
    }
    const auto codes = codes_.find(node->input(0));
    refuseUnless(codes != codes_.end(), "its codes come from an operator that no plan has");
    const auto [scale, zero_point] = reader_.scaleOf(node);
    const Grid& grid = program_.grids[codes->second.value];
    refuseUnless(
        scale == grid.scale && zero_point + codes->second.shift == grid.zero_point,
        "its scale or zero point differs from quantize's");
    floats_[node->output()] = codes->second.value;
  }

  void visitTable(Node* node) {
    const auto codes = codes_.find(node->input(0));
    refuseUnless(codes != codes_.end(), "its codes come from an operator that no plan has");
    const auto [table, shift] =
        reader_.tableOf(node, program_.grids[codes->second.value], codes->second.shift);
    const Grid grid = reader_.gridOfTable(node, table, shift);
    const int64_t value = emit(tableOperator(nameOf(node), table), {codes->second.value}, grid);
    codes_[node->output()] = {value, shift};
  }

  // Notes that a value is quantized later.
  void wait(const Value* value, Pending pending) {
    pending.names.emplace_back(value, pending.moves.size());
    pending_.emplace(value, std::move(pending));
  }

  void visitIdentity(Node* node) {
    if (const auto pending = pending_.find(node->input(0)); pending != pending_.end()) {
      wait(node->output(), pending->second);
      return;
    }
    const auto value = valueOf(node->input(0));
    refuseUnless(value.has_value(), "its operand is in float");
    floats_[node->output()] = *value;
  }

  void visitClip(Node* node) {
    const auto [low, high] = *clipOf(reader_, node);
    if (const auto found = pending_.find(node->input(0)); found != pending_.end()) {
      Pending pending = found->second;
      const bool pads = std::any_of(pending.moves.begin(), pending.moves.end(), [](const Operator& op) {
        return op.kind == Kind::Pad;
      });
      refuseUnless(!pads || (low <= 0 && high >= 0), "it clips the zeros of a padding");
      pending.low = std::min(std::max(pending.low, low), high);
      pending.high = std::min(std::max(pending.high, low), high);
      wait(node->output(), std::move(pending));
      return;
    }
    const auto coded = floats_.find(node->input(0));
    // Zero has a code; another end may lie between two codes.
    const bool at_a_code = low == 0 && std::isinf(high);
    if (coded == floats_.end() || program_.grids[coded->second].is_float || !at_a_code) {
      return visitPlanned(node, clipping(node, low, high));
    }
    const int64_t from = coded->second;
    Grid grid = program_.grids[from];
    grid.low = std::max(grid.low, grid.zero_point), grid.high = std::max(grid.high, grid.low);
    auto table = at::arange(256).clamp(grid.low, 255).to(at::kByte);
    floats_[node->output()] = emit(tableOperator(nameOf(node), table), {from}, grid);
  }

  // For a node that moves codes, or a value that is quantized later.
  void move(const Node* node, Planned planned, const Value* result) {
    const Value* from = node->input(0);
    Operator& op = planned.op;
    op.name = nameOf(node);
    numbers_.set(op, planned.computed);
    if (const auto found = pending_.find(from); found != pending_.end()) {
      Pending pending = found->second;
      pending.moves.push_back(std::move(op));
      wait(result, std::move(pending));
      return;
    }
    const int64_t value = operandOf(from, hasFloats(op.kind));
    const Grid grid = movedGrid(op.kind, program_.grids[value]);
    floats_[result] = emit(std::move(op), {value}, grid);
  }

  void visitParts(Node* node) {
    Node* list = node->input(0)->node();
    refuseUnless(keepsCodes(list), "its list comes from an operator that no plan has");
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      Planned part = plannedOperator(reader_, list);
      part.op.attributes[PartAttributes::Number] = i;
      move(list, std::move(part), node->output(i));
    }
  }

  int64_t operandOf(const Value* operand, bool may_be_float) {
    const auto value = valueOf(operand);
    if (value && (may_be_float || !program_.grids[*value].is_float)) {
      return *value;
    }
    if (auto power = may_be_float ? numbers_.power(operand) : std::nullopt) {
      return emit(std::move(*power), {}, kFloat32);
    }
    const auto constant = reader_.constant(operand);
    const bool fits = constant && (may_be_float || !constant->second.is_float);
    refuseUnless(fits, "its operand ", operand->debugName(), " is in float");
    const auto& [elements, grid] = *constant;
    return emit(constantOperator(operand->debugName(), elements), {}, grid);
  }

  void visitRecurrent(Node* node) {
    std::vector<int64_t> operands;
    for (const Value* operand : recurrentOperands(reader_, node)) {
      operands.push_back(operandOf(operand, true));
    }
    const auto results = writeRecurrent(reader_, node, nameOf(node), operands, *this);
    for (size_t i = 0; i < results.size(); ++i) {
      floats_[node->output(i)] = results[i];
    }
  }

  void visitOperator(Node* node) {
    if (jit_passes::isRecurrent(node)) {
      return visitRecurrent(node);
    }
    if (keepsCodes(node)) {
      Planned planned = plannedOperator(reader_, node);
      if (isTensor(resultOf(node))) { // for a list, the node that unpacks it moves codes
        move(node, std::move(planned), resultOf(node));
      }
      return;
    }
    visitPlanned(node, plannedOperator(reader_, node));
  }

  void visitPlanned(Node* node, Planned planned) {
    planned.op.name = nameOf(node);
    numbers_.set(planned.op, planned.computed);
    takeSum(node, planned);
    for (const Value* operand : planned.operands) {
      if (const auto joined = joined_.find(operand); joined != joined_.end()) {
        planned.op.inputs.insert(planned.op.inputs.end(), joined->second.begin(), joined->second.end());
        continue;
      }
      planned.op.inputs.push_back(operandOf(operand, hasFloats(planned.op.kind)));
    }
    const bool floats =
        std::ranges::any_of(planned.op.inputs, [&](int64_t value) { return program_.grids[value].is_float; });
    if (!floats && isReadInParts(node)) {
      joined_[node->output()] = planned.op.inputs;
      return;
    }
    if (const auto grid = joinedGrid(planned.op, program_.grids)) {
      floats_[node->output()] = emit(planned.op, planned.op.inputs, *grid);
      return;
    }
    const bool later = isQuantizedLater(node->output()) || isSummed(node, planned.op);
    const bool in_float = floats || !x86::hasCodes(planned.op);
    const bool has_form = declarationOf(planned.op.kind).in_floats != nullptr;
    Pending pending{planned.op};
    if (later ? in_float : !has_form && (in_float || hasFloats(planned.op.kind))) {
      pending.floats = emitFloats(std::move(planned.op));
    } else if (!later) {
      pending.floats = emitFloats(inFloats(std::move(planned.op)));
    }
    if (!later) {
      floats_[node->output()] = *pending.floats;
      return;
    }
    wait(node->output(), std::move(pending));
  }

  // If a layer's result that is quantized later is added to codes, and the sum is quantized, the sum becomes part of
  // the layer. Otherwise the layer gives float32.
  void takeSum(const Node* node, Planned& planned) {
    for (size_t own = 0; own < planned.operands.size(); ++own) {
      const auto found = pending_.find(planned.operands[own]);
      if (found == pending_.end()) {
        continue;
      }
      if (planned.op.kind == Kind::Add && isQuantizedLater(node->output()) &&
          hasCodes(planned.operands[1 - own])) {
        planned = {withSum(found->second.op, planned.op, own), {planned.operands[1 - own]}};
        return;
      }
      floats_[planned.operands[own]] = emitFloats(inFloats(found->second.op));
    }
  }

  // Whether a value has codes already.
  bool hasCodes(const Value* value) const {
    const auto known = floats_.find(value);
    if (known != floats_.end()) {
      return !program_.grids[known->second].is_float;
    }
    const auto constant = reader_.constant(value);
    return constant && !constant->second.is_float;
  }

  static Operator inFloats(Operator op) {
    const char* kind = declarationOf(op.kind).in_floats;
    refuseUnless(kind != nullptr, "its result is read in float");
    op.kind = kindNamed(kind);
    return op;
  }

  const RegionReader& reader_;
  Block* block_;
  const NodeNames& names_;
  std::unordered_map<const Value*, Stored> codes_;    // for values in codes
  std::unordered_map<const Value*, int64_t> floats_;  // for float values: their codes, or float32
  std::unordered_map<const Value*, int64_t> inputs_;  // for inputs of the region
  std::unordered_map<const Value*, Pending> pending_; // for values that are quantized later
  // For values that have been quantized: their codes, or the codes before they are moved.
  std::unordered_map<const Value*, int64_t> closed_;
  GraphNumbers numbers_{reader_, program_, [this](const Value* tensor) { inputOf(tensor); }};
  // For concatenations that are never rounded: their parts.
  std::unordered_map<const Value*, std::vector<int64_t>> joined_;
};

} // namespace

Program build(const torch::jit::Module& region) {
  const Options no_options;
  PassContext context(cloneModule(region, "forward"), "forward", no_options);
  NodeNames names = nodeNames(*context.graph()); // names in the model's graph
  requantizeMoved(*context.graph());
  foldLookupTables(context);
  const auto graph = context.graph();
  for (const Value* input : graph->inputs().slice(1)) {
    TORCH_CHECK(
        input->type()->isSubtypeOf(*c10::TensorType::get()), "a region takes tensors, and ",
        input->debugName(), " is ", *input->type());
  }
  const RegionReader reader(context);
  for (const auto& [node, name] : nodeNames(*graph)) {
    names.emplace(node, name);
  }
  Walk walk(reader, graph->block(), names);
  walk.run();
  return walk.program();
}

} // namespace jit_passes::x86
