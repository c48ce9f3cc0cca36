// The kernel of recurrent layers, whose state is quantized in each step. kernels.h has the rules for all kernels.
#pragma once

#include <memory>

#include "dynamic.h"

namespace jit_passes::x86 {

// The equations of a step. x is the product of the input, W x + b; h is the state of a row, quantized on the grid of
// the row; p are the products of h, with the bias of the state, as in SumsToFloats. Gates have the order on the
// right:
//
//   Lstm        i, f, o = sigmoid(x + p),  g = tanh(x + p);  c' = fma(f, c, i g);  h' = o tanh(c')        i, f, g, o
//   Gru         r, z = sigmoid(x + p),  n = tanh(fma(r, p, x));  h' = fma(z, h - n, n)                    r, z, n
//   Tanh, Relu  h' = tanh(x + p), or max(x + p, 0), where a NaN stays NaN
//
// Source: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997, with forget gates; Cho et al., 2014, in the form
// of PyTorch and cuDNN, which reset the product rather than the state.
enum class Cell : int64_t { Lstm, Gru, Tanh, Relu, Count };

int64_t gatesOf(Cell cell);
// The numbers that a hidden unit passes to the next step: its state, and the memory c of an LSTM.
int64_t statesOf(Cell cell);

// Float32 with strides in bytes.
struct Sequence {
  uint8_t* data = nullptr;
  int64_t direction = 0, step = 0, row = 0;

  float* at(int64_t d, int64_t t, int64_t r) const {
    return reinterpret_cast<float*>(data + d * direction + t * step + r * row);
  }
};

// The operands. For each step and row, gates are [direction][gate][unit], and states [state or
// memory][direction][unit].
struct Recurrence {
  Sequence gates, states;
  Sequence hidden, memory; // before the first step; memory for an LSTM only
  int64_t steps, rows;
};

// All directions of a layer. The second direction goes from the last step to the first.
//
// Weights are packed as [direction][16 units][four products][gate][unit][4]. So a tile of rows by 16 units has all
// gates of these units in registers, and the cell's functions need no other memory.
class RecurrentLayer {
 public:
  static constexpr int64_t kUnits = 16;

  // `weight`: [directions * gates * hidden][hidden], with a scale and a bias for each of these rows.
  RecurrentLayer(
      Cell cell, int64_t directions, int64_t hidden, const int8_t* weight, const float* scales,
      const float* bias);
  void unpack(int8_t* weight) const;

  // Whether one call computes all steps, with items for directions times tiles of rows. Otherwise each step is a
  // call, with items for directions times blocks of units, and threads wait for each other in each step, which takes
  // as long as 2^16 products.
  bool isWhole(int64_t rows) const;
  int64_t items(int64_t rows) const;
  // The memory of a thread for so many rows: codes and grids of states.
  int64_t scratchBytes(int64_t rows) const;

  struct Options {
    RangeForm range = RangeForm::Affine;
    bool steps = false; // see quantizeTo
    Form form = bestForm();
  };
  void runWhole(const Recurrence& on, const Options& how, uint8_t* scratch, int64_t begin, int64_t end) const;
  // `step` counts in the order of each direction.
  void runStep(
      const Recurrence& on, const Options& how, int64_t step, uint8_t* scratch, int64_t begin,
      int64_t end) const;

 private:
  struct Interval {
    int64_t begin, end;
  };

  int64_t blocks() const { return (hidden_ + kUnits - 1) / kUnits; }
  int64_t quads() const { return (hidden_ + 3) / 4; }
  int64_t blockBytes() const { return quads() * gates_ * kUnits * 4; }
  int64_t mostRows() const;
  int64_t place(int64_t direction, int64_t gate, int64_t unit, int64_t product) const; // of a weight
  void advance(
      const Recurrence& on, const Options& how, int64_t direction, int64_t step, Interval rows,
      Interval blocks, uint8_t* scratch) const;

  Cell cell_;
  int64_t directions_, hidden_, gates_;
  AlignedVector<int8_t> weight_;
  // For each direction, block, gate and unit, with zeros for units that do not exist.
  AlignedVector<float> scales_, bias_;
  AlignedVector<int32_t> sums_; // sums of weights
};

} // namespace jit_passes::x86
