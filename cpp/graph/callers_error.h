#pragma once

#include <torch/csrc/jit/runtime/jit_exception.h>

#include <c10/util/StringUtil.h>

namespace jit_passes {

// An error of the caller while a model runs. Of all that an operator can throw, PyTorch's interpreter hands on this
// class alone, with the name of a class of Python and with its own message; bindings.cpp makes the one of the other.
class CallersError : public torch::jit::JITException {
 public:
  static constexpr auto kClass = "jit_passes.errors.ArgumentError";

  explicit CallersError(const std::string& message) : JITException(message, kClass, message) {}
};

template <typename... Parts>
void checkCaller(bool holds, const Parts&... parts) {
  if (!holds) {
    throw CallersError(c10::str(parts...));
  }
}

} // namespace jit_passes
