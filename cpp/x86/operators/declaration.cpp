#include "declaration.h"

namespace jit_passes::x86 {
namespace {

constexpr size_t kKinds = static_cast<size_t>(Kind::Power) + 1;

std::array<Declaration, kKinds>& registered() {
  static std::array<Declaration, kKinds> all{};
  return all;
}

} // namespace

RegisterOperator::RegisterOperator(Kind kind, const Declaration& declaration) {
  registered().at(static_cast<size_t>(kind)) = declaration;
}

const Declaration& declarationOf(Kind kind) { return registered()[static_cast<size_t>(kind)]; }
std::span<const Declaration> declarations() { return registered(); }
bool isKind(Kind kind) { return static_cast<size_t>(kind) < kKinds; }
const char* nameOf(Kind kind) { return declarationOf(kind).name; }

Kind kindNamed(const std::string& name) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (name == registered()[kind].name) {
      return static_cast<Kind>(kind);
    }
  }
  TORCH_CHECK(false, "not a plan: no operator is called '", name, "'; a newer jit_passes may know it");
}

} // namespace jit_passes::x86
