// Insert the fake quantizations that a model trains with, where the annotations ask for them.
//
//   %y = aten::conv2d(%x, %w, ...)
//     ->
//   %conv1 = prim::GetAttr[name="conv1"](%self)
//   %ws : Tensor = prim::GetAttr[name="weight_scale"](%conv1)
//   %ys : Tensor = prim::GetAttr[name="output_scale"](%conv1)
//   %wq = jit_passes::train_lsq(%w, %ws, ...)
//   %z = aten::conv2d(%x, %wq, ...)
//   %y = jit_passes::train_lsq(%z, %ys, ...)
//
// Which operator, and its operands behind the value, are up to the caller. An operand is a pair:
//
//   ("constant", number, text, ...)
//   ("state", i)         the i-th of the option `states`: scales, thresholds, ranges
//   ("corrections", _)   the buffer scale_corrections of the module, which counts
//   ("observe", always)  whether ranges follow: always, or while the module trains and its switch
//                        observer_enabled is on
//   ("enabled", _)       its switch fake_quantize_enabled
//   ("group", _)         its attribute process_group
//   ("fold", node)       jit_passes::fold_factor of that batch norm, as deferred_weight gives it, which gives
//                        the value too; the next operand is its axis
//
// A state is (name, node, tensor, whether it is a parameter). It belongs to the module that the node was
// written in, so each submodule needs a type of its own, as _C.clone gives it. A further one of that name
// (a module that is called twice) gets a number; one whose module is gone, as in frozen models, goes to
// the root, its path in front.
//
// The results are fresh tensors. Uses of a value that is written to are quantized one by one, since what
// they read differs, and each from a copy, since the operators save what they read. Not all uses of such a
// value: the writes would then go into a copy, unless the value was fresh itself.
#include "core/annotated.h"
#include "core/known_values.h"
#include "core/module.h"
#include "core/observers.h"
#include "core/operators.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

struct Request {
  AnnotatedValue annotated;
  const Node* op; // that the place belongs to
  c10::Symbol kind;
  std::vector<c10::IValue> operands;
  std::string name;
};

bool isFresh(const Value* value) {
  const auto* schema = value->node()->maybeSchema();
  return schema != nullptr && schema->returns().size() > value->offset() &&
         schema->returns()[value->offset()].alias_info() == nullptr;
}

class Inserter {
 public:
  explicit Inserter(PassContext& context)
      : context_(context),
        graph_(context.graph()),
        annotated_(*graph_),
        known_(context, /*attributes_apart=*/true),
        start_(graph_->block()->nodes().front()) {
    for (const c10::IValue& packed : elements(context.option("fake_quantizations"))) {
      requests_.push_back(read(packed));
    }
    for (const c10::IValue& packed : elements(context.option("states"))) {
      states_.push_back(readState(packed));
    }
  }

  bool run() {
    for (const Request& request : requests_) {
      if (request.annotated.uses.empty()) {
        quantizeAllUses(request);
      } else if (known_.isWritten(request.annotated.value)) {
        for (const auto& use : request.annotated.uses) {
          use.user->replaceInput(use.offset, copyOf(use.user->input(use.offset), use.user));
          quantizeUses(request, {use});
        }
      } else {
        quantizeUses(request, request.annotated.uses);
      }
    }
    return !requests_.empty();
  }

 private:
  static std::vector<c10::IValue> elements(const c10::IValue& packed) {
    return packed.toTupleRef().elements().vec();
  }

  Request read(const c10::IValue& packed) const {
    const auto fields = elements(packed);
    return {
        annotated_.find(fields[0].toInt(), fields[1]), annotated_.node(fields[2].toInt()),
        c10::Symbol::fromQualString("jit_passes::" + fields[3].toStringRef()), elements(fields[4]),
        fields[5].toStringRef()};
  }

  // Registered, and read at the start of the graph.
  Value* readState(const c10::IValue& packed) {
    const auto fields = elements(packed);
    const auto module = moduleOf(annotated_.node(fields[1].toInt())).first;
    const auto path = addTensorAttribute(
        context_.module(), module, fields[0].toStringRef(), fields[2].toTensor(), fields[3].toBool());
    return readAttribute(*graph_, start_, path);
  }

  void quantizeUses(const Request& request, const std::vector<torch::jit::Use>& uses) {
    Node* before = uses.front().user;
    Value* quantized = insert(request, before->input(uses.front().offset), before)->output();
    for (const auto& use : uses) {
      use.user->replaceInput(use.offset, quantized);
    }
  }

  static Value* copyOf(Value* value, Node* before) {
    Value* copy = insertNode(before, c10::aten::clone, {value, insertConstant(before, {})}, before)->output();
    return copy->setType(value->type());
  }

  void quantizeAllUses(const Request& request) {
    Value* value = request.annotated.value;
    TORCH_CHECK(
        !known_.isWritten(value) || isFresh(value), "the value '", request.name,
        "' is written to by an in-place operator: annotate its uses");
    const auto earlier = quantized_.find(value);
    Value* latest = earlier == quantized_.end() ? value : earlier->second;
    Node* before = latest == value ? nodeAfter(request.annotated) : latest->node()->next();
    Node* node = insert(request, latest, before);
    latest->replaceAllUsesWith(node->output());
    node->replaceInput(0, latest);
    quantized_[value] = node->output();
  }

  Node* insert(const Request& request, Value* value, Node* before) {
    std::vector<Value*> operands{asTensor(value, before)};
    for (size_t i = 0; i < request.operands.size(); ++i) {
      const auto fields = elements(request.operands[i]);
      if (fields[0].toStringRef() == "fold") {
        const auto axis = elements(request.operands.at(i + 1))[1];
        Node* norm = annotated_.node(fields[1].toInt());
        Node* deferred = deferWeight(operands.front(), norm, axis, before);
        operands.front() = deferred->output(0);
        operands.push_back(deferred->output(1));
      } else {
        operands.push_back(operand(fields[0].toStringRef(), fields[1], before));
      }
    }
    Node* node = insertNode(before, request.kind, operands, request.op);
    node->output()->setType(operands.front()->type());
    return node;
  }

  // Scripts type the bias of a convolution as Tensor?, whatever it holds.
  static Value* asTensor(Value* value, Node* before) {
    if (value->type()->kind() != c10::TypeKind::OptionalType) {
      return value;
    }
    Value* tensor = insertNode(before, c10::prim::unchecked_cast, {value}, before)->output();
    return tensor->setType(c10::TensorType::get());
  }

  Value* operand(const std::string& role, const c10::IValue& what, Node* before) {
    if (role == "constant") {
      return insertConstant(before, what);
    }
    if (role == "state") {
      return states_.at(what.toInt());
    }
    if (role == "observe") {
      return what.toBool() || !context_.module().hasattr("training") ? insertConstant(before, true)
                                                                     : once(role, [&] { return observes(); });
    }
    if (role == "enabled") {
      return once(role, [&] {
        return readSwitch(context_.module(), *graph_, start_, "fake_quantize_enabled", true);
      });
    }
    if (role == "corrections") {
      return once(role, [&] { return attribute("scale_corrections", at::zeros({1}, at::kLong)); });
    }
    TORCH_CHECK(role == "group", "there is no operand '", role, "'");
    return once(role, [&] { return attribute("process_group", ""); });
  }

  template <typename Make>
  Value* once(const std::string& role, Make make) {
    const auto [found, is_new] = shared_.emplace(role, nullptr);
    if (is_new) {
      found->second = make();
    }
    return found->second;
  }

  Value* observes() {
    Value* training = readAttribute(*graph_, start_, "training");
    Value* enabled = readSwitch(context_.module(), *graph_, start_, "observer_enabled", true);
    Value* both = insertNode(start_, c10::aten::__and__, {training, enabled}, start_)->output();
    return both->setType(c10::BoolType::get());
  }

  // An attribute of the module itself.
  Value* attribute(const std::string& name, const c10::IValue& initially) {
    auto& module = context_.module();
    if (!module.hasattr(name)) {
      const auto type = initially.isTensor() ? c10::TypePtr(c10::TensorType::get()) : c10::StringType::get();
      module.register_attribute(
          name, type, initially, /*is_param=*/false, /*is_buffer=*/initially.isTensor());
    }
    return readAttribute(*graph_, start_, name);
  }

  static Node* deferWeight(Value* weight, Node* norm, const c10::IValue& axis, Node* before) {
    static const auto fold_factor = c10::Symbol::fromQualString("jit_passes::fold_factor");
    static const auto deferred_weight = c10::Symbol::fromQualString("jit_passes::deferred_weight");
    const auto statistics = {norm->input(1), norm->input(kRunningVar), norm->input(kEps)};
    Value* factor = insertNode(before, fold_factor, statistics, norm)->output();
    const auto operands = {weight, factor, insertConstant(before, axis), insertConstant(before, false)};
    Node* node = insertNode(before, deferred_weight, operands, norm, /*outputs=*/2);
    node->output(0)->setType(weight->type());
    node->output(1)->setType(c10::OptionalType::ofTensor());
    return node;
  }

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  AnnotatedGraph annotated_;
  KnownValues known_;
  Node* start_; // what is read from modules is read in front of it
  std::vector<Request> requests_;
  std::vector<Value*> states_;
  std::unordered_map<std::string, Value*> shared_;
  std::unordered_map<const Value*, Value*> quantized_;
};

bool insertFakeQuantize(PassContext& context) { return Inserter(context).run(); }

const RegisterPass registration{
    "insert_fake_quantize",
    "Insert the fake quantization that the annotations ask for.",
    insertFakeQuantize,
    {"inlined"},
    {},
    {{"fake_quantizations", "list"}, {"states", "list"}}};

} // namespace
} // namespace jit_passes
