#include "batch_forms.h"

#include "facts/shape_facts.h"
#include "graph/operators.h"

namespace jit_passes {
namespace {

constexpr int64_t kRefused = -1;
constexpr size_t kMostRoots = 256; // two for each layer of a deep model

// Tensors whose ranks the value depends on.
void collectAsked(const Value* value, std::unordered_set<const Value*>& seen, std::vector<Value*>& asked) {
  Node* node = const_cast<Node*>(value->node());
  if (!seen.insert(value).second || isTensor(value)) {
    return;
  }
  if (node->kind() == aten::dim) {
    asked.push_back(node->input());
    return;
  }
  for (const Value* operand : node->inputs()) {
    collectAsked(operand, seen, asked);
  }
  for (const Block* block : node->blocks()) {
    collectAsked(block->outputs()[value->offset()], seen, asked);
  }
}

} // namespace

std::pair<Value*, std::vector<Node*>> movesOf(const Value* output, size_t side) {
  const Block* block = output->node()->blocks()[side];
  Value* value = const_cast<Block*>(block)->outputs()[output->offset()];
  std::vector<Node*> moves;
  while (value->node()->owningBlock() == block && value->node()->kind() != prim::Param &&
         !value->node()->inputs().empty() && isTensor(mainOperand(value->node()))) {
    moves.insert(moves.begin(), value->node());
    value = mainOperand(value->node());
  }
  return {value, moves};
}

BatchForms::BatchForms(const PassContext& context)
    : graph_(context.graph()), shapes_(context, Images::Unknown) {
  if (!settle()) {
    order_.clear();
  }
}

const Form* BatchForms::find(const Value* value) const {
  const auto found = forms_.find(value);
  return found == forms_.end() ? nullptr : &found->second;
}

// Walks until the roots do not change: each of them gives some value its batch axis back, or has been refused.
bool BatchForms::settle() {
  while (true) {
    walk();
    if (!wanted_.empty() && roots_.size() + wanted_.size() <= kMostRoots) {
      for (Value* root : wanted_) {
        roots_.emplace(root, 0);
      }
      continue;
    }
    bool settled = true;
    for (auto& [root, axis] : roots_) {
      const bool useful = regained_.count(root) > 0;
      if (axis != kRefused && (!useful || !takesNoOther(root))) {
        axis = !useful && axis == 0 ? 1 : kRefused;
        settled = false;
      }
    }
    if (settled) {
      return !regained_.empty();
    }
  }
}

void BatchForms::walk() {
  forms_.clear();
  order_.clear();
  regained_.clear();
  wanted_.clear();
  ties_.clear();
  for (Value* input : graph_->block()->inputs()) {
    addRoot(input);
  }
  for (Node* node : graph_->block()->nodes()) {
    if (node->kind() == prim::If) {
      readBranch(node);
    } else if (const auto form = formOf(node)) {
      add(node->output(), *form);
    }
    for (Value* output : node->outputs()) {
      addRoot(output);
    }
  }
}

void BatchForms::add(Value* value, const Form& form) {
  forms_.emplace(value, form);
  order_.push_back(value);
}

void BatchForms::addRoot(Value* value) {
  const auto root = roots_.find(value);
  if (root != roots_.end() && root->second != kRefused && !forms_.count(value)) {
    add(value, {value, root->second, true});
  }
}

const Form* BatchForms::lacking(const Value* value) const {
  const auto found = forms_.find(value);
  return found != forms_.end() && found->second.lacks ? &found->second : nullptr;
}

// The tensor that determines the rank of the value; null if the rank is known.
Value* BatchForms::rootOf(Value* value) const {
  while (true) {
    if (const Form* form = lacking(value)) {
      return form->root;
    }
    if (shapes_.isWritten(value) || shapes_.rank(value)) {
      return nullptr;
    }
    Node* node = value->node();
    const auto weighted = weightedOperator(node);
    const bool layer = weighted && weighted->spatial_dims == 0 && shapes_.weightRank(node) == 2;
    if (node->owningBlock() != graph_->block() || (!keepsShape(node) && !layer)) {
      return value;
    }
    value = mainOperand(node);
  }
}

AssumedRanks BatchForms::assuming(const Value* root, int64_t rank, int64_t others) const {
  std::unordered_map<const Value*, int64_t> ranks;
  for (const Value* value : order_) {
    const Form& form = forms_.at(value);
    const int64_t own = form.root == root ? rank : others;
    if (value == form.root || (form.lacks && (own == kBatched || own == kBatched - 1))) {
      ranks[value] = own;
    }
  }
  return AssumedRanks(shapes_, std::move(ranks));
}

// Whether the model raises an error for any rank but the two with and without a batch, and if only one of two tied
// tensors has a batch.
bool BatchForms::takesNoOther(const Value* root) const {
  for (const int64_t rank : {0, 1, 4, 5}) {
    for (const int64_t others : {kBatched - 1, kBatched}) {
      if (!assuming(root, rank, others).raises(graph_->block())) {
        return false;
      }
    }
  }
  return std::ranges::all_of(ties_, [&](const auto& tie) {
    return tie.second != root || (assuming(root, kBatched, kBatched - 1).raises(graph_->block()) &&
                                  assuming(root, kBatched - 1, kBatched).raises(graph_->block()));
  });
}

void BatchForms::readBranch(Node* branch) {
  std::unordered_set<const Value*> seen;
  std::vector<Value*> asked;
  collectAsked(branch->input(), seen, asked);
  std::unordered_set<Value*> roots;
  std::unordered_map<const Value*, int64_t> with, without;
  for (Value* value : asked) {
    if (Value* root = rootOf(value)) {
      roots.insert(root);
      with[value] = kBatched;
      without[value] = kBatched - 1;
    }
  }
  if (roots.size() != 1 || std::ranges::none_of(branch->outputs(), isTensor)) {
    return;
  }
  Value* root = *roots.begin();
  const auto batched = AssumedRanks(shapes_, with).number(branch->input());
  const auto single = AssumedRanks(shapes_, without).number(branch->input());
  if (!batched || !single || *batched == *single || want(root)) {
    return;
  }
  for (Value* output : branch->outputs()) {
    if (isTensor(output) && !shapes_.isWritten(output)) {
      readResult(output, root, *batched != 0 ? 0 : 1);
    }
  }
}

// Whether nothing can be said with this root: the walk must begin again with it, or it has been refused.
bool BatchForms::want(Value* root) {
  const auto known = roots_.find(root);
  if (known == roots_.end()) {
    wanted_.insert(root);
  }
  return known == roots_.end() || known->second == kRefused;
}

void BatchForms::readResult(Value* output, Value* root, size_t batched_side) {
  const auto [base, moves] = movesOf(output, batched_side);
  const auto [other, other_moves] = movesOf(output, 1 - batched_side);
  if (base != other || shapes_.isWritten(base)) {
    return;
  }
  const auto known = forms_.find(base);
  const Form* form = known == forms_.end() ? nullptr : &known->second;
  if (form == nullptr && shapes_.rank(base) != kBatched) {
    Value* own = rootOf(base);
    if (own != nullptr) {
      want(own);
    }
    return;
  }
  const int64_t missing = form != nullptr && form->lacks ? form->axis : kRefused;
  Axes with{0, 1, 2}, without{0, 1, 2};
  std::erase(without, missing);
  int64_t batch = form != nullptr ? form->axis : kRefused;
  if (!move(moves, with, base, root, kRefused, batch) ||
      !move(other_moves, without, base, root, missing, batch) || with.size() != kBatched || batch < 0) {
    return;
  }
  const int64_t axis = std::ranges::find(with, batch) - with.begin();
  Axes rest = with;
  std::erase(rest, batch);
  if (without != with && without != rest) {
    return;
  }
  Value* own = form != nullptr ? form->root : root;
  if (own != root) {
    ties_.emplace(root, own);
  }
  const bool lacks = without != with;
  if (missing >= 0 && !lacks) {
    regained_.insert(own);
  }
  moved_[output] = {base, with};
  add(output, {own, axis, lacks});
}

// Applies the moves to the axes. An axis that a move adds stands for `missing`. An axis that a move removes must be
// `batch`, the batch axis, or becomes it if that is not known yet.
bool BatchForms::move(
    const std::vector<Node*>& moves, Axes& axes, const Value* base, const Value* root, int64_t missing,
    int64_t& batch) const {
  for (const Node* node : moves) {
    Axes given;
    for (const Value* operand : node->inputs().slice(1)) {
      const auto number = constantOf(operand);
      if (!number || !number->isInt()) {
        return false;
      }
      const int64_t rank = int64_t(axes.size()) + (node->kind() == aten::unsqueeze);
      given.push_back(number->toInt() + (number->toInt() < 0 ? rank : 0));
      if (given.back() < 0 || given.back() >= rank) {
        return false;
      }
    }
    if (node->kind() == aten::transpose && given.size() == 2) {
      std::swap(axes[given[0]], axes[given[1]]);
    } else if (node->kind() == aten::unsqueeze && missing >= 0 && !std::ranges::count(axes, missing)) {
      axes.insert(axes.begin() + given.at(0), missing);
    } else if (node->kind() == aten::squeeze && given.size() == 1 && isBatch(base, axes[given[0]], root)) {
      batch = axes[given[0]];
      axes.erase(axes.begin() + given[0]);
    } else {
      return false;
    }
  }
  return true;
}

// Whether this axis of the value is the batch axis, or has the size of the batch.
bool BatchForms::isBatch(const Value* value, int64_t axis, const Value* root) const {
  if (const auto known = forms_.find(value); known != forms_.end()) {
    return known->second.root == root && known->second.axis == axis && !known->second.lacks;
  }
  return std::ranges::any_of(forms_, [&](const auto& other) {
    const auto& [with_batch, form] = other;
    return form.root == root && !form.lacks &&
           shapes_.ofAxis(value, axis) == shapes_.ofAxis(with_batch, form.axis);
  });
}

// The form of the result of an operator that treats all places in front of the last axis alike.
std::optional<Form> BatchForms::formOf(const Node* node) const {
  static const auto plain = symbols(
      {"aten::to", "aten::contiguous", "aten::detach", "aten::alias", "aten::clone", "aten::layer_norm",
       "aten::rms_norm", "aten::softmax"});
  static const auto softmax = symbol("aten::softmax");
  const Value* output = node->outputs().size() == 1 ? node->output() : nullptr;
  if (output == nullptr || !isTensor(output) || shapes_.isWritten(output)) {
    return std::nullopt;
  }
  if (broadcasts(node)) {
    return formOfBoth(node->input(0), node->input(1));
  }
  const Form* form = node->inputs().empty() ? nullptr : lacking(mainOperand(node));
  if (form == nullptr || form->axis == kBatched - 1) {
    return std::nullopt;
  }
  if (const auto weighted = weightedOperator(node)) {
    return weighted->spatial_dims == 0 && shapes_.weightRank(node) == 2 ? std::optional(*form) : std::nullopt;
  }
  if (!keepsShape(node) || (!plain.count(node->kind()) && !isElementwise(node) && !isDropout(node))) {
    return std::nullopt;
  }
  if (node->kind() == softmax) {
    return constantNumber(node, "dim") == -1.0 ? std::optional(*form) : std::nullopt;
  }
  const bool norm = plain.count(node->kind()) && node->inputs().size() > 1 && constantInts(node->input(1));
  return !norm || constantInts(node->input(1))->size() == 1 ? std::optional(*form) : std::nullopt;
}

// A tensor of one axis, or a number, broadcasts with a batch axis and without.
std::optional<Form> BatchForms::formOfBoth(const Value* a, const Value* b) const {
  const Form *left = lacking(a), *right = lacking(b);
  if (left != nullptr && right != nullptr) {
    return left->root == right->root && left->axis == right->axis ? std::optional(*left) : std::nullopt;
  }
  const Form* form = left != nullptr ? left : right;
  const bool small = shapes_.rank(left != nullptr ? b : a).value_or(kBatched) <= 1;
  return form != nullptr && form->axis != kBatched - 1 && small ? std::optional(*form) : std::nullopt;
}

} // namespace jit_passes
