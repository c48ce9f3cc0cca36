// Weights of a convolution for the tiles of all vector forms.
//
// Weights are packed in blocks of 32 output channels. For AVX-512 the order is [block][run][four bytes][channel][4].
// Runs are padded with zeros to groups of four, so the bytes after a run do not matter. The last block of a group
// has 16 channels if that is enough. For AMX runs are padded to steps of equal depth. For AVX-VNNI a block is [16
// channels][run][four bytes][channel][4]; for AVX2, which multiplies pairs, [16 channels][run][two
// bytes][channel][2]. The last part of a block has 8 channels if that is enough.
#include <algorithm>

#include "amx.h"
#include "plain.h"
#include "tile.h"

namespace jit_passes::x86 {
namespace {

// The number of neighbouring groups that fill a register together. These groups become one, with weights of 0
// between them, at no cost: a register is always multiplied as a whole.
int64_t mergedGroups(int64_t groups, int64_t out_group, int64_t lanes) {
  int64_t merged = 1;
  for (int64_t i = 2; i * out_group <= lanes; ++i) {
    merged = groups % i == 0 ? i : merged;
  }
  return merged;
}

// The place of the weight of channel `c` and byte `i` in a block of `columns` registers and `quads` groups of four.
int64_t placeInBlock(Form form, int64_t columns, int64_t quads, int64_t c, int64_t i) {
  if (form >= Form::Avx512) {
    return (i / 4 * columns * 16 + c) * 4 + i % 4;
  }
  const int64_t part = c / kSixChannels, lane = c % kSixChannels;
  const int64_t lanes = 8 * std::min<int64_t>(2, columns - 2 * part);
  const int64_t together = form == Form::AvxVnni ? 4 : 2;
  return part * quads * 4 * kSixChannels + (i / together * lanes + lane) * together + i % together;
}

// Sums of tile registers become codes through memory. With fewer groups of four, that takes longer than the
// products.
constexpr int64_t kFewestQuads = 4;

} // namespace

void Convolution::packTiles(const int8_t* weight) {
  const Window& w = window_;
  const int64_t lanes = form_ >= Form::Avx512 ? 16 : 8;
  const int64_t merged = mergedGroups(w.groups, out_channels_ / w.groups, lanes), groups = w.groups / merged;
  const int64_t in_group = in_channels_ / groups, out_group = out_channels_ / groups;
  const int64_t in_own = in_group / merged;
  const bool joined = dense_ && groups == 1 && w.dilation_w == 1;
  runs_ = joined ? w.kernel_d * w.kernel_h : w.taps();
  const int64_t length = joined ? w.kernel_w * in_group : in_group;
  quads_ = (length + 3) / 4;
  if (form_ == Form::Amx) {
    const RunSteps steps(quads_);
    const bool is_worth_it = runs_ * (quads_ - 2 * steps.count) >= kFewestQuads;
    form_ = is_worth_it ? form_ : Form::Avx512;
    quads_ = is_worth_it ? steps.quads() : quads_;
  }
  const bool too_long = form_ == Form::Avx2 && 4 * runs_ * quads_ > kMostWidened;
  if (runs_ > kMostRuns || too_long) {
    form_ = Form::Plain;
    packPlain(weight);
    return;
  }
  AlignedVector<int32_t> start;
  for (int64_t first = 0; first < out_channels_;) {
    const int64_t group = first / out_group;
    const int64_t count = std::min(kBlockChannels, (group + 1) * out_group - first);
    const int64_t columns = (count + lanes - 1) / lanes;
    blocks_.push_back({first, count, columns, group * in_group, static_cast<int64_t>(packed_.size())});
    packed_.resize(packed_.size() + runs_ * quads_ * columns * lanes * 4);
    int8_t* to = packed_.data() + blocks_.back().weight;
    for (int64_t c = 0; c < count; ++c) {
      const int64_t own = (first + c) % out_group / (out_group / merged);
      for (int64_t tap = 0; tap < w.taps(); ++tap) {
        const int64_t run = joined ? tap / w.kernel_w : tap;
        const int64_t begin = own * in_own + (joined ? tap % w.kernel_w * in_group : 0);
        const int8_t* from = weight + ((first + c) * w.taps() + tap) * in_own;
        for (int64_t i = begin; i < begin + in_own; ++i) {
          to[placeInBlock(form_, columns, runs_ * quads_, c, run * quads_ * 4 + i)] = *from++;
        }
      }
    }
    start.resize(blocks_.size() * kBlockChannels);
    std::copy_n(start_.begin() + first, count, start.end() - kBlockChannels);
    first += count;
  }
  start_ = std::move(start);
}

} // namespace jit_passes::x86
