#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/lowering.h"
#include "x86/program/checks.h"

namespace jit_passes::x86 {

const Kind Kind::Concat("concat");

namespace {

Sizes sizesOfConcat(const Operands& operands) { return joined(operands, operands.op.attributes[0]); }

Planned concat(const RegionReader& reader, Node* node) {
  Node* list = node->input(0)->node();
  refuseUnless(
      list->kind() == c10::prim::ListConstruct && !reader.isWritten(node->input(0)),
      "the list of its operands is made elsewhere");
  // A cache begins as a tensor of shape [0], which can be joined with any tensor.
  const auto isEmpty = [&](const Value* value) {
    const auto known = reader.find(value);
    return known && known->isTensor() && known->toTensor().dim() == 1 && known->toTensor().numel() == 0;
  };
  auto operands = list->inputs().vec();
  std::erase_if(operands, isEmpty);
  refuseUnless(!operands.empty(), "it joins nothing");
  const std::vector<int64_t> axis{reader.integer(node, "dim")};
  return {{Kind::Concat, "", {}, 0, axis, {}}, operands};
}

// Whether the only reader is a shuffle of the parts, which reads them in place.
bool isShuffledAlone(const Lowering& state, const Operator& concat) {
  const auto& uses = state.uses[concat.output];
  if (uses.size() != 1 || uses[0] == SIZE_MAX || state.program.operators[uses[0]].kind != Kind::Shuffle) {
    return false;
  }
  const auto& attributes = state.program.operators[uses[0]].attributes;
  const int64_t rank = state.sizes[concat.output].size(), axis = axisOf(concat.attributes[0], rank);
  return axisOf(attributes[0], rank) == axis && attributes[1] == int64_t(concat.inputs.size()) &&
         std::all_of(concat.inputs.begin(), concat.inputs.end(), [&](int64_t part) {
           return state.sizes[part][axis] == state.sizes[concat.inputs[0]][axis];
         });
}

// Lets the step that computes a value give codes of another grid, if the step has a table. The value has no other
// reader.
void rescale(Lowering& state, size_t id, const Grid* grid) {
  const auto maker = std::find_if(
      state.result.steps.begin(), state.result.steps.end(),
      [&](const Step& step) { return step.output == id; });
  const auto hasTable = [](const Step& step) {
    return step.elementwise || step.does == Does::Convolve || step.does == Does::ConvolveTransposed;
  };
  if (maker == state.result.steps.end() || !hasTable(*maker)) {
    return;
  }
  at::Tensor table = rescaled(*state.memory(id).grid, *grid);
  if (maker->table) {
    const auto codes = at::from_blob(const_cast<uint8_t*>(maker->table), {256}, at::kByte);
    table = table.index_select(0, codes.to(at::kInt));
  }
  maker->own_tables = {table};
  maker->table = table.const_data_ptr<uint8_t>();
  state.memory(id).grid = grid;
}

void lowerConcat(Lowering& state, size_t index) {
  const Operator& op = state.program.operators[index];
  if (isShuffledAlone(state, op)) {
    state.joined.emplace(op.output, &op);
    return;
  }
  const int64_t along = axisOf(op.attributes[0], state.sizes[op.output].size());
  const int64_t axis = state.memory(state.primary[op.inputs[0]]).axis;
  const Grid* grid = &state.program.grids[op.output];
  std::vector<size_t> operands;
  for (const int64_t input : op.inputs) {
    operands.push_back(state.want(input, axis));
    if (along == axis && state.uses[input].size() == 1 &&
        !sameGrid(*state.memory(operands.back()).grid, *grid)) {
      rescale(state, operands.back(), grid);
    }
  }
  state.primary[op.output] = state.joins.place(state.result, index, operands, axis);
}

// Attributes: axis.
const RegisterOperator concat_operator{
    {.name = "concat",
     .inputs = {1, 4096},
     .attributes = {1, 1},
     .types = Types::Same,
     .from = {{"cat", concat}},
     .check = checkAllAxes,
     .infer = sizesOfConcat,
     .joins = axisOfAttribute,
     .lower = lowerConcat}};

} // namespace
} // namespace jit_passes::x86
