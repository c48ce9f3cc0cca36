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
  std::map<std::string, Source> sources; // by kind of node
  size_t count = 0;                      // of registrations

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

// "aten::conv2d" for "conv2d". Other libraries' names have their library already.
std::string kindOfNode(const From& from) {
  const std::string name = from.name;
  return name.find("::") == std::string::npos ? "aten::" + name : name;
}

// Adds the rows, or none of them. `owner` is the subject of errors.
void addSources(
    const std::vector<From>& rows, const std::string& owner, const Declaration* declaration = nullptr) {
  auto& sources = registry().sources;
  for (const From& from : rows) {
    const bool complete =
        from.name && *from.name && std::visit([](auto* plan) { return plan != nullptr; }, from.plan);
    TORCH_CHECK(complete, owner, " has a `from` without a name or a function");
    const auto taken = sources.find(kindOfNode(from));
    const Declaration* other = taken == sources.end() ? nullptr : taken->second.declaration;
    TORCH_CHECK(
        taken == sources.end(), owner, " is made from ", kindOfNode(from),
        other ? c10::str(", and so is '", other->name, "': remove one of them")
              : ", which plans have already: remove it");
  }
  for (const From& from : rows) {
    sources.emplace(kindOfNode(from), Source{from, declaration});
  }
  ++registry().count;
}

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
    addSources(declaration.from, c10::str("the operator '", name, "' of plans"), &known);
    known = declaration;
    known.name = name;
  });
}

RegisterNodes::RegisterNodes(const std::vector<From>& from) {
  registerOrKeep([&] {
    const std::lock_guard lock(registry().mutex);
    addSources(from, "a row of RegisterNodes");
  });
}

const Source* sourceOf(const torch::jit::Node* node) {
  raiseKeptErrors();
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().sources.find(node->kind().toQualString());
  return found == registry().sources.end() ? nullptr : &found->second;
}

std::map<std::string, Source> sources() {
  raiseKeptErrors();
  const std::lock_guard lock(registry().mutex);
  return registry().sources;
}

size_t countRegistrations() {
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
