#include "declaration.h"

#include <mutex>

namespace jit_passes::x86 {
namespace {

// Declarations are never moved, since kinds point to them.
struct Registry {
  std::mutex mutex;
  std::map<std::string, Declaration> declarations;
};

Registry& registry() {
  static Registry& all = *new Registry; // never destroyed: plans may run until the process ends
  return all;
}

} // namespace

Kind::Kind(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  declaration_ = &registry().declarations[name];
}

RegisterOperator::RegisterOperator(const Declaration& declaration) {
  const std::lock_guard lock(registry().mutex);
  Declaration& known = registry().declarations[declaration.name];
  TORCH_CHECK(known.name == nullptr, "two operators of plans are called '", declaration.name, "'");
  known = declaration;
}

std::vector<const Declaration*> declarations() {
  const std::lock_guard lock(registry().mutex);
  std::vector<const Declaration*> all;
  for (const auto& [name, declaration] : registry().declarations) {
    if (declaration.name != nullptr) {
      all.push_back(&declaration);
    }
  }
  return all;
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

bool isKind(Kind kind) { return kind.declaration().name != nullptr; }
const char* nameOf(Kind kind) { return isKind(kind) ? kind.declaration().name : "no kind"; }

Kind kindNamed(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().declarations.find(name);
  const bool known = found != registry().declarations.end() && found->second.name != nullptr;
  TORCH_CHECK(known, "not a plan: no operator is called '", name, "'; a newer jit_passes may know it");
  return Kind(found->second);
}

} // namespace jit_passes::x86
