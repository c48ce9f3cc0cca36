// Pack weights ahead of time, for the engine of the option `engine`.
//
//   %w = aten::_make_per_channel_quantized_tensor(%codes, %scales, %zero_points, %axis)
//   %p = quantized::conv2d_prepack(%w, %bias, ...)
//     ->  %p = prim::GetAttr[name="packed_0"](%self)
//
// Also make the parameters of recurrent cells, quantized::make_quantized_cell_params_dynamic, of two packed weights
// each.
//
// A saved file holds unpacked weights. Loading packs them for the engine of the process that loads.
#include <ATen/Context.h>

#include "graph/attributes.h"
#include "graph/graph.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

class EngineGuard {
 public:
  explicit EngineGuard(const std::string& name) : before_(at::globalContext().qEngine()) {
    for (const auto engine : at::Context::supportedQEngines()) {
      if (at::toString(engine) == name || lowered(at::toString(engine)) == name) {
        at::globalContext().setQEngine(engine);
        return;
      }
    }
    TORCH_CHECK(false, "this build of PyTorch has no quantized engine '", name, "'");
  }
  ~EngineGuard() { at::globalContext().setQEngine(before_); }
  EngineGuard(const EngineGuard&) = delete;
  EngineGuard& operator=(const EngineGuard&) = delete;

 private:
  static std::string lowered(std::string name) {
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    return name;
  }
  at::QEngine before_;
};

bool makesCell(const Node* node) {
  static const auto make = symbol("quantized::make_quantized_cell_params_dynamic");
  return node->kind() == make;
}

// Whether the node packs weights for a kernel.
bool isPrepack(const Node* node) {
  const std::string_view name = node->kind().toQualString();
  if (!name.starts_with("quantized::") || !name.ends_with("_prepack")) {
    return makesCell(node);
  }
  const auto& uses = node->output()->uses();
  return uses.empty() || std::ranges::any_of(uses, [](const Use& use) { return !makesCell(use.user); });
}

// The node's result, if its operands follow from constants; these are computed first.
std::optional<c10::IValue> evaluate(const Node* node) {
  if (node->kind() == prim::Constant) {
    return constantOf(node->output());
  }
  torch::jit::Stack stack;
  for (const Value* input : node->inputs()) {
    auto operand = evaluate(input->node());
    if (!operand) {
      return std::nullopt;
    }
    stack.push_back(std::move(*operand));
  }
  if (!node->maybeOperator() || node->outputs().size() != 1) {
    return std::nullopt;
  }
  node->getOperation()(stack);
  return stack.at(0);
}

bool foldPrepack(PassContext& context) {
  const EngineGuard guard(context.option("engine").toStringRef());
  const auto graph = context.graph();
  int64_t count = 0;
  return changeNodes(*graph, [&](Node* node) {
    if (!isPrepack(node)) {
      return false;
    }
    auto packed = evaluate(node);
    TORCH_CHECK(packed, "the operands of ", describe(node), " are not constants");
    const auto name = "packed_" + std::to_string(count++);
    addAttribute(context.module(), name, packed->type(), *packed);
    torch::jit::WithInsertPoint insert_at(node);
    replaceComputation(node, insertGetAttr(*graph, graph->inputs().at(0), name));
    return true;
  });
}

const RegisterPass fold_prepack_pass{
    "fold_prepack", "Pack constant weights for the quantized engine.", foldPrepack, needs("no_observers"),
    takes({{"engine", "str"}})};

} // namespace
} // namespace jit_passes
