#include "declaration.h"

#include "graph/registry.h"

#include <mutex>

namespace jit_passes::x86 {
namespace {

// Declarations are never moved, since kinds point to them. A kind that is not declared yet has a name, and nothing
// else.
struct Registry {
  std::mutex mutex;
  std::map<std::string, Declaration> declarations;
  // Operators of graphs, and the operator of plans of each; null for one that is reserved.
  std::map<std::string, const char*> made_from;
  size_t count = 0;

  Declaration& named(const std::string& name) {
    const auto found = declarations.emplace(name, Declaration()).first;
    found->second.name = found->first.c_str();
    return found->second;
  }
};

Registry& registry() {
  static Registry& all = *new Registry; // never destroyed: plans may run until the process ends
  return all;
}

bool isDeclared(const Declaration& declaration) { return declaration.lower != nullptr; }

// Checks fields that depend on one another. Functions that lower check more fields when they need them.
class FieldCheck {
 public:
  explicit FieldCheck(const Declaration& declaration) : d_(declaration) {}

  void run() const {
    TORCH_CHECK(d_.name != nullptr && *d_.name != '\0', "an operator of plans has no name: set `name`");
    require(d_.lower, "has no `lower`: name the function that makes its steps, such as lowerChannels");
    require(
        d_.check && d_.check_values && d_.infer && d_.least_axes && d_.computes && d_.gives_codes,
        "has a null function: leave the field out, for its default");
    for (const Count& count : {d_.inputs, d_.attributes, d_.tensors}) {
      require(
          count.least <= count.most,
          "has a count of `inputs`, `attributes` or `tensors` whose ends are exchanged");
    }
    require(
        d_.any_dtype == SIZE_MAX || d_.any_dtype < d_.inputs.most, "has an `any_dtype` beyond its `inputs`");
    checkTypes();
    checkLayer();
    for (const From& from : d_.from) {
      require(from.name && *from.name && from.plan, "has a `from` without a name or a function");
    }
  }

 private:
  template <typename... Message>
  void require(bool condition, const Message&... message) const {
    TORCH_CHECK(condition, "the operator '", d_.name, "' of plans ", message...);
  }

  void checkTypes() const {
    const Types types = d_.types;
    const bool reads = d_.inputs.most > 0, moves = types == Types::Codes || types == Types::Same;
    require(
        !reads || (types != Types::Floats && types != Types::Stored),
        "has `types` of operators without operands: set `inputs` to {0, 0}");
    require(d_.from.empty() || reads, "is made from nodes of a graph, and reads nothing: set `inputs`");
    require(types != Types::Stored || d_.tensors.least > 0, "has the type of its tensor, and no `tensors`");
    require(
        d_.from.empty() || moves || types == Types::Mixed || types == Types::Real,
        "is made from nodes of a graph, which do not tell its `types`: use Codes, Same, Mixed or Real");
    require(
        !(d_.moves || d_.keeps_codes) || (moves && d_.inputs.least == 1),
        "keeps the codes of its operand: it has one of `inputs`, and the `types` Codes or Same");
  }

  void checkLayer() const {
    const LayerKind layer = d_.layer;
    const bool convolves = layer == LayerKind::Convolution || layer == LayerKind::TransposedConvolution;
    require(
        layer == LayerKind::None || d_.tensors.least > kWeight, "is a `layer` without weights in `tensors`");
    require(
        !convolves || d_.tensors.least > kBias, "is a convolution without scales and a bias in `tensors`");
    require(
        !convolves || d_.attributes.least >= ConvolutionAttributes::Count,
        "is a convolution without ConvolutionAttributes in `attributes`");
    require(
        layer != LayerKind::Linear || d_.step != Does::Compute ||
            d_.attributes.least >= GroupedAttributes::Count,
        "is a linear layer with a kernel of its own and without GroupedAttributes in `attributes`");
    require(
        !d_.dynamic || d_.attributes.least >= DynamicAttributes::Count,
        "is dynamic without DynamicAttributes in `attributes`");
    require(d_.step == Does::Compute || makes(d_.step), "has a `step` that its `layer` does not make");
    require(
        d_.step == Does::Compute || d_.tensors.least > kBias, "has a `step` of weights, scales and a bias");
  }

  // Whether operators with this layer make the step themselves.
  bool makes(Does step) const {
    const bool linear = d_.layer == LayerKind::Linear, convolution = d_.layer == LayerKind::Convolution,
               transposed = d_.layer == LayerKind::TransposedConvolution;
    switch (step) {
      case Does::Convolve: return linear || convolution;
      case Does::ConvolveTransposed: return transposed;
      case Does::ToFloats: return linear || convolution || transposed;
      case Does::Recur: return d_.layer == LayerKind::Recurrent;
      case Does::Compute:
      case Does::Enter:
      case Does::Take:
      case Does::Quantize:
      case Does::Chain:
      case Does::Pack:
      case Does::Product:
      case Does::Measure:
      case Does::QuantizeRows:
      case Does::QuantizeImage:
      case Does::Copy:
      case Does::Rename:
      case Does::Exit: return false;
    }
    return false;
  }

  const Declaration& d_;
};

} // namespace

std::string kindOfNode(const From& from) {
  const std::string name = from.name;
  return name.find("::") == std::string::npos ? "aten::" + name : name;
}

void reserveKind(const std::string& kind) {
  const std::lock_guard lock(registry().mutex);
  registry().made_from.emplace(kind, nullptr);
}

Kind::Kind(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  declaration_ = &registry().named(name);
}

RegisterOperator::RegisterOperator(const Declaration& declaration) {
  registerOrKeep([&] {
    FieldCheck(declaration).run();
    const std::lock_guard lock(registry().mutex);
    Declaration& known = registry().named(declaration.name);
    const char* name = known.name;
    TORCH_CHECK(
        !isDeclared(known), "two operators of plans are called '", name,
        "': a package's names begin with its own, as in 'mine::", name, "'");
    auto& made_from = registry().made_from;
    for (const From& from : declaration.from) {
      const auto taken = made_from.find(kindOfNode(from));
      TORCH_CHECK(
          taken == made_from.end(), "the operator '", name, "' of plans is made from ", kindOfNode(from),
          taken->second ? c10::str(", and so is '", taken->second, "': remove one of them")
                        : ", which plans have already: remove it");
    }
    for (const From& from : declaration.from) {
      made_from.emplace(kindOfNode(from), name);
    }
    known = declaration;
    known.name = name;
    ++registry().count;
  });
}

std::vector<const Declaration*> declarations() {
  const std::lock_guard lock(registry().mutex);
  std::vector<const Declaration*> all;
  for (const auto& [name, declaration] : registry().declarations) {
    if (isDeclared(declaration)) {
      all.push_back(&declaration);
    }
  }
  return all;
}

size_t countDeclarations() {
  raiseKeptErrors();
  const std::lock_guard lock(registry().mutex);
  return registry().count;
}

namespace {

bool isLayer(Kind kind, LayerKind layer) { return kind.declaration().layer == layer; }

} // namespace

bool isTransposed(Kind kind) { return isLayer(kind, LayerKind::TransposedConvolution); }
bool isConvolution(Kind kind) { return isLayer(kind, LayerKind::Convolution) || isTransposed(kind); }
bool isLinear(Kind kind) { return isLayer(kind, LayerKind::Linear); }
bool isAffine(Kind kind) { return isLayer(kind, LayerKind::Affine); }
bool isRecurrent(Kind kind) { return isLayer(kind, LayerKind::Recurrent); }
bool isDynamic(Kind kind) { return kind.declaration().dynamic; }

bool hasSum(const Operator& op) {
  return (isLayer(op.kind, LayerKind::Convolution) || isLinear(op.kind)) && op.inputs.size() > 1;
}

bool isKind(Kind kind) { return isDeclared(kind.declaration()); }
const char* nameOf(Kind kind) { return kind.declaration().name; }

Kind kindNamed(const std::string& name) {
  raiseKeptErrors();
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().declarations.find(name);
  const size_t package = name.find("::");
  TORCH_CHECK(
      found != registry().declarations.end() && isDeclared(found->second),
      "not a plan: no operator is called '", name, "'; ",
      package == std::string::npos
          ? "a newer jit_passes may know it"
          : "import the package that has it, " + name.substr(0, package) + ", first");
  return Kind(found->second);
}

} // namespace jit_passes::x86
