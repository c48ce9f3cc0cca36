// Operators of plans in a package of somebody else's: a fraction, and the largest number so far along an axis; and nodes
// without an operator of their own.
//
// Other operators of plans, one for each mistake that a declaration can have, are declared by loom::declare.
#include <jit_passes/registry.h>
#include <jit_passes/x86/operator.h>

namespace {

using jit_passes::inputOf;
using torch::jit::Node;
using namespace jit_passes::x86;

const float* numbersAt(const Image& image, int64_t row, int64_t x) {
  return reinterpret_cast<const float*>(image.rowAt(row) + x * image.pixel);
}

// y = x - trunc(x). Items: rows.
struct Fractions {
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t x = 0; x < out.width; ++x) {
        const float* from = numbersAt(in, row, x);
        auto* to = const_cast<float*>(numbersAt(out, row, x));
        std::transform(from, from + out.channels, to, [](float v) { return v - std::trunc(v); });
      }
    }
  }
};

Planned fraction(const RegionReader& /*reader*/, Node* node) {
  return {{Kind("loom::fraction"), "", {}, 0, {}, {}}, {inputOf(node, "self")}};
}

Part fractionKernel(const StepContext& c) { return c.unary(Fractions{}); }

const RegisterOperator fraction_operator{
    {.name = "loom::fraction",
     .types = Types::Real,
     .from = {{"frac", fraction}},
     .lower = lowerInPlace,
     .elementwise = true,
     .kernel = fractionKernel,
     .order = orderOfFirst}};

// y[c] = max(x[0], ..., x[c]) over the channels of each pixel. Items: rows.
struct Largest {
  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t x = 0; x < out.width; ++x) {
        const float* from = numbersAt(in, row, x);
        auto* to = const_cast<float*>(numbersAt(out, row, x));
        std::inclusive_scan(
            from, from + out.channels, to, [](float a, float b) { return a > b || a != a ? a : b; });
      }
    }
  }
};

Planned runningMax(const RegionReader& reader, Node* node) {
  return {{Kind("loom::running_max"), "", {}, 0, {reader.integer(node, "dim")}, {}}, {inputOf(node, "x")}};
}

Sizes sizesAlong(const Operands& operands) {
  checkAxis(operands.op, operands.op.attributes[0], operands.first().size(), operands.first());
  return operands.first();
}

Part runningMaxKernel(const StepContext& c) { return c.ofRows(Largest{}); }

// Attributes: axis.
const RegisterOperator running_max_operator{
    {.name = "loom::running_max",
     .attributes = {1, 1},
     .types = Types::Real,
     .decodes = true,
     .from = {{"loom::running_max", runningMax}},
     .check = checkAllAxes,
     .infer = sizesAlong,
     .channels = axisOfAttribute,
     .lower = lowerChannels,
     .kernel = runningMaxKernel}};

// The fraction, and its largest number so far.
PlannedOperators twist(const RegionReader& /*reader*/, Node* node) {
  return {
      {node->input(0)},
      {{Kind("loom::fraction"), "", {0}, 0, {}, {}}, {Kind("loom::running_max"), "", {1}, 0, {1}, {}}},
      {2}};
}

Clipped trim(const RegionReader& /*reader*/, Node* /*node*/) { return {-0.5, 0.5}; }

SameValue knot(const RegionReader& /*reader*/, Node* node) { return node->input(0); }

const RegisterNodes other_nodes{{{"loom::twist", twist}, {"loom::trim", trim}, {"loom::knot", knot}}};

PlannedOperators beyond(const RegionReader& /*reader*/, Node* node) {
  return {{node->input(0)}, {{Kind("loom::fraction"), "", {1}, 0, {}, {}}}, {1}};
}

Planned unknown(const RegionReader& /*reader*/, Node* node) {
  return {{Kind("loom::unknwon"), "", {}, 0, {}, {}}, {node->input(0)}};
}

Planned misread(const RegionReader& /*reader*/, Node* node) {
  return {{Kind("loom::wrong_7"), "", {}, 0, {}, {}}, {inputOf(node, "y")}};
}

Planned broken(const RegionReader& /*reader*/, Node* /*node*/) { throw std::runtime_error("out of yarn"); }

template <int kNumber>
Planned wrong(const RegionReader& /*reader*/, Node* node) {
  return {{Kind("loom::wrong_" + std::to_string(kNumber)), "", {}, 0, {}, {}}, {node->input(0)}};
}

// A declaration without mistakes, and the change that makes one.
using Change = std::function<void(Declaration&)>;
const std::map<std::string, Change> kMistakes{
    {"no name", [](Declaration& d) { d.name = nullptr; }},
    {"an empty name", [](Declaration& d) { d.name = ""; }},
    {"a taken name", [](Declaration& d) { d.name = "softmax"; }},
    {"a taken operator", [](Declaration& d) { d.from = {{"softmax", fraction}}; }},
    {"a taken clip", [](Declaration& d) { d.name = "loom::clip", d.from = {{"relu", fraction}}; }},
    {"no lower", [](Declaration& d) { d.lower = nullptr; }},
    {"a null function", [](Declaration& d) { d.check = nullptr; }},
    {"a from without a function", [](Declaration& d) { d.from = {From{"loom::turn"}}; }},
    {"a from that reads nothing",
     [](Declaration& d) { d.inputs = {0, 0}, d.from = {{"loom::turn", fraction}}; }},
    {"exchanged ends", [](Declaration& d) { d.attributes = {2, 1}; }},
    {"an operand beyond", [](Declaration& d) { d.any_dtype = 1; }},
    {"floats from operands", [](Declaration& d) { d.types = Types::Floats; }},
    {"codes from a graph",
     [](Declaration& d) { d.types = Types::ToCodes, d.from = {{"loom::turn", fraction}}; }},
    {"a type without a tensor", [](Declaration& d) { d.types = Types::Stored, d.inputs = {0, 0}; }},
    {"moves of two", [](Declaration& d) { d.keeps_codes = true, d.inputs = {2, 2}; }},
    {"a layer without weights", [](Declaration& d) { d.layer = LayerKind::Linear; }},
    {"a convolution without attributes",
     [](Declaration& d) { d.layer = LayerKind::Convolution, d.tensors = {3, 3}; }},
    {"a convolution without a bias",
     [](Declaration& d) {
       d.layer = LayerKind::Convolution, d.tensors = {1, 1};
       d.attributes = {ConvolutionAttributes::Count, ConvolutionAttributes::Count};
     }},
    {"groups without attributes", [](Declaration& d) { d.layer = LayerKind::Linear, d.tensors = {1, 1}; }},
    {"dynamic without attributes", [](Declaration& d) { d.dynamic = true; }},
    {"a step of layers", [](Declaration& d) { d.step = Does::Convolve; }},
    // Errors of these come once a graph is read, or a plan is called.
    {"no kernel",
     [](Declaration& d) {
       d.name = "loom::wrong_1", d.kernel = nullptr, d.from = {{"loom::no_kernel", wrong<1>}};
     }},
    {"no channels",
     [](Declaration& d) {
       d.name = "loom::wrong_2", d.lower = lowerChannels, d.from = {{"loom::no_channels", wrong<2>}};
     }},
    {"no attribute",
     [](Declaration& d) {
       d.name = "loom::wrong_6", d.lower = lowerChannels, d.channels = axisOfAttribute;
       d.from = {{"loom::no_attribute", wrong<6>}};
     }},
    {"no such operand",
     [](Declaration& d) { d.name = "loom::wrong_7", d.from = {{"loom::no_such_operand", misread}}; }},
    {"one operand of two",
     [](Declaration& d) {
       d.name = "loom::wrong_3", d.lower = lowerProduct, d.from = {{"loom::one_operand", wrong<3>}};
     }},
    {"an error", [](Declaration& d) { d.name = "loom::wrong_5", d.from = {{"loom::an_error", broken}}; }},
    {"a value beyond",
     [](Declaration& d) { d.name = "loom::wrong_8", d.from = {{"loom::a_value_beyond", beyond}}; }},
    {"an unknown kind",
     [](Declaration& d) { d.name = "loom::wrong_4", d.from = {{"loom::an_unknown_kind", unknown}}; }},
};

void declare(const std::string& mistake) {
  if (mistake == "a taken pass") {
    jit_passes::RegisterPass("freeze", "A pass.", [](jit_passes::PassContext&) { return false; });
  } else if (mistake == "a taken invariant") {
    jit_passes::RegisterInvariant(
        "inlined", "An invariant.", [](const jit_passes::PassContext&) { return std::nullopt; });
  } else if (mistake == "a taken node") {
    RegisterNodes(std::vector<From>{{"detach", knot}});
  } else if (mistake == "a taken operator of the dialect") {
    jit_passes::RegisterOp(
        "dequantize(Tensor q, float scale, int zero_point) -> Tensor", "An operator.",
        jit_passes::onCpu([](const at::Tensor& q, double, int64_t) { return q.clone(); }));
  } else {
    Declaration declaration{
        .name = "loom::mistake", .types = Types::Same, .lower = lowerInPlace, .kernel = fractionKernel};
    kMistakes.at(mistake)(declaration);
    RegisterOperator{declaration};
  }
}

at::Tensor copied(const at::Tensor& x) { return x.clone(); }

TORCH_LIBRARY(loom, m) {
  m.def(
      "running_max(Tensor x, int? dim=None) -> Tensor", [](const at::Tensor& x, std::optional<int64_t> dim) {
        return std::get<0>(at::cummax(dim ? x : x.flatten(), dim.value_or(0)));
      });
  m.def(
      "twist(Tensor x) -> Tensor", [](const at::Tensor& x) { return std::get<0>(at::cummax(x.frac(), 1)); });
  m.def("trim(Tensor x) -> Tensor", [](const at::Tensor& x) { return x.clamp(-0.5, 0.5); });
  m.def("declare(str mistake) -> ()", declare);
  for (const char* name :
       {"turn", "knot", "no_kernel", "no_channels", "one_operand", "an_unknown_kind", "an_error",
        "no_attribute", "no_such_operand", "a_value_beyond"}) {
    m.def((std::string(name) + "(Tensor x) -> Tensor").c_str(), copied);
  }
}

} // namespace
