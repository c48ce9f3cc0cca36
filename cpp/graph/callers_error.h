#pragma once

#include <torch/csrc/jit/runtime/jit_exception.h>

#include <c10/util/StringUtil.h>

namespace jit_passes {

// An error of the caller while a model runs. PyTorch's interpreter hands only this class of exception on with its
// own message and the name of a Python class; bindings.cpp raises that Python class.
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
