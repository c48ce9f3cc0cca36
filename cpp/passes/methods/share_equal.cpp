// Weights that several methods use, held and saved once.
//
// Each method was quantized by itself, so a layer that two methods call has weights in both. Constants of their
// graphs with equal content become one tensor, and equal packed parameters one object. A file then has each once,
// and loading it gives one object again. No operator writes to either.
#include "graph/graph.h"
#include "graph/keys.h"
#include "methods.h"

namespace jit_passes {
namespace {

using c10::IValue;

void append(std::string& key, int64_t number) { appendBytes(key, &number, sizeof(number)); }

// False for a tensor whose content cannot be compared.
bool append(std::string& key, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key += "undefined";
    return true;
  }
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || !tensor.has_storage() ||
      tensor.requires_grad() || tensor.is_conj() || tensor.is_neg()) { // its bytes are not its numbers
    return false;
  }
  append(key, static_cast<int64_t>(tensor.scalar_type()));
  append(key, tensor.dim());
  for (const auto& numbers : {tensor.sizes(), tensor.strides()}) {
    appendBytes(key, numbers.data(), numbers.size() * sizeof(int64_t));
  }
  if (tensor.is_quantized()) {
    append(key, static_cast<int64_t>(tensor.qscheme()));
    if (tensor.qscheme() == at::kPerTensorAffine) {
      const double scale = tensor.q_scale();
      appendBytes(key, &scale, sizeof(scale));
      append(key, tensor.q_zero_point());
    } else if (
        tensor.qscheme() == at::kPerChannelAffine || tensor.qscheme() == at::kPerChannelAffineFloatQParams) {
      append(key, tensor.q_per_channel_axis());
      return append(key, tensor.q_per_channel_scales()) && append(key, tensor.q_per_channel_zero_points()) &&
             append(key, at::int_repr(tensor));
    } else {
      return false;
    }
  }
  const auto dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  appendBytes(key, dense.const_data_ptr(), dense.nbytes());
  return true;
}

bool append(std::string& key, const IValue& value) {
  key += value.tagKind() + "|";
  if (value.isTensor()) {
    return append(key, value.toTensor());
  }
  if (value.isTuple() || value.isList()) {
    const auto elements = value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec();
    append(key, static_cast<int64_t>(elements.size()));
    return std::ranges::all_of(elements, [&](const IValue& element) { return append(key, element); });
  }
  if (value.isInt() || value.isBool()) {
    append(key, value.isInt() ? value.toInt() : value.toBool());
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    appendBytes(key, &number, sizeof(number));
  } else if (value.isString()) {
    append(key, static_cast<int64_t>(value.toStringRef().size()));
    key += value.toStringRef();
  } else {
    return value.isNone();
  }
  return true;
}

// Whether the value is packed parameters of PyTorch's kernels, which no operator changes.
bool isPacked(const IValue& value) {
  return value.isObject() && value.type()->annotation_str().starts_with("__torch__.torch.classes.quantized.");
}

// The first object of each content.
class ByContent {
 public:
  // Replaces the value by the first one with equal content. Returns whether that is another one.
  bool share(IValue& value) {
    std::string key = value.type()->annotation_str() + "|";
    IValue content = value;
    if (value.isObject()) {
      torch::jit::Function* state = value.toObjectRef().type()->findMethod("__getstate__");
      if (state == nullptr) {
        return false;
      }
      content = (*state)({value});
    }
    if (!append(key, content)) {
      return false;
    }
    const auto [found, added] = known_.emplace(std::move(key), value);
    value = found->second;
    return !added;
  }

 private:
  std::unordered_map<std::string, IValue> known_;
};

} // namespace

void shareEqual(const Module& module) {
  ByContent pool;
  for (const Module& part : module.modules()) {
    for (const auto& method : part.get_methods()) {
      forEachNode(*method.graph(), [&](Node* node) {
        if (node->kind() != prim::Constant || !isTensor(node->output())) {
          return;
        }
        IValue constant = *constantOf(node->output());
        if (constant.isTensor() && pool.share(constant)) {
          node->t_(attr::value, constant.toTensor());
        }
      });
    }
    const auto object = part._ivalue();
    for (size_t slot = 0; slot < object->type()->numAttributes(); ++slot) {
      IValue value = object->getSlot(slot);
      if (isPacked(value) && pool.share(value)) {
        object->setSlot(slot, value);
      }
    }
  }
}

} // namespace jit_passes
