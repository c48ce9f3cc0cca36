// Adds operators to a program, checked one by one.
#pragma once

#include "builder.h"
#include "x86/program/made.h"
#include "x86/program/types.h"

namespace jit_passes::x86 {

class ProgramWriter {
 public:
  // Adds an operator whose result has this grid, and returns the result.
  int64_t emit(Operator op, std::vector<int64_t> inputs, const Grid& grid) {
    op.inputs = std::move(inputs);
    op.output = static_cast<int64_t>(program_.grids.size());
    program_.grids.push_back(grid);
    checkForm(op);
    axes_.push_back(checkAxes(op, axes_));
    program_.operators.push_back(std::move(op));
    return program_.operators.back().output;
  }

  // Adds an operator with inputs and result in float32. Sums and layers take inputs in codes too.
  int64_t emitFloats(Operator op) {
    for (int64_t& input : op.inputs) {
      const Types types = declarationOf(op.kind).types;
      const bool takes_codes = types == Types::Mixed || types == Types::ToFloats;
      input = program_.grids[input].is_float || takes_codes ? input : dequantized(input);
    }
    auto inputs = op.inputs;
    return emit(std::move(op), std::move(inputs), kFloat32);
  }

 protected:
  Program program_;
  std::vector<int64_t> axes_; // of the program's values: see checkAxes

 private:
  int64_t dequantized(int64_t value) {
    const auto [known, added] = dequantized_.emplace(value, 0);
    if (added) {
      known->second = emit(dequantizeOperator(), {value}, kFloat32);
    }
    return known->second;
  }

  std::unordered_map<int64_t, int64_t> dequantized_; // float32 values of codes
};

} // namespace jit_passes::x86
