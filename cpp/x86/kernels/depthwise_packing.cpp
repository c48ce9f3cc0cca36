// Weights of a depthwise convolution for all vector forms.
//
// A block has 64 channels for AVX-512 and 32 for registers of 256 bits. Bytes of four rows are interleaved within
// 128-bit lanes: register i of four has the channels 16 L + 4 i to 16 L + 4 i + 3 in lane L. Weights and starts come in
// that order.
//
// Weights: [block][rows in fours][row of the output][column of the window][register][channel][4], with zeros where
// the window of that output row has no tap. If at most 32 channels are left for the last block for AVX-512, both
// halves of a register have these channels.
#include "depthwise.h"

#include <algorithm>

namespace jit_passes::x86 {

void Convolution::packDepthwiseTiles(const int8_t* weight) {
  const bool is_folded = isFolded(window_, form_);
  const Window w = is_folded ? folded(window_) : window_;
  const int64_t wide = form_ >= Form::Avx512 ? 64 : 32, lane_bytes = 16;
  const int64_t sets = sharesRows(w) ? 2 : 1, fours = foursOf(w), taps = window_.taps();
  const bool too_long = form_ == Form::Avx2 && fours * w.kernel_w > kMostFours;
  if (fours > kMostFours || too_long) {
    form_ = Form::Plain;
    packDepthwise(weight);
    return;
  }
  AlignedVector<int32_t> start;
  for (int64_t first = 0; first < out_channels_; first += wide) {
    const int64_t count = std::min(wide, out_channels_ - first);
    const bool split = form_ >= Form::Avx512 && count <= wide / 2;
    blocks_.push_back({first, count, split ? 2 : 1, first, static_cast<int64_t>(packed_.size())});
    packed_.resize(packed_.size() + fours * sets * w.kernel_w * wide * 4);
    start.resize(start.size() + wide);
    for (int64_t i = 0; i < wide; ++i) {
      const int64_t index = i / (wide / 4), lane = i % (wide / 4) / 4;
      const int64_t channel = lane_bytes * lane + 4 * index + i % 4;
      const int64_t c = split ? channel % (wide / 2) : channel;
      if (c >= count) {
        continue;
      }
      start[start.size() - wide + i] = start_[first + c];
      for (int64_t tap = 0; tap < taps; ++tap) {
        for (int64_t set = 0; set < sets; ++set) {
          const int64_t row = (is_folded ? tap % 4 : tap / w.kernel_w) + set;
          const int64_t column =
              (row / 4 * sets + set) * w.kernel_w + (is_folded ? tap / 4 : tap % w.kernel_w);
          packed_[blocks_.back().weight + (column * wide + i) * 4 + row % 4] =
              weight[(first + c) * taps + tap];
        }
      }
    }
  }
  start_ = std::move(start);
}

// An item is a block of channels in two rows.
int64_t Convolution::itemsDepthwiseTiles(const Image& out) const {
  return out.images * out.depth * ((out.height + 1) / 2) * static_cast<int64_t>(blocks_.size());
}

} // namespace jit_passes::x86
