// Recurrent layers of reference models, whose input is quantized as the model runs.
#pragma once

#include "program_writer.h"
#include "reader.h"

namespace jit_passes::x86 {

bool isRecurrent(const Node* node);
std::vector<c10::Symbol> recurrentKinds();

// The values that a plan reads in its place: the input, the hidden states, and of an LSTM the memories.
std::vector<Value*> recurrentOperands(const RegionReader& reader, Node* node);

// Refuses a layer that reads its weights in another way than a plan does. Nothing is said of a layer whose input is in
// float.
void checkRecurrent(const RegionReader& reader, Node* node);

// Writes its layers one after the other, of values that stand for its operands, and returns its results. An operator
// makes what the input of a layer gives to all steps and directions; another goes through them. The input of a later
// layer is quantized as the first one is, as a whole or row by row.
std::vector<int64_t> writeRecurrent(
    const RegionReader& reader, Node* node, const std::string& name, const std::vector<int64_t>& operands,
    ProgramWriter& to);

} // namespace jit_passes::x86
