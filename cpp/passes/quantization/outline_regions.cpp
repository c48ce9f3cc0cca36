// Move sets of operators into modules of their own, for a compiler.
//
//   %q = jit_passes::quantize(%x, ...)                 %r = prim::GetAttr[name="region_0"](%self)
//   %d = jit_passes::dequantize(%q, ...)          ->   %o = prim::CallMethod[name="forward"](%r, %x)
//   %y = aten::conv2d(%d, %w, %b, ...)                 %p = jit_passes::quantize(%o, ...)
//   %p = jit_passes::quantize(%y, ...)                 ...
//
//   region_0.forward(%x): quantize, dequantize, conv2d, quantize, dequantize
//
// A region takes and gives floats: it quantizes its inputs, and dequantizes its results. The codes do not change,
// since quantize returns the codes that dequantize with equal parameters has read. For a quantized value, the region
// takes the float value in front of quantize. If the codes are rearranged, it takes the dequantized result of the
// last move. If the float value may be written in place later, it takes the value dequantized from the codes.
// Constants move in, and attributes that do not change and need no gradient.
//
// With the option `shapes`, if others only ask for the shape of a value, a region gives a tensor of that shape
// without memory:
//
//   %n : int = aten::size(%y, 0)       ->   region_0.forward(%x): ..., aten::expand(0, aten::size(%y))
//
// The option `regions` has a list of nodes for each region, by number in program order. The regions are named in
// their order there. Several results come as a tuple. The node that unpacks it, or else the call, carries the place
// of the result.
#include "facts/known_values.h"
#include "graph/alias.h"
#include "graph/calls.h"
#include "graph/dialect.h"
#include "graph/graph.h"
#include "graph/module.h"
#include "graph/operators.h"
#include "graph/places.h"
#include "graph/registry.h"
#include "quantization/regions.h"
#include "view/snapshot.h"

namespace jit_passes {
namespace {

using Nodes = std::vector<Node*>;

// A region, while it is made.
class Outline {
 public:
  Outline(Graph& outer, const Order& order, const KnownValues& known, bool shapes, Nodes nodes)
      : outer_(outer), order_(order), known_(known), gives_shapes_(shapes), nodes_(std::move(nodes)) {
    members_.insert(nodes_.begin(), nodes_.end());
    TORCH_CHECK(members_.size() == nodes_.size(), "a region names a node twice");
    takeUnpacked();
    std::sort(nodes_.begin(), nodes_.end(), [](const Node* a, const Node* b) { return a->isBefore(b); });
    for (const Node* node : nodes_) {
      TORCH_CHECK(
          node->owningBlock() == nodes_.front()->owningBlock(), "a region holds ", describe(nodes_.front()),
          " and ", describe(node), ", which stand in different branches or loops");
      TORCH_CHECK(
          !order_.isFixed(node), "a region holds ", describe(node),
          ", which writes, reads a value that is written to, or must keep its order otherwise");
    }
  }

  // Adds the region to the module under this name, and calls it at the place of its last operator. Adds the nodes
  // that quantize its results again to `quantized`.
  void run(Module& root, const std::string& name, Nodes& quantized) {
    const Nodes dependent = findDependent();
    Node* call = outer_.create(prim::CallMethod, 1);
    call->insertAfter(nodes_.back());
    Node* point = call;
    for (Node* node : dependent) {
      node->moveAfter(point);
      point = node;
    }
    Value* self = inner_->addInput("self");
    std::ranges::for_each(nodes_, [&](Node* node) { copy(node); });
    for (Node* node : nodes_) {
      for (Value* output : node->outputs()) {
        findResults(output);
      }
    }
    TORCH_CHECK(!results_.empty(), "no node reads a result of the region of ", describe(nodes_.front()));
    const Module region = makeModule(root, self);
    root.register_module(name, region);
    placeCall(call, region, name);
    for (const auto& result : results_) {
      if (result.codes != nullptr) {
        quantized.push_back(result.codes);
      }
    }
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
      destroy(*node);
    }
  }

 private:
  struct Result {
    Value* inside;
    std::vector<torch::jit::Use> uses; // that read the result instead
    Node* codes;                       // the quantize after the region, if the result was quantized
    const Node* grid;                  // the dequantize of the parameters, if the region only moves codes
  };

  // A region gives tensors, so a node that unpacks a list of the region belongs to it too.
  void takeUnpacked() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const Value* output : nodes_[i]->outputs()) {
        for (const auto& use : output->uses()) {
          if (use.user->kind() == prim::ListUnpack && members_.insert(use.user).second) {
            nodes_.push_back(use.user);
          }
        }
      }
    }
  }

  // The nodes between the first and the last node of the region that must come after it, without its own.
  Nodes findDependent() const {
    std::unordered_set<const Node*> dependent;
    Nodes found;
    order_.visit(nodes_.front(), nodes_.back(), [&](Node* node, const Nodes& before) {
      const bool depends = std::any_of(before.begin(), before.end(), [&](const Node* source) {
        return members_.count(source) > 0 || dependent.count(source) > 0;
      });
      if (!members_.count(node)) {
        if (depends) {
          dependent.insert(node);
          if (!order_.isCopied(node) || isReadBehind(node)) {
            found.push_back(node);
          }
        }
        return;
      }
      for (const Node* source : order_.sourcesOf(node)) {
        TORCH_CHECK(
            !dependent.count(source), "the operators of a region cannot be computed as one: ", describe(node),
            " reads ", describe(source), ", which depends on the region itself");
      }
    });
    return found;
  }

  Node* copy(Node* node) {
    const auto operand = [&](Value* value) { return asksForShape(node) ? takeShape(value) : take(value); };
    Node* made = inner_->insertNode(inner_->createClone(node, operand));
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      inside_[node->output(i)] = made->output(i);
    }
    return made;
  }

  // The region's value for a value of the outer graph.
  Value* take(Value* value) {
    if (const auto found = inside_.find(value); found != inside_.end()) {
      return found->second;
    }
    if (order_.isCopied(value->node()) && !isTakenApart(value->node())) {
      copy(value->node());
    } else if (const auto parameter = known_.parameter(value); parameter && !trains(value)) {
      inside_[value] = inner_->insertConstant(*parameter);
    } else {
      inside_[value] = value->node()->kind() == quantize ? takeCodes(value) : takeInput(value);
    }
    return inside_.at(value);
  }

  // The region's value for a value whose shape alone is read. Codes come in as they are, not as floats.
  Value* takeShape(Value* value) {
    const Value* source = value;
    while (source->node()->kind() == dequantize || source->node()->kind() == quantize) {
      source = mainOperand(source->node());
    }
    if (source == value || members_.count(source->node()) || inside_.count(value)) {
      return take(value);
    }
    const auto [known, added] = shapes_.emplace(value, nullptr);
    return added ? known->second = addInput(value) : known->second;
  }

  // Whether the node unpacks a list of the outer graph. The region takes the list's tensors.
  bool isTakenApart(const Node* node) const {
    return node->kind() == prim::ListUnpack && !inside_.count(mainOperand(node)) &&
           !order_.isCopied(node->input()->node());
  }

  // Whether the value is a parameter that needs a gradient, or the transpose of one.
  bool trains(const Value* value) const {
    const auto held = known_.parameter(isTranspose(value->node()) ? mainOperand(value->node()) : value);
    return held && held->isTensor() && held->toTensor().requires_grad();
  }

  Value* addInput(Value* value) {
    Value* input = inner_->addInput("input_" + std::to_string(inputs_.size()));
    input->setType(value->type());
    inputs_.push_back(value);
    return input;
  }

  Value* takeInput(Value* value) {
    Value* input = addInput(value);
    const Node* grid = gridOf(value);
    return grid == nullptr ? input : requantized(input, grid)->output();
  }

  // For codes of a value that is written in place later. The region would read it too late, so it takes the
  // dequantized codes.
  Value* takeCodes(Value* codes) {
    Node* source = codes->node();
    Node* floats =
        outer_.create(dequantize, {codes, inputOf(source, "scale"), inputOf(source, "zero_point")});
    floats->copyMetadata(source);
    floats->insertAfter(source);
    Value* input = addInput(floats->output());
    const auto operand = [&](Value* v) { return v == inputOf(source, "x") ? input : take(v); };
    return inner_->insertNode(inner_->createClone(source, operand))->output();
  }

  // The dequantize that a value comes from, directly or rearranged, if its codes come from a quantize of the graph. A
  // write gives a value other numbers than these codes.
  const Node* gridOf(const Value* value) const {
    while (!isWritten(value) && (value->node()->kind() == prim::ListUnpack || movesData(value->node()))) {
      value = mainOperand(value->node());
    }
    const Node* node = value->node();
    const bool decodes = node->kind() == dequantize && inputOf(node, "q")->node()->kind() == quantize;
    return decodes && !isWritten(value) ? node : nullptr;
  }

  // Whether a node writes to the value, or to a part of it. The order does not know the nodes of earlier regions.
  bool isWritten(const Value* value) const {
    return order_.isFixed(value->node()) || std::ranges::any_of(value->uses(), [&](const Use& use) {
             return order_.isFixed(use.user) && (mayWrite(use.user) || movesData(use.user));
           });
  }

  // Quantizes and dequantizes the value with the parameters of `grid`.
  Node* requantized(Value* value, const Node* grid) {
    Node* source = inputOf(grid, "q")->node();
    const auto operand = [&](const Node* of, Value* first) {
      return [this, of, first](Value* v) { return v == mainOperand(of) ? first : take(v); };
    };
    Node* codes = inner_->insertNode(inner_->createClone(source, operand(source, value)));
    return inner_->insertNode(inner_->createClone(const_cast<Node*>(grid), operand(grid, codes->output())));
  }

  // Whether a node outside of the region reads the value, directly or through copied nodes.
  bool isRead(const Value* value) const {
    return std::ranges::any_of(value->uses(), [&](const torch::jit::Use& use) {
      return order_.isCopied(use.user) ? isReadBehind(use.user) : members_.count(use.user) == 0;
    });
  }

  // Answers are kept, since copied nodes that read each other have many paths.
  bool isReadBehind(const Node* node) const {
    const auto reads = [&](const Value* output) { return isRead(output); };
    const bool known = read_behind_.count(node) > 0;
    return known ? read_behind_[node] : (read_behind_[node] = std::ranges::any_of(node->outputs(), reads));
  }

  // Finds the results that the region gives for a value. Codes are given dequantized, and quantized again after the
  // call.
  void findResults(Value* value) {
    if (std::vector<Use> asking; gives_shapes_ && isAskedForShape(value, asking) && !asking.empty()) {
      const auto rounds = [&](const Use& use) {
        return use.user->kind() == quantize && !order_.isFixed(use.user);
      };
      const auto use = std::ranges::find_if(value->uses(), rounds);
      // Some operators give codes alone.
      Value* result = use == value->uses().end() ? inside_.at(value) : decoded(use->user);
      results_.push_back({shapeOf(result), std::move(asking), nullptr, nullptr});
      return;
    }
    Result direct{inside_.at(value), {}, nullptr, gridOf(value)};
    for (const auto& use : value->uses()) {
      if (members_.count(use.user)) {
        continue;
      }
      if (use.user->kind() != quantize || order_.isFixed(use.user)) {
        if (!order_.isCopied(use.user) || isReadBehind(use.user)) {
          direct.uses.push_back(use);
        }
        continue;
      }
      if (isRead(use.user->output())) {
        results_.push_back({decoded(use.user), {use}, use.user, nullptr});
      }
    }
    if (!direct.uses.empty()) {
      results_.push_back(std::move(direct));
    }
  }

  // The codes of a quantize, dequantized inside the region.
  Value* decoded(Node* rounds) {
    Value* codes = take(rounds->output());
    const std::vector<Value*> operands{
        codes, take(inputOf(rounds, "scale")), take(inputOf(rounds, "zero_point"))};
    Node* result = inner_->insertNode(inner_->create(dequantize, operands));
    result->copyMetadata(rounds);
    handOverPlace(rounds, result);
    return result->output();
  }

  // Whether all readers outside of the region read only the shape, of the value or of its dequantized codes. Adds
  // these readers to `asking`.
  bool isAskedForShape(const Value* value, std::vector<Use>& asking) const {
    return std::ranges::all_of(value->uses(), [&](const Use& use) {
      const bool copied = order_.isCopied(use.user);
      if (members_.count(use.user) > 0 || (copied && !isReadBehind(use.user))) {
        return true;
      }
      if (asksForShape(use.user)) {
        asking.push_back(use);
        return true;
      }
      const bool codes = use.user->kind() == quantize || use.user->kind() == dequantize;
      return codes && !order_.isFixed(use.user) && isAskedForShape(use.user->output(), asking);
    });
  }

  // A tensor with the shape of the value, without memory.
  Value* shapeOf(Value* value) {
    Value* sizes = inner_->insertNode(inner_->create(aten::size, {value}))->output();
    sizes->setType(c10::ListType::ofInts());
    Value *zero = inner_->insertConstant(at::zeros({})), *no = inner_->insertConstant(false);
    return inner_->insertNode(inner_->create(aten::expand, {zero, sizes, no}))->output();
  }

  Module makeModule(const Module& root, Value* self) {
    std::vector<Value*> values;
    for (const auto& result : results_) {
      values.push_back(result.inside);
    }
    inner_->registerOutput(
        values.size() == 1 ? values[0] : inner_->insertNode(inner_->createTuple(values))->output());
    const auto unit = root._ivalue()->compilation_unit();
    Module region(c10::QualifiedName("__torch__.jit_passes.Region"), unit, /*shouldMangle=*/true);
    self->setType(region.type());
    region.type()->addMethod(
        unit->create_function(c10::QualifiedName(*region.type()->name(), "forward"), inner_));
    return region;
  }

  void placeCall(Node* call, const Module& region, const std::string& name) {
    Node* owner = outer_.createGetAttr(outer_.inputs().at(0), name)->insertBefore(call);
    call->s_(attr::name, "forward");
    call->addInput(owner->output());
    for (Value* input : inputs_) {
      call->addInput(input);
    }
    for (Node* node : {owner, call}) {
      node->setSourceRange(nodes_.front()->sourceRange());
    }
    call->output()->setType(region.get_method("forward").function().getSchema().returns().at(0).type());
    Node* last = call;
    for (size_t i = 0; i < results_.size(); ++i) {
      Node* given = call;
      if (results_.size() > 1) {
        Value* index = insertConstant(call, static_cast<int64_t>(i));
        given = outer_.createTupleIndex(call->output(), index, results_[i].inside->type());
        given->insertAfter(last);
        given->setSourceRange(call->sourceRange());
        last = given;
      }
      Result& result = results_[i];
      if (result.codes != nullptr) {
        handOverPlace(result.codes, given);
      }
      if (result.grid != nullptr) { // readers of the result expect codes
        result.codes = cloneAfter(last, inputOf(result.grid, "q")->node(), given->output());
        last = given = cloneAfter(result.codes, result.grid, result.codes->output());
      }
      for (const auto& use : result.uses) {
        use.user->replaceInput(use.offset, given->output());
      }
    }
  }

  // A copy of the operator with another first operand.
  Node* cloneAfter(Node* point, const Node* node, Value* operand) {
    Node* made = outer_.createClone(
        const_cast<Node*>(node), [&](Value* value) { return value == mainOperand(node) ? operand : value; });
    return made->insertAfter(point);
  }

  // Destroys a node with its copied readers.
  static void destroy(Node* node) {
    for (Value* output : node->outputs()) {
      while (output->hasUses()) {
        destroy(output->uses().front().user);
      }
    }
    node->destroy();
  }

  Graph& outer_;
  const Order& order_;
  const KnownValues& known_;
  const bool gives_shapes_;
  Nodes nodes_;
  std::unordered_set<const Node*> members_;
  std::shared_ptr<Graph> inner_ = std::make_shared<Graph>();
  std::unordered_map<Value*, Value*> inside_, shapes_; // `shapes_` for values whose shape alone is read
  std::vector<Value*> inputs_;                         // of the outer graph
  std::vector<Result> results_;
  mutable std::unordered_map<const Node*, bool> read_behind_; // for copied nodes
};

std::vector<Nodes> regionsOf(const c10::IValue& option, const Nodes& nodes) {
  std::vector<Nodes> regions;
  for (const c10::IValue& region : option.toListRef()) {
    Nodes found;
    for (const c10::IValue& number : region.toListRef()) {
      const auto index = number.toInt();
      TORCH_CHECK(
          index >= 0 && index < static_cast<int64_t>(nodes.size()), "a region names node ", index,
          ", and the graph has ", nodes.size());
      found.push_back(nodes[index]);
    }
    TORCH_CHECK(!found.empty(), "a region names no node");
    regions.push_back(std::move(found));
  }
  return regions;
}

// Removes quantize and dequantize of a region's result, which is a dequantized value with these parameters already.
void readDirectly(const Order& order, const Nodes& quantized) {
  for (Node* codes : quantized) {
    const auto uses = codes->output()->uses(); // a copy: the loop edits the list
    for (const auto& use : uses) {
      if (use.user->kind() == dequantize && order.isCopied(use.user)) {
        use.user->output()->replaceAllUsesWith(inputOf(codes, "x"));
        use.user->destroy();
      }
    }
  }
}

bool outlineRegions(PassContext& context) {
  const auto graph = context.graph();
  const auto regions = regionsOf(context.option("regions"), nodesInOrder(*graph));
  const Order order(graph);
  const KnownValues known(context, /*attributes_apart=*/true);
  Nodes quantized;
  int64_t number = 0;
  for (const Nodes& nodes : regions) {
    std::string name;
    do {
      name = "region_" + std::to_string(number++);
    } while (context.module().hasattr(name));
    Outline(*graph, order, known, context.option("shapes").toBool(), nodes)
        .run(context.module(), name, quantized);
  }
  readDirectly(order, quantized);
  removeDeadNodes(graph);
  return !regions.empty();
}

const RegisterPass outline_regions_pass{
    "outline_regions",
    "Put sets of operators into modules of their own.",
    outlineRegions,
    {"inlined", "no_observers"},
    {},
    {{"regions", "list"}, {"shapes", "bool", false}}};

} // namespace
} // namespace jit_passes
