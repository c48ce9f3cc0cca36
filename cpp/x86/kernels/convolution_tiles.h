// The loop of the convolution over the tiles of an image, for all vector forms.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "tile.h"

namespace jit_passes::x86 {

// Whether each output pixel depends only on the input pixel at its place, and both images have equal sizes.
inline bool isPointwise(const Window& w, const Image& in, const Image& out) {
  return w.taps() == 1 && w.stride_d == 1 && w.stride_h == 1 && w.stride_w == 1 && w.pad_front == 0 &&
         w.pad_top == 0 && w.pad_left == 0 && in.depth == out.depth && in.height == out.height &&
         in.width == out.width;
}

// Joins rows to one row if their pixels are evenly spaced in all images.
inline void joinRows(std::initializer_list<Image*> images) {
  const auto join = [&](int64_t Image::* count, int64_t Image::* stride) {
    const auto even = [&](const Image* image) {
      return image->*count == 1 || image->*stride == image->width * image->pixel;
    };
    const bool joined = std::all_of(images.begin(), images.end(), even);
    for (Image* image : images) {
      image->width *= joined ? image->*count : 1;
      image->*count = joined ? 1 : image->*count;
    }
    return joined;
  };
  join(&Image::height, &Image::row) && join(&Image::depth, &Image::plane) &&
      join(&Image::images, &Image::image);
}

// The rows of an output, divided into parts of tiles.
template <typename Shape>
struct TileParts : Division<Shape> {
  TileParts(const Window& window, const Image& in_image, const Image& out_image, const Image* other)
      : in(in_image), out(out_image), residual(other ? *other : out_image) {
    if (isPointwise(window, in, out)) {
      joinRows({&in, &out, &residual});
    }
    Division<Shape>::operator=(Division<Shape>(out.width, out.rows()));
  }

  Image in, out, residual; // `residual` is the output if there is none
};

// A part of a row, with the places of its first pixels. The step to the next part needs no divisions, which would
// take as long as the products of a tile with few input channels.
template <typename Shape>
struct TilePlace {
  TilePlace(const TileParts<Shape>& work, const Window& window, int64_t part)
      : row(part / work.parts), part(part % work.parts) {
    enter(work, window);
  }

  void next(const TileParts<Shape>& work, const Window& window) {
    if (++part == work.parts) {
      part = 0;
      ++row;
      enter(work, window);
    }
  }

  // The column of the first pixel. The last part of a row overlaps the part before.
  int64_t column(const TileParts<Shape>& work) const {
    return std::min(part * work.pixels, work.out.width - work.pixels);
  }

  int64_t row, part;
  const uint8_t *in = nullptr, *residual = nullptr;
  uint8_t* out = nullptr;

 private:
  void enter(const TileParts<Shape>& work, const Window& w) {
    if (row == work.out.rows()) {
      return;
    }
    const int64_t y = row % work.out.height, z = row / work.out.height % work.out.depth;
    const int64_t n = row / work.out.height / work.out.depth;
    in = work.in.at(n, z * w.stride_d - w.pad_front, y * w.stride_h - w.pad_top, -w.pad_left);
    out = work.out.at(n, z, y, 0);
    residual = work.residual.at(n, z, y, 0);
  }
};

// The places of a tile's results: for each part its first pixel in the output and in a residual, its number among
// all pixels, and the number of pixels that the part before has stored already. `count` parts exist.
template <typename Shape>
struct TargetOf {
  uint8_t* out[Shape::kParts];
  const uint8_t* residual[Shape::kParts];
  int64_t number[Shape::kParts], skip[Shape::kParts];
  int64_t count;
};

// A tile, and `count` output channels from `first` on.
template <typename Shape>
struct TileWork {
  const TileOf<Shape>& tile;
  int64_t pixels, columns, channel, first, count; // pixels of a part; the first input channel
  const int8_t *weight, *ahead;
  const int32_t* start;
};

// `finish` has a `Shape`, and functions that are called: `place()` for each new tile, `enter(first, count)` for new
// channels, and `run(work, target)` for each tile and block of channels. The larger one of weights and input is read
// once, and divided between threads.
template <typename Finish>
void Convolution::runTiles(
    const Image& in_image, const Image& out_image, const Image* other, Finish& finish, int64_t begin,
    int64_t end) const {
  using Shape = typename Finish::Shape;
  const Window& w = window_;
  const TileParts<Shape> work(w, in_image, out_image, other);
  const Image &in = work.in, &out = work.out;
  const bool by_block = static_cast<int64_t>(packed_.size()) > in.rows() * in.width * in.channels;
  const auto blocks = static_cast<int64_t>(blocks_.size());

  int64_t jumps[kMostRuns], last = 0;
  const int64_t columns = runs_ / (w.kernel_d * w.kernel_h);
  for (int64_t run = 0; run < runs_; ++run) {
    const int64_t x = run % columns, y = run / columns % w.kernel_h, z = run / columns / w.kernel_h;
    const int64_t at = z * w.dilation_d * in.plane + y * w.dilation_h * in.row + x * w.dilation_w * in.pixel;
    jumps[std::max<int64_t>(run - 1, 0)] = at - last;
    last = at + 4 * quads_;
  }
  jumps[runs_ - 1] = 0;

  TileOf<Shape> tile{{}, w.stride_w * in.pixel, jumps, runs_, quads_};
  TargetOf<Shape> target{};
  const auto setTile = [&](TilePlace<Shape>& place) {
    target.count = 0;
    for (int64_t i = 0; i < Shape::kParts; ++i) {
      // Parts of the last tile that do not exist repeat the first part, and are not stored.
      const bool exists = place.row < out.rows();
      if (exists) {
        const int64_t x = place.column(work);
        tile.part[i] = place.in + x * tile.step;
        target.out[i] = place.out + x * out.pixel;
        target.residual[i] = place.residual + x * work.residual.pixel;
        target.number[i] = place.row * out.width + x;
        target.skip[i] = place.part * work.pixels - x;
        ++target.count;
        place.next(work, w);
      } else {
        tile.part[i] = tile.part[0], target.out[i] = target.out[0], target.skip[i] = work.pixels;
        target.residual[i] = target.residual[0];
      }
    }
    finish.place();
  };

  // While a block of weights is in use, the tiles prefetch the next one.
  const int64_t block_bytes = runs_ * quads_ * kBlockChannels * 4,
                fetched_by_tile = runs_ * (quads_ / 4) * 128;
  const int64_t inner = by_block ? work.tiles : blocks;
  int64_t position = inner ? begin % inner : 0, outer = inner ? begin / inner : 0;
  TilePlace<Shape> place(work, w, Shape::kParts * (by_block ? position : outer));
  const Block* entered = nullptr;
  for (int64_t item = begin; item < end; ++item) {
    if (by_block || position == 0 || item == begin) {
      setTile(place);
    }
    const Block& block = blocks_[by_block ? outer : position];
    const int8_t* weight = packed_.data() + block.weight;
    const int64_t fetched = by_block ? position * fetched_by_tile : 0;
    const bool fetch = by_block && outer + 1 < blocks && fetched + fetched_by_tile <= block_bytes;
    if (&block != entered) {
      finish.enter(block.first, block.count);
      entered = &block;
    }
    finish.run(
        TileWork<Shape>{
            tile, work.pixels, block.columns, block.in_channel, block.first, block.count, weight,
            fetch ? weight + block_bytes + fetched : weight,
            start_.data() + (&block - blocks_.data()) * kBlockChannels},
        target);
    if (++position == inner) {
      position = 0;
      ++outer;
      place = by_block ? TilePlace<Shape>(work, w, 0) : place;
    }
  }
}

} // namespace jit_passes::x86
