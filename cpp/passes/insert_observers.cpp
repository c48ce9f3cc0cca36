// Insert observers where the annotations ask for them.
//
//   %y = aten::conv2d(...)      ->   %y = aten::conv2d(...)
//                                    %range = prim::GetAttr[name="observer_0_range"](%self)
//                                    jit_passes::observe_min_max(%y, %range, ...)
//
// An observation of some uses only goes through an edge, which converting will quantize:
//
//   %z = aten::conv2d(%x, ...)  ->   %e = jit_passes::edge(%x)
//                                    jit_passes::observe_min_max(%e, %range, ...)
//                                    %z = aten::conv2d(%e, ...)
//
// Observations with the same group share their buffers and so their parameters.
#include "core/annotated.h"
#include "core/registry.h"

namespace jit_passes {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Observation {
  AnnotatedValue annotated;
  std::string op; // without namespace
  int64_t group;
  int64_t channels; // 0: per tensor
  int64_t axis;
  bool once;
  double averaging_constant;
  int64_t bins;
  std::string name;
  std::string spec;
};

Observation readObservation(const c10::IValue& packed, const AnnotatedGraph& graph) {
  const std::vector<c10::IValue> fields = packed.toTupleRef().elements().vec();
  return {
      graph.find(fields[0].toInt(), fields[1]),
      fields[2].toStringRef(),
      fields[3].toInt(),
      fields[4].toInt(),
      fields[5].toInt(),
      fields[6].toBool(),
      fields[7].toDouble(),
      fields[8].toInt(),
      fields[9].toStringRef(),
      fields[10].toStringRef()};
}

class Inserter {
 public:
  explicit Inserter(PassContext& context) : context_(context), graph_(context.graph()) {}

  void insert(const Observation& observation) {
    Value* value = observation.annotated.value;
    Node* before = nodeAfter(observation.annotated);
    if (!observation.annotated.uses.empty()) {
      Node* edge = insertNode(before, edge_, {value}, before);
      edge->output()->setType(value->type());
      for (const auto& use : observation.annotated.uses) {
        use.user->replaceInput(use.offset, edge->output());
      }
      value = edge->output();
    }
    insertObserver(before, value, observation);
  }

 private:
  void insertObserver(Node* before, Value* value, const Observation& observation) {
    const auto text = [&](const std::string& string) { return insertConstant(before, string); };
    std::vector<Value*> operands{value, buffer(observation, "range")};
    if (observation.op == "observe_histogram" || observation.op == "observe_profile") {
      operands.push_back(buffer(observation, "histogram"));
    } else if (observation.op == "observe_moving_average") {
      operands.push_back(insertConstant(before, observation.averaging_constant));
    } else if (observation.channels > 0) {
      operands.push_back(insertConstant(before, observation.axis));
      operands.push_back(insertConstant(before, observation.once));
    } else if (observation.op == "observe_min_max") {
      operands.push_back(insertConstant(before, observation.once));
    }
    operands.push_back(text(observation.name));
    operands.push_back(text(observation.spec));
    insertNode(before, c10::Symbol::fromQualString("jit_passes::" + observation.op), operands, before, 0);
  }

  // The value of the observer's buffer, registered on the module and read at the graph's start.
  Value* buffer(const Observation& observation, const std::string& kind) {
    // All that nothing is observed of have one buffer: many attributes are slow to look up.
    const auto group =
        observation.op == "observe_nothing" ? std::string("none") : std::to_string(observation.group);
    const auto name = "observer_" + group + "_" + kind;
    if (const auto found = buffers_.find(name); found != buffers_.end()) {
      return found->second;
    }
    context_.module().register_buffer(name, initialState(observation, kind));
    torch::jit::WithInsertPoint guard(graph_->block()->nodes().front());
    Value* value = graph_->insertGetAttr(graph_->inputs().at(0), name);
    return buffers_[name] = value;
  }

  static at::Tensor initialState(const Observation& observation, const std::string& kind) {
    if (kind == "histogram") {
      return at::zeros({observation.bins}, at::kLong);
    }
    if (observation.channels > 0) {
      const auto unseen = at::full({2, observation.channels}, kInfinity, at::kDouble);
      unseen[1].neg_();
      return unseen;
    }
    return at::tensor({kInfinity, -kInfinity, kInfinity, -kInfinity, 0.0, 0.0}, at::kDouble);
  }

  const c10::Symbol edge_ = c10::Symbol::fromQualString("jit_passes::edge");
  PassContext& context_;
  std::shared_ptr<Graph> graph_;
  std::unordered_map<std::string, Value*> buffers_;
};

bool insertObservers(PassContext& context) {
  Inserter inserter(context);
  const AnnotatedGraph graph(*context.graph());
  const auto observations = context.option("observations").toListRef();
  for (const c10::IValue& packed : observations) {
    inserter.insert(readObservation(packed, graph));
  }
  return !observations.empty();
}

const RegisterPass registration{
    "insert_observers",
    "Insert the observers that the annotations ask for.",
    insertObservers,
    {"inlined"},
    {},
    {{"observations", "list"}}};

} // namespace
} // namespace jit_passes
