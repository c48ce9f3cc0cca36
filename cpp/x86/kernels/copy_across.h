// Copies to another order of axes. kernels.h has the rules for all kernels.
#pragma once

#include "kernels.h"

namespace jit_passes::x86 {

// y = x, for elements of one byte or four. The fields are the distances of channels in bytes. Items: rows.
struct CopyAcross {
  int64_t in_channel, out_channel, bytes;
  Form form = bestForm();

  int64_t items(const Image& out) const { return out.rows(); }
  void run(const Image& in, const Image& out, int64_t begin, int64_t end) const;
};

} // namespace jit_passes::x86
