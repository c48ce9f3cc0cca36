// Replace observers and fake quantizations by quantize and dequantize with the parameters found.
//
//   %y = aten::conv2d(...)                         ->  %y = aten::conv2d(...)
//   jit_passes::observe_histogram(%y, %range, ...)     %q = jit_passes::quantize(%y, scale, zero_point, ...)
//                                                      %d = jit_passes::dequantize(%q, scale, zero_point)
//
//   %y = jit_passes::train_lsq(%x, %scale, ...)    ->  %q = jit_passes::quantize(%x, scale, zero_point, ...)
//                                                      %d = jit_passes::dequantize(%q, scale, zero_point)
//
// The option `parameters` has a dict for each place, by its id: scale, zero_point, axis (None per tensor),
// quant_min, quant_max and dtype, as quantize takes them, and rounding. Both operators then carry the id. A place
// whose parameters are chosen at run time has qscheme and range_form instead of scale, zero_point, axis and
// rounding:
//
//   %s, %z = jit_passes::choose_qparams(%x, quant_min, quant_max, qscheme, range_form)
//   %q = jit_passes::quantize_dynamic(%x, %s, %z, quant_min, quant_max, dtype)
//   %d = jit_passes::dequantize_dynamic(%q, %s, %z)
//
// These carry no id, since they have no fixed parameters to look up. A place without parameters, for example one
// that no batch has reached, leaves its value in float. A value that trained at two places, one after the other, is
// quantized twice.
//
// A value that is rounded otherwise than halves to even goes through fake_quantize first, so quantize has nothing
// left to round.
//
// All later uses of %y see %d. Edges and the observers' buffers are removed.
#include <unordered_set>

#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/places.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

// The dict of one place.
using Parameters = c10::impl::GenericDict;

Value* rounded(Node* before, Value* value, const Parameters& parameters) {
  if (parameters.at("rounding").toStringRef() == "half_even") {
    return value;
  }
  const auto constant = [&](const char* name) { return insertConstant(before, parameters.at(name)); };
  const auto channels = [&](const char* name) {
    const auto given = parameters.at(name);
    const auto numbers =
        given.isTensor() ? given.toTensor() : at::scalar_tensor(given.toScalar(), at::kDouble);
    return insertConstant(before, numbers.to(at::kFloat).reshape({-1}));
  };
  const std::vector<Value*> operands{
      value,
      channels("scale"),
      channels("zero_point"),
      constant("quant_min"),
      constant("quant_max"),
      constant("axis"),
      constant("rounding")};
  return insertValue(before, fake_quantize, operands, before);
}

Value* quantizeDynamically(Node* before, Value* value, const Parameters& parameters) {
  const auto constant = [&](const char* name) { return insertConstant(before, parameters.at(name)); };
  Value *low = constant("quant_min"), *high = constant("quant_max");
  const std::vector<Value*> range{value, low, high, constant("qscheme"), constant("range_form")};
  const auto chosen = insertNode(before, choose_qparams, range, before, /*outputs=*/2)->outputs();
  const std::vector<Value*> operands{value, chosen[0], chosen[1], low, high, constant("dtype")};
  Value* codes = insertValue(before, quantize_dynamic, operands, before);
  return insertValue(before, dequantize_dynamic, {codes, chosen[0], chosen[1]}, before);
}

Value* quantizeDequantize(Node* before, Value* value, const Parameters& parameters, int64_t place) {
  if (parameters.contains("range_form")) {
    return quantizeDynamically(before, value, parameters);
  }
  const bool per_channel = !parameters.at("axis").isNone();
  const auto constant = [&](const char* name) { return insertConstant(before, parameters.at(name)); };
  std::vector<Value*> grid{constant("scale"), constant("zero_point")};
  if (per_channel) {
    grid.push_back(constant("axis"));
  }
  std::vector<Value*> operands{rounded(before, value, parameters)};
  operands.insert(operands.end(), grid.begin(), grid.end());
  operands.insert(operands.end(), {constant("quant_min"), constant("quant_max"), constant("dtype")});
  const char* suffix = per_channel ? "_per_channel" : "";
  Node* quantize = insertNode(before, symbol(std::string("jit_passes::quantize") + suffix), operands, before);
  grid.insert(grid.begin(), quantize->output());
  Node* dequantize = insertNode(before, symbol(std::string("jit_passes::dequantize") + suffix), grid, before);
  setPlace(quantize, place);
  setPlace(dequantize, place);
  return dequantize->output();
}

// Also destroys operands without other uses: its buffers, name and specification.
void destroyObserver(Node* observer) {
  // A set, since one constant may be several operands.
  const std::unordered_set<Value*> operands(observer->inputs().begin() + 1, observer->inputs().end());
  observer->destroy();
  for (Value* operand : operands) {
    const bool observers_own = isConstant(operand) || operand->node()->kind() == prim::GetAttr;
    if (observers_own && !operand->hasUses()) {
      operand->node()->destroy();
    }
  }
}

// The value without the copy that insert_fake_quantize has made for autograd. Only this copy: the model itself may
// have made another copy, with writes in between.
Value* uncopied(Node* trained) {
  Node* maker = trained->prev();
  while (maker->kind() == prim::Constant) {
    maker = maker->prev();
  }
  const bool copied = maker->kind() == aten::clone && maker->output() == mainOperand(trained);
  return copied ? inputOf(maker, "self") : mainOperand(trained);
}

bool insertQuantizeDequantize(PassContext& context) {
  const auto graph = context.graph();
  const auto parameters = context.option("parameters").toGenericDict();
  const auto places = placesOf(*graph);
  for (Node* place : places) {
    const int64_t id = placeIdOf(place);
    const auto found = parameters.find(id);
    const bool quantized = found != parameters.end() && !found->value().isNone();
    if (isTrained(place)) {
      Value* value = uncopied(place);
      const auto replaced = [&] {
        return quantizeDequantize(place, value, found->value().toGenericDict(), id);
      };
      replaceNode(place, quantized ? replaced() : value);
      continue;
    }
    if (quantized) {
      Value* value = mainOperand(place);
      const auto uses = value->uses(); // before quantize adds its own use
      Value* replacement = quantizeDequantize(place, value, found->value().toGenericDict(), id);
      for (const auto& use : uses) {
        if (!isObserver(use.user)) {
          use.user->replaceInput(use.offset, replacement);
        }
      }
    }
  }
  for (Node* observer : placesOf(*graph)) {
    destroyObserver(observer);
  }
  replaceNodes(*graph, [](Node* node) { return node->kind() == edge ? inputOf(node, "x") : nullptr; });
  return !places.empty();
}

std::optional<std::string> checkNoObservers(const PassContext& context) {
  const auto places = placesOf(*context.graph());
  return places.empty() ? std::nullopt : std::optional("an observer is left: " + describe(places.front()));
}

const RegisterInvariant no_observers{"no_observers", "No observers.", checkNoObservers};
const RegisterPass insert_quantize_dequantize_pass{
    "insert_quantize_dequantize", "Replace observers and training operators by quantize and dequantize.",
    insertQuantizeDequantize,     needs("inlined"),
    ensures("no_observers"),      takes({{"parameters", "dict"}})};

} // namespace
} // namespace jit_passes
