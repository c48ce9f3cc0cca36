// Split the constant list of a recurrent layer's weights, so that each weight is a value of its own.
//
//   %w : Tensor[] = prim::Constant[value=[<Tensors>]]()
//   %y, %h, %c = aten::lstm(%x, %hx, %w, ...)
//
//     ->  %rnn.weight_ih_l0 = prim::Constant[value=<Tensor>]()
//         ...
//         %w = prim::ListConstruct(%rnn.weight_ih_l0, %rnn.weight_hh_l0, %rnn.bias_ih_l0, ...)
//
// Names are those of torch.nn. A list of another length, for example with projections, gets none.
#include "graph/operators.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

bool listsWeights(const Node* node) { return isRecurrent(node) && node->maybeSchema() != nullptr; }

// The names of the weights of a layer whose operand `params` is the list; none if the list has another length.
std::vector<std::string> weightNames(const Node* node, size_t params, size_t count) {
  const auto has_biases = constantNumber(node->input(params + 1)),
             layers = constantNumber(node->input(params + 2));
  const auto both_ways = constantNumber(node->input(params + 5));
  if (!has_biases || !layers || !both_ways) {
    return {};
  }
  std::vector<std::string> kinds{"weight_ih", "weight_hh"};
  if (*has_biases != 0) {
    kinds.insert(kinds.end(), {"bias_ih", "bias_hh"});
  }
  const auto path = moduleOf(node).first;
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < static_cast<int64_t>(*layers); ++layer) {
    for (const char* direction : {"", "_reverse"}) {
      for (const auto& kind : kinds) {
        if (*direction == '\0' || *both_ways != 0) {
          names.push_back((path.empty() ? "" : path + ".") + kind + "_l" + std::to_string(layer) + direction);
        }
      }
    }
  }
  return names.size() == count ? names : std::vector<std::string>{};
}

bool spellOutWeights(PassContext& context) {
  return changeNodes(*context.graph(), [](Node* node) {
    if (!listsWeights(node)) {
      return false;
    }
    const size_t params = *node->maybeSchema()->argumentIndexWithName("params");
    const auto constant = constantOf(node, "params");
    if (inputOf(node, "params")->node()->kind() != prim::Constant || !constant || !constant->isTensorList()) {
      return false;
    }
    const auto weights = constant->toTensorVector();
    const auto names = weightNames(node, params, weights.size());
    std::vector<Value*> spelled;
    for (size_t i = 0; i < weights.size(); ++i) {
      spelled.push_back(insertConstant(node, weights[i]));
      if (!names.empty()) {
        spelled.back()->setDebugName(names[i]);
      }
    }
    const auto type = c10::ListType::ofTensors();
    node->replaceInput(params, insertValue(node, prim::ListConstruct, spelled, node, type));
    return true;
  });
}

const RegisterPass spell_out_weights_pass{
    "spell_out_weights", "Split the lists of weights that recurrent layers take.", spellOutWeights,
    needs("inlined")};

} // namespace
} // namespace jit_passes
