// Convolutions computed depth first, for one band of rows of the last one at a time. A thread has only the rows of
// each intermediate value that the next layer needs, in memory of its own that stays in the caches. Rows that the
// next band needs too are moved to the front. Rows outside of an image hold the zero point. The content of a row
// does not depend on its band.
#include <cstring>

#include "phases.h"

namespace jit_passes::x86 {
namespace {

// Memory for the rows of all intermediate values. The second cache must also hold weights, and rows of input and
// result.
constexpr int64_t kScratch = 1 << 18;
constexpr int64_t kMostRows = 64, kItems = 16;

// An intermediate value.
struct Rows {
  Image image;    // one batch element, without memory
  int64_t offset; // of the first row's border in the scratch
  int64_t count, left, right;
  uint8_t zero;

  int64_t pad() const { return left * image.pixel; }
};

struct Chain {
  std::vector<Layer> layers;
  std::vector<Rows> rows; // after each layer but the last
  Placed in, out;
  int64_t band = 1; // rows of the last layer in one item

  int64_t bands() const { return (out.image.height + band - 1) / band; }
  int64_t items() const { return out.image.images * bands(); }
  const Window& window(size_t layer) const { return layers[layer].packed->kernel().window(); }

  // The number of rows that a layer reads for `count` rows of its result.
  int64_t readFor(size_t layer, int64_t count) const {
    const Window& w = window(layer);
    return (count - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1;
  }

  // Finds places for the rows that a band of this size needs. Returns the number of bytes.
  int64_t place(int64_t rows_of_band) {
    band = rows_of_band;
    int64_t count = band, bytes = 0;
    for (size_t i = rows.size(); i-- > 0;) {
      count = readFor(i + 1, count);
      rows[i].count = count, rows[i].offset = bytes;
      bytes += (count * rows[i].image.row + kSlack + 63) / 64 * 64;
    }
    return bytes;
  }

  void run(const Call& call, int64_t begin, int64_t end) const;

 private:
  struct Span {
    int64_t first = 0, from = 0, to = 0; // the row at the front of the memory; rows to compute next
  };
  using Spans = c10::SmallVector<Span, 8>;

  void findSpans(int64_t first, int64_t last, bool is_new, uint8_t* scratch, Spans& spans) const;
  void compute(size_t layer, int64_t n, const Call& call, const Spans& spans) const;
};

// Finds, from the last layer to the first, the rows to compute and the rows to read for them. Rows that exist
// already move to the front.
void Chain::findSpans(int64_t first, int64_t last, bool is_new, uint8_t* scratch, Spans& spans) const {
  spans.back().from = first, spans.back().to = last;
  for (size_t i = rows.size(); i-- > 0;) {
    Span& span = spans[i];
    const Window& w = window(i + 1);
    const int64_t height = i + 1 < rows.size() ? rows[i + 1].image.height : out.image.height;
    const int64_t from = std::max<int64_t>(spans[i + 1].from, 0), to = std::min(spans[i + 1].to, height);
    const int64_t known = is_new ? INT64_MIN : span.to;
    if (from >= to) { // only padding
      span.from = span.to = known;
      continue;
    }
    const int64_t needed = from * w.stride_h - w.pad_top, beyond = needed + readFor(i + 1, to - from);
    if (known > needed) {
      uint8_t* memory = scratch + rows[i].offset;
      const int64_t row = rows[i].image.row;
      std::memmove(memory, memory + (needed - span.first) * row, (known - needed) * row);
    }
    span.first = needed, span.from = std::max(needed, known), span.to = std::max(span.from, beyond);
  }
}

void Chain::compute(size_t layer, int64_t n, const Call& call, const Spans& spans) const {
  const bool is_last = layer == rows.size();
  const Window& w = window(layer);
  const Span& span = spans[layer];
  Image y = is_last ? out.in(call) : rows[layer].image;
  const int64_t from = std::max<int64_t>(span.from, 0), to = std::min(span.to, y.height);
  if (is_last) {
    y.data = y.at(n, 0, from, 0);
  } else {
    const Rows& own = rows[layer];
    uint8_t* memory = call.scratch + own.offset;
    for (int64_t row = span.from; row < span.to; ++row) {
      if (row < 0 || row >= y.height) {
        std::memset(memory + (row - span.first) * y.row, own.zero, y.row);
      }
    }
    y.data = memory + (from - span.first) * y.row + own.pad();
  }
  if (from >= to) {
    return;
  }
  Image x = layer == 0 ? in.in(call) : rows[layer - 1].image;
  if (layer == 0) {
    x.data = x.at(n, 0, from * w.stride_h, 0);
  } else {
    const Rows& read = rows[layer - 1];
    x.data = call.scratch + read.offset + (from * w.stride_h - spans[layer - 1].first) * x.row + read.pad();
  }
  Image other;
  if (const auto& residual = layers[layer].residual) {
    other = residual->in(call);
    other.data = other.at(n, 0, from, 0);
    other.images = 1, other.height = to - from;
  }
  x.images = y.images = 1, y.height = to - from, x.height = (to - from - 1) * w.stride_h + 1;
  layers[layer].run(
      x, y, other, 0, layers[layer].packed->kernel().items(x, y, layers[layer].residual ? &other : nullptr));
}

void Chain::run(const Call& call, int64_t begin, int64_t end) const {
  for (const Rows& value : rows) {
    for (int64_t row = 0; row < value.count; ++row) {
      uint8_t* memory = call.scratch + value.offset + row * value.image.row;
      std::memset(memory, value.zero, value.pad());
      const int64_t right = value.right * value.image.pixel;
      std::memset(memory + value.image.row - right, value.zero, right);
    }
  }
  Spans spans(layers.size());
  for (int64_t item = begin; item < end; ++item) {
    const int64_t n = item / bands(), first = item % bands() * band;
    findSpans(
        first, std::min(first + band, out.image.height), item == begin || first == 0, call.scratch, spans);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      compute(layer, n, call, spans);
    }
  }
}

} // namespace

Part chained(const Lowered& lowered, const Step& step, int64_t& scratch) {
  const auto view = [](const Memory& memory) { return image(memory); };
  Chain chain;
  for (const Step& layer : step.chain) {
    chain.layers.push_back(layerOf(lowered, layer, view));
    if (&layer == &step.chain.back()) {
      break;
    }
    const Memory& value = lowered.memory[layer.output];
    const Dims dims = imageDims(value.sizes, value.axis);
    const int64_t left = value.border.left, right = value.border.right;
    Rows rows{{}, 0, 0, left, right, static_cast<uint8_t>(value.grid->zero_point)};
    rows.image.height = dims[2].size, rows.image.width = dims[3].size;
    rows.image.channels = rows.image.pixel = value.channels();
    rows.image.row = (left + rows.image.width + right) * rows.image.pixel;
    chain.rows.push_back(rows);
  }
  chain.in = view(lowered.memory[step.inputs[0]]), chain.out = view(lowered.memory[step.output]);
  int64_t band = 1;
  while (band < kMostRows && chain.place(2 * band) <= kScratch &&
         chain.out.image.images * chain.out.image.height >= 2 * band * kItems) {
    band *= 2;
  }
  scratch = std::max(scratch, chain.place(band));
  const int64_t items = chain.items();
  const auto run = [chain = std::move(chain)](const Call& call, int64_t begin, int64_t end) {
    chain.run(call, begin, end);
  };
  return {items, run, true};
}

} // namespace jit_passes::x86
