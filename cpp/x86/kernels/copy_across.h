// Elements that go elsewhere as they are, in another order of axes. See kernels.h for what holds for all kernels.
#pragma once

#include "kernels.h"

namespace jit_passes::x86 {

// y = x, elements of one byte or of four, where channels of each are so many bytes apart. Items: rows.
struct CopyAcross {
  int64_t in_channel, out_channel, bytes;
  Form form = bestForm();

  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

} // namespace jit_passes::x86
