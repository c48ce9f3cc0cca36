// Keys of values by content: equal content has equal keys.
#pragma once

#include <string>

namespace jit_passes {

inline void appendBytes(std::string& key, const void* data, size_t bytes) {
  key.append(static_cast<const char*>(data), bytes);
}

} // namespace jit_passes
