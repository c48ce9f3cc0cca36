// Recurrent layers of reference models whose input is quantized at run time.
#pragma once

#include "program_writer.h"
#include "reader.h"

namespace jit_passes::x86 {

// The values that a plan reads for the node: the input, the hidden states, and the memories of an LSTM.
std::vector<Value*> recurrentOperands(const RegionReader& reader, Node* node);

// Refuses a layer whose weights a plan cannot read. A layer with a float input is not checked.
void checkRecurrent(const RegionReader& reader, Node* node);

// Writes the node's layers one after the other, and returns its results. `operands` are the program's values of its
// operands. The first operator computes the products of a layer's input for all steps and directions, and the second
// one goes through the steps. The input of a later layer is quantized like the first input, as a whole or row by
// row.
std::vector<int64_t> writeRecurrent(
    const RegionReader& reader, Node* node, const std::string& name, const std::vector<int64_t>& operands,
    ProgramWriter& to);

} // namespace jit_passes::x86
