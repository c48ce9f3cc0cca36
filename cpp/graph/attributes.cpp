#include "attributes.h"

namespace jit_passes {
namespace {

// Slots in which names were found before, in a table of fixed size. An entry is a hint, compared with the type
// before use. So entries of types that changed or were freed do no harm.
class SlotHints {
 public:
  uint32_t& of(const c10::ClassType& type, const std::string& name) {
    const auto hash =
        std::hash<std::string>{}(name) ^ (std::hash<const void*>{}(&type) * 0x9E3779B97F4A7C15ULL);
    return hints_[(hash ^ (hash >> 32)) % hints_.size()];
  }

 private:
  std::vector<uint32_t> hints_ = std::vector<uint32_t>(size_t{1} << 17);
};

} // namespace

std::optional<size_t> attributeSlot(const c10::ClassType& type, const std::string& name) {
  constexpr size_t kFew = 16; // up to here comparisons are faster than the table
  if (type.numAttributes() <= kFew) {
    return type.findAttributeSlot(name);
  }
  thread_local SlotHints hints;
  uint32_t& hint = hints.of(type, name);
  if (hint < type.numAttributes() && type.getAttributes()[hint].getName() == name) {
    return hint;
  }
  const auto slot = type.findAttributeSlot(name);
  hint = slot ? static_cast<uint32_t>(*slot) : hint;
  return slot;
}

std::optional<c10::IValue> attributeNamed(const c10::ivalue::Object& object, const std::string& name) {
  const auto slot = attributeSlot(*object.type(), name);
  return slot ? std::optional(object.getSlot(*slot)) : std::nullopt;
}

void addAttribute(
    const torch::jit::Module& module, const std::string& name, const c10::TypePtr& type, c10::IValue value,
    AttributeRole role) {
  const auto slot = module.type()->addAttribute(
      name, type, role == AttributeRole::Parameter, role == AttributeRole::Buffer);
  module._ivalue()->setSlot(slot, std::move(value));
}

Value* insertGetAttr(Graph& graph, Value* object, const std::string& name) {
  const auto type = object->type()->expect<c10::ClassType>();
  const auto slot = attributeSlot(*type, name);
  TORCH_CHECK(slot, type->repr_str(), " has no attribute '", name, "'");
  Node* node = graph.insertNode(graph.create(prim::GetAttr, {object}));
  node->s_(attr::name, name);
  node->output()->setType(type->getAttribute(*slot));
  const bool is_number = std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; });
  node->output()->setDebugName(is_number ? "_" + name : name); // the name of a value cannot be a number
  return node->output();
}

std::vector<std::string> namesIn(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) {
    parts.push_back(part);
  }
  return parts;
}

std::optional<c10::IValue> attributeAt(const torch::jit::Module& root, const std::string& path) {
  std::optional<c10::IValue> found = root._ivalue();
  for (const auto& part : namesIn(path)) {
    found = found && found->isObject() ? attributeNamed(found->toObjectRef(), part) : std::nullopt;
  }
  return found;
}

} // namespace jit_passes
