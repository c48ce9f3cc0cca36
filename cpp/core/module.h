// Modules that the passes make.
#pragma once

#include "graph.h"

namespace jit_passes JIT_PASSES_API {

using torch::jit::Module;

// Whether a rebuilt module keeps an attribute of that object, the module or one below it.
using KeepAttribute = std::function<bool(const c10::ivalue::Object& owner, const std::string& name)>;

enum class Values { Shared, Copied };

// A module with one method, of that graph, and the kept attributes. Its types and graph are freed
// with it; PyTorch's Module::clone puts them where the original's are, and they stay there.
Module rebuildModule(
    const Module& original, const std::string& method, const std::shared_ptr<Graph>& graph,
    const KeepAttribute& keep, Values values);

// A module with an inlined graph of its own for that method; attributes share their tensors, and each
// module below has a type of its own.
Module cloneModule(const Module& original, const std::string& method);

} // namespace jit_passes JIT_PASSES_API
