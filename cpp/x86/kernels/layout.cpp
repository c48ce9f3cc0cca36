// Borders, and copies of pixels to other places.
#include <algorithm>
#include <cstring>

#include "kernels.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace jit_passes::x86 {

void adviseLargePages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  if (bytes >= kLargePage) {
    madvise(data, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
  }
#endif
}

Layout layOut(
    uint8_t* buffer, int64_t images, int64_t depth, int64_t height, int64_t width, int64_t channels,
    const Border& border) {
  Image image;
  image.images = images, image.depth = depth, image.height = height, image.width = width;
  image.channels = channels;
  image.pixel = channels;
  image.row = (width + border.left + border.right) * image.pixel;
  image.plane = (height + border.top + border.bottom) * image.row;
  image.image = (depth + border.front + border.back) * image.plane;
  image.data = buffer + border.front * image.plane + border.top * image.row + border.left * image.pixel;
  return {image, images * image.image};
}

void FillBorder::run(const Image& image, int64_t begin, int64_t end) const {
  const int64_t planes = image.depth + border.front + border.back;
  const int64_t left = border.left * image.pixel, inner = image.width * image.pixel;
  const int64_t right = border.right * image.pixel;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t z = item % planes - border.front;
    const bool whole = z < 0 || z >= image.depth;
    for (int64_t y = -border.top; y < image.height + border.bottom; ++y) {
      uint8_t* row = image.at(item / planes, z, y, 0);
      if (whole || y < 0 || y >= image.height) {
        std::memset(row - left, value, left + inner + right);
      } else {
        std::memset(row - left, value, left);
        std::memset(row + inner, value, right);
      }
    }
  }
}

void Resample::run(const Image& in, const Image& out, int64_t begin, int64_t end) const {
  const bool dense = from_channels.empty() && in.pixel == out.channels && out.pixel == out.channels;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t y = index % out.height, z = index / out.height % out.depth;
    const int64_t n = index / out.height / out.depth;
    const uint8_t* from = in.at(from_n.empty() ? n : from_n[n], from_z[z], from_y[y], 0);
    uint8_t* to = out.rowAt(index);
    for (int64_t x = 0; x < out.width;) {
      const uint8_t* pixel = from + from_x[x] * in.pixel;
      int64_t count = 1; // pixels that are neighbours in both
      while (dense && x + count < out.width && from_x[x + count] == from_x[x] + count) {
        ++count;
      }
      if (from_channels.empty()) {
        std::memcpy(to + x * out.pixel, pixel, count * out.channels);
      }
      for (size_t c = 0; c < from_channels.size(); ++c) {
        std::memcpy(to + x * out.pixel + c * bytes, pixel + from_channels[c] * bytes, bytes);
      }
      x += count;
    }
  }
}

} // namespace jit_passes::x86
