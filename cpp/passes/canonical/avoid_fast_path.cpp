// Compute PyTorch's transformer modules by single operators, which can be quantized. PyTorch's fused operators, the
// fast path of inference without gradients, contain the linear layers.
//
//   %done : bool, %r : Tensor = prim::If(%no_gradients)
//     block0():
//       %y = aten::_transformer_encoder_layer_fwd(...)    ->   %done = False
//       -> (True, %y)
//     block1():
//       -> (False, %uninitialized)
//
// Scripted modules have both paths, and choose by whether gradients are recorded. The slow path comes after the
// branch.
//
//   %y = aten::_transformer_encoder_layer_fwd(%x, ...)    ->   %q = aten::linear(%x, ...) and so on
//
// Traced modules have only the fused operator. Its formula replaces it.
//
//   %n = aten::_nested_tensor_from_mask(%x, %keep, ...)   ->   %x
//   %p = aten::to_padded_tensor(%y, 0, %size)             ->   aten::masked_fill(%y, %padding, 0)
//
// Only fused operators compute on nested tensors. Instead, padding is masked, and set to zero in the end. Attention
// of a query to other keys does not occur here: PyTorch's modules never fuse it.
#include "graph/calls.h"
#include "graph/graph.h"
#include "graph/registry.h"

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/resolver.h>

namespace jit_passes {
namespace {

const auto fused_layer = symbol("aten::_transformer_encoder_layer_fwd");
const auto fused_attention = symbol("aten::_native_multi_head_attention");
const auto nested_from_mask = symbol("aten::_nested_tensor_from_mask");
const auto to_padded = symbol("aten::to_padded_tensor");

// The computation of the fused operators. Like these, it treats a mask of floats as a mask of bools.
const char* const formula = R"SCRIPT(
def heads_of(x: Tensor, width: int, heads: int, w: Tensor, b: Tensor) -> Tensor:
    return torch.unflatten(torch.linear(x, w, b), 2, [3, heads, width // heads]).permute([2, 0, 3, 1, 4])

def weights_of(qkv: Tensor, features: int, mask: Optional[Tensor], mask_type: Optional[int]) -> Tensor:
    q, k = torch.select(qkv, 0, 0), torch.select(qkv, 0, 1)
    scores = torch.matmul(q * (1.0 / torch.sqrt(features)), torch.transpose(k, 2, 3))
    if mask is not None:
        hidden = mask != 0
        if mask_type is not None and mask_type == 1:
            hidden = hidden.reshape([q.size(0), 1, 1, q.size(2)])
        scores = torch.masked_fill(scores, hidden, float('-inf'))
    return torch.softmax(scores, 3)

def joined(y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.linear(torch.flatten(y.permute([0, 2, 1, 3]), 2), w, b)

def attend(x: Tensor, width: int, heads: int, w: Tensor, b: Tensor, out_w: Tensor, out_b: Tensor,
           mask: Optional[Tensor], mask_type: Optional[int]) -> Tensor:
    qkv = heads_of(x, width, heads, w, b)
    v = torch.select(qkv, 0, 2)
    if mask is None:
        y = torch.scaled_dot_product_attention(torch.select(qkv, 0, 0), torch.select(qkv, 0, 1), v)
    else:
        y = torch.matmul(weights_of(qkv, width // heads, mask, mask_type), v)
    return joined(y, out_w, out_b)

def _native_multi_head_attention(
        q: Tensor, k: Tensor, v: Tensor, width: int, heads: int, w: Tensor, b: Tensor, out_w: Tensor,
        out_b: Tensor, mask: Optional[Tensor], need_weights: bool, average: bool,
        mask_type: Optional[int]) -> Tuple[Tensor, Tensor]:
    if need_weights:
        qkv = heads_of(q, width, heads, w, b)
        weights = weights_of(qkv, width // heads, mask, mask_type)
        y = joined(torch.matmul(weights, torch.select(qkv, 0, 2)), out_w, out_b)
        if average:
            weights = torch.mean(weights, [1])
    else:
        y = attend(q, width, heads, w, b, out_w, out_b, mask, mask_type)
        weights = y
    return y, weights

def feed_forward(x: Tensor, gelu: bool, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    y = torch.linear(x, w1, b1)
    if gelu:
        y = torch.gelu(y)
    else:
        y = torch.relu(y)
    return torch.linear(y, w2, b2)

def _transformer_encoder_layer_fwd(
        x: Tensor, width: int, heads: int, w: Tensor, b: Tensor, out_w: Tensor, out_b: Tensor,
        gelu: bool, norm_first: bool, eps: float, g1: Tensor, n1: Tensor, g2: Tensor, n2: Tensor,
        w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, mask: Optional[Tensor],
        mask_type: Optional[int]) -> Tensor:
    if norm_first:
        y = torch.layer_norm(x, [width], g1, n1, eps)
        x = x + attend(y, width, heads, w, b, out_w, out_b, mask, mask_type)
        y = torch.layer_norm(x, [width], g2, n2, eps)
        x = x + feed_forward(y, gelu, w1, b1, w2, b2)
    else:
        x = x + attend(x, width, heads, w, b, out_w, out_b, mask, mask_type)
        x = torch.layer_norm(x, [width], g1, n1, eps)
        x = x + feed_forward(x, gelu, w1, b1, w2, b2)
        x = torch.layer_norm(x, [width], g2, n2, eps)
    return x
)SCRIPT";

bool isFused(const Node* node) { return node->kind() == fused_layer || node->kind() == fused_attention; }

size_t maskOperand(const Node* node) { return node->kind() == fused_layer ? 18 : 9; }

bool doesNothing(const Block* block) {
  return std::all_of(block->nodes().begin(), block->nodes().end(), [](const Node* node) {
    return node->kind() == prim::Constant || node->kind() == prim::Uninitialized;
  });
}

// Whether a value depends on whether gradients are recorded.
bool asksForGradients(Value* value, std::unordered_set<Node*>& seen) {
  Node* node = value->node();
  if (!seen.insert(node).second) {
    return false;
  }
  const auto asks = [&](Value* operand) { return asksForGradients(operand, seen); };
  bool found = node->kind() == symbol("aten::is_grad_enabled") || std::ranges::any_of(node->inputs(), asks);
  for (Block* block : node->blocks()) {
    found = found || std::ranges::any_of(block->outputs(), asks);
  }
  return found;
}

// The branch around a fused operator that is an early return: gradients decide on it, and its other side does
// nothing. Null if there is none.
Node* earlyReturn(Node* fused) {
  Node* branch = fused->owningBlock()->owningNode();
  if (branch == nullptr || branch->kind() != prim::If) {
    return nullptr;
  }
  Block* other = branch->blocks()[branch->blocks()[0] == fused->owningBlock()];
  const bool goes_on = doesNothing(other) && std::ranges::any_of(other->outputs(), [](const Value* output) {
                         return output->node()->kind() == prim::Uninitialized;
                       });
  std::unordered_set<Node*> seen;
  return goes_on && asksForGradients(branch->input(), seen) ? branch : nullptr;
}

// Replaces outputs with one constant on both sides by the constant.
bool foldOutputs(Node* branch) {
  bool changed = false;
  const auto *then = branch->blocks()[0], *otherwise = branch->blocks()[1];
  for (size_t i = 0; i < branch->outputs().size(); ++i) {
    const auto a = constantOf(then->outputs()[i]), b = constantOf(otherwise->outputs()[i]);
    if (a && b && a->isBool() && *a == *b && branch->outputs()[i]->hasUses()) {
      branch->outputs()[i]->replaceAllUsesWith(insertConstant(branch, *a));
      changed = true;
    }
  }
  return changed;
}

void takeOther(Node* branch, const Block* fast) {
  Node* outer = branch->owningBlock()->owningNode();
  Block* other = branch->blocks()[branch->blocks()[0] == fast];
  branch->input()->replaceAllUsesWith(insertConstant(branch, branch->blocks()[0] != fast));
  while (other->nodes().begin() != other->nodes().end()) {
    (*other->nodes().begin())->moveBefore(branch);
  }
  for (size_t i = 0; i < branch->outputs().size(); ++i) {
    branch->outputs()[i]->replaceAllUsesWith(other->outputs()[i]);
  }
  branch->destroy();
  // Each nested branch with a return passes on to the next one whether it has returned.
  while (outer != nullptr && outer->kind() == prim::If && foldOutputs(outer)) {
    outer = outer->owningBlock()->owningNode();
  }
}

std::shared_ptr<Graph> written(const Node* fused) {
  static const auto unit = [] {
    auto compiled = std::make_shared<torch::jit::CompilationUnit>();
    compiled->define(std::nullopt, formula, torch::jit::nativeResolver(), nullptr);
    return compiled;
  }();
  const auto graph = toGraphFunction(unit->get_function(fused->kind().toUnqualString())).graph()->copy();
  inlineCalls(*graph);
  forEachNode(*graph, [&](Node* node) { node->copyMetadata(const_cast<Node*>(fused)); });
  return graph;
}

// Why the formula does not compute the operator's results, or nothing.
std::optional<std::string> unlikeFormula(const Node* fused) {
  if (fused->kind() == fused_layer) {
    return std::nullopt;
  }
  const Value* query = inputOf(fused, "query");
  if (inputOf(fused, "key") != query || inputOf(fused, "value") != query) {
    return "attention of a query to other keys or values than itself";
  }
  if (fused->output(1)->hasUses() && constantNumber(fused, "need_weights") != 1.0) {
    return "attention weights that are read, and not asked for";
  }
  return std::nullopt;
}

bool writeOut(PassContext& context, Node* fused) {
  if (const auto reason = unlikeFormula(fused)) {
    context.remark(fused, "it stays as it is: " + *reason);
    return false;
  }
  torch::jit::WithInsertPoint guard(fused);
  auto results = torch::jit::insertGraph(*fused->owningGraph(), *written(fused), fused->inputs());
  if (results.size() < fused->outputs().size()) { // the results are a tuple
    Node* made = results.at(0)->node();           // unpacking would keep unused results and their weights
    results = made->kind() == prim::TupleConstruct ? made->inputs().vec()
                                                   : torch::jit::createTupleUnpack(results[0]).vec();
  }
  for (size_t i = 0; i < fused->outputs().size(); ++i) {
    fused->outputs()[i]->replaceAllUsesWith(results.at(i));
  }
  fused->destroy();
  return true;
}

// A nested tensor, from the node that makes it of a mask to the node that makes it a padded tensor.
class NestedRegion {
 public:
  explicit NestedRegion(Node* pad) : pad_(pad) { collect(inputOf(pad, "self")); }

  // Computes on the padded tensor instead. Returns the reason if that is not possible.
  std::optional<std::string> computePadded() {
    if (made_.size() != 1 || constantNumber(pad_, "padding") != 0.0) {
      return "its values come from more than one place, or padding is not 0";
    }
    Node* nested = *made_.begin();
    if (nested->owningBlock() == pad_->owningBlock()) {
      for (const Node* node : between_) {
        if (!isFused(node) || !isNone(node->input(maskOperand(node)))) {
          return "not only transformer layers without masks compute on it: " + describe(node);
        }
      }
      Value* hidden = insertValue(nested, aten::logical_not, {inputOf(nested, "mask")}, nested);
      for (Node* node : between_) {
        const size_t mask = maskOperand(node);
        node->replaceInput(mask, hidden);
        node->replaceInput(node->inputs().size() - 1, insertConstant(node, int64_t{1}));
      }
      replacePad(hidden);
    } else {
      Value* mask = maskOtherwise(nested);
      if (mask == nullptr) {
        return "the mask that it stands for is not to be found";
      }
      Value* known = insertValue(pad_, aten::_unwrap_optional, {mask}, pad_);
      replacePad(insertValue(pad_, aten::ne, {known, insertConstant(pad_, int64_t{0})}, pad_));
    }
    replaceNode(nested, inputOf(nested, "t"));
    return std::nullopt;
  }

 private:
  void collect(Value* value) {
    Node* node = value->node();
    if (!seen_.insert(node).second || node->kind() == to_padded) {
      return;
    }
    if (node->kind() == nested_from_mask) {
      made_.insert(node);
      return;
    }
    if (node->kind() == prim::If) {
      for (Block* block : node->blocks()) {
        collect(block->outputs()[value->offset()]);
      }
      return;
    }
    bool on_tensors = false;
    for (Value* operand : node->inputs()) {
      if (isTensor(operand) && operand->node()->kind() != prim::Constant &&
          operand->node()->kind() != prim::GetAttr) {
        collect(operand);
        on_tensors = true;
      }
    }
    if (on_tensors) {
      between_.push_back(node);
    }
  }

  // The mask for the layers. A module passes them None if it makes a nested tensor of the mask, and else the mask.
  Value* maskOtherwise(Node* nested) {
    Block* block = nested->owningBlock();
    Node* branch = block->owningNode();
    if (branch == nullptr || branch->kind() != prim::If) {
      return nullptr;
    }
    Block* other = branch->blocks()[branch->blocks()[0] == block];
    for (size_t i = 0; i < block->outputs().size(); ++i) {
      Value* mask = other->outputs()[i];
      const auto maybe = c10::OptionalType::ofTensor(); // Tensor is a subtype of Optional[Tensor]
      if (isNone(block->outputs()[i]) && !isNone(mask) && mask->type()->isSubtypeOf(*maybe) &&
          encloses(mask->node(), branch) && encloses(mask->node(), pad_)) {
        block->replaceOutput(i, mask);
        return mask;
      }
    }
    return nullptr;
  }

  static bool encloses(const Node* outer, const Node* inner) {
    const Block* block = inner->owningBlock();
    while (block != nullptr && block != outer->owningBlock()) {
      block = block->owningNode() ? block->owningNode()->owningBlock() : nullptr;
    }
    return block != nullptr;
  }

  void replacePad(Value* hidden) {
    Value* last = insertConstant(pad_, int64_t{-1});
    Value* column = insertValue(pad_, aten::unsqueeze, {hidden, last}, pad_);
    replaceNode(
        pad_, insertValue(
                  pad_, aten::masked_fill, {inputOf(pad_, "self"), column, insertConstant(pad_, 0.0)}, pad_));
  }

  Node* pad_;
  std::unordered_set<Node*> seen_, made_;
  std::vector<Node*> between_; // nodes on tensors between both
};

bool avoidFastPath(PassContext& context) {
  const auto fused = nodesWhere(*context.graph(), isFused);
  const auto pads = nodesWhere(*context.graph(), [](auto* node) { return node->kind() == to_padded; });
  if (fused.empty()) {
    return false;
  }
  bool changed = false;
  for (Node* pad : pads) {
    if (const auto reason = NestedRegion(pad).computePadded()) {
      context.remark(pad, "transformer layers keep computing on a nested tensor, in float: " + *reason);
      return changed;
    }
    changed = true;
  }
  for (Node* node : fused) {
    if (Node* branch = earlyReturn(node)) {
      takeOther(branch, node->owningBlock());
      changed = true;
    } else {
      changed |= writeOut(context, node);
    }
  }
  return changed;
}

const RegisterPass avoid_fast_path_pass{
    "avoid_fast_path", "Compute transformer layers by single operators, which can be quantized.",
    avoidFastPath, needs("inlined")};

} // namespace
} // namespace jit_passes
