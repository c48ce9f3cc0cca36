// Insert fake quantization where the annotations ask for it.
//
//   %y = jit_passes::correlation(%x, %w, ...)
//     ->
//   %training : bool = prim::GetAttr[name="training"](%self)
//   %conv1 = prim::GetAttr[name="conv1"](%self)
//   %xr : Tensor = prim::GetAttr[name="input_range"](%conv1)
//   %wr : Tensor = prim::GetAttr[name="weight_range"](%conv1)
//   %yr : Tensor = prim::GetAttr[name="correlation_range"](%conv1)
//   %xq = jit_passes::fake_quantize_moving_average(%x, %xr, %training, ...)
//   %wq = jit_passes::fake_quantize_moving_average(%w, %wr, %true, ...)
//   %z = jit_passes::correlation(%xq, %wq, ...)
//   %y = jit_passes::fake_quantize_moving_average(%z, %yr, %training, ...)
//
// Ranges are buffers of the module that the operator was written in, so each submodule needs a type of
// its own, as _C.clone gives it. A further range of that name (a module that is called twice) gets a
// number; one whose module is gone, as in frozen models, goes to the root, its path in front.
//
// Activations are observed while the root is in training mode, or always if it has no mode; weights and
// biases always, so that their range is that of the numbers at hand.
//
// The results are fresh tensors. Uses of a value that is written to are quantized one by one, since
// what they read differs. Not all uses of such a value: the writes would then go into a copy, unless
// the value was fresh itself.
#include "core/annotated.h"
#include "core/known_values.h"
#include "core/module.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Request {
  AnnotatedValue annotated;
  const Node* op; // that the slot belongs to
  std::string slot;
  c10::IValue axis;
  int64_t channels; // 0: per tensor
  bool always;      // observed in eval mode too
  double averaging_constant;
  int64_t quant_min;
  int64_t quant_max;
  std::string qscheme;
  std::string rounding;
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
        known_(context),
        start_(graph_->block()->nodes().front()) {
    const AnnotatedGraph annotated(*graph_);
    for (const c10::IValue& packed : context.option("fake_quantizations").toListRef()) {
      requests_.push_back(read(packed, annotated));
    }
  }

  bool run() {
    for (const Request& request : requests_) {
      range_ = nullptr;
      if (request.annotated.uses.empty()) {
        quantizeAllUses(request);
      } else if (known_.isWritten(request.annotated.value)) {
        for (const auto& use : request.annotated.uses) {
          quantizeUses(request, {use});
        }
      } else {
        quantizeUses(request, request.annotated.uses);
      }
    }
    return !requests_.empty();
  }

 private:
  Request read(const c10::IValue& packed, const AnnotatedGraph& annotated) const {
    const std::vector<c10::IValue> fields = packed.toTupleRef().elements().vec();
    Request request{
        annotated.find(fields[0].toInt(), fields[1]),
        annotated.node(fields[2].toInt()),
        fields[3].toStringRef(),
        fields[4],
        0,
        fields[6].toBool(),
        fields[7].toDouble(),
        fields[8].toInt(),
        fields[9].toInt(),
        fields[10].toStringRef(),
        fields[11].toStringRef(),
        fields[12].toStringRef()};
    if (!request.axis.isNone()) {
      request.channels = channels(fields[5], annotated, request.name);
    }
    return request;
  }

  // As many as a tensor has along an axis, times a factor.
  int64_t channels(
      const c10::IValue& packed, const AnnotatedGraph& annotated, const std::string& name) const {
    const auto& fields = packed.toTupleRef().elements();
    const Value* value = annotated.find(fields[0].toInt(), c10::List<int64_t>()).value;
    while (value->node()->kind() == c10::aten::_unwrap_optional ||
           value->node()->kind() == c10::prim::unchecked_cast) {
      value = value->node()->input(0);
    }
    auto tensor = constantTensor(value);
    if (const auto held = known_.attribute(value); held && held->isTensor()) {
      tensor = held->toTensor();
    }
    TORCH_CHECK(
        tensor, "the number of channels of '", name,
        "' is not known, since its weight is computed: quantize it per tensor");
    return tensor->size(fields[1].toInt()) * fields[2].toInt();
  }

  void quantizeUses(const Request& request, const std::vector<torch::jit::Use>& uses) {
    Node* before = uses.front().user;
    Value* quantized = insert(request, before->input(uses.front().offset), before)->output();
    for (const auto& use : uses) {
      use.user->replaceInput(use.offset, quantized);
    }
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
    static const auto kind = c10::Symbol::fromQualString("jit_passes::fake_quantize_moving_average");
    if (range_ == nullptr) {
      range_ = registerRange(request);
    }
    const auto constant = [&](const c10::IValue& option) { return insertConstant(before, option); };
    const std::vector<Value*> operands{
        value,
        range_,
        constant(c10::IValue()), // nothing is folded
        constant(0),
        request.always || !context_.module().hasattr("training") ? constant(true) : training(),
        constant(true),
        constant(request.averaging_constant),
        constant(false),
        constant(request.quant_min),
        constant(request.quant_max),
        constant(request.qscheme),
        constant(request.axis),
        constant(request.rounding),
        constant(""),
        constant(request.name),
        constant("")};
    Node* node = insertNode(before, kind, operands, request.op);
    node->output()->setType(value->type());
    return node;
  }

  Value* training() {
    if (training_ == nullptr) {
      training_ = readAttribute(*graph_, start_, "training");
    }
    return training_;
  }

  // The buffer, registered and read at the start of the graph.
  Value* registerRange(const Request& request) {
    const std::vector<int64_t> shape =
        request.axis.isNone() ? std::vector<int64_t>{2} : std::vector<int64_t>{2, request.channels};
    auto unseen = at::full(shape, kInfinity, at::kFloat);
    unseen[1].neg_();
    const auto path = addTensorAttribute(
        context_.module(), moduleOf(request.op).first, request.slot + "_range", unseen, /*parameter=*/false);
    return readAttribute(*graph_, start_, path);
  }

  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  KnownValues known_;
  Node* start_; // what is read from modules is read in front of it
  std::vector<Request> requests_;
  Value* range_ = nullptr; // of the request at hand
  Value* training_ = nullptr;
  std::unordered_map<const Value*, Value*> quantized_;
};

bool insertFakeQuantize(PassContext& context) { return Inserter(context).run(); }

const RegisterPass registration{
    "insert_fake_quantize",
    "Insert the fake quantization that the annotations ask for.",
    insertFakeQuantize,
    {"inlined"}};

} // namespace
} // namespace jit_passes
