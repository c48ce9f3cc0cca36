// Operators that have no node of their own.
#pragma once

#include "program.h"

namespace jit_passes::x86 {

// Inputs and output are not set.
Operator inputOperator(std::string name, int64_t number);
Operator constantOperator(std::string name, at::Tensor elements);
Operator quantizeOperator(std::string name);
Operator dequantizeOperator();
Operator tableOperator(std::string name, at::Tensor table);
// factor * number^exponent, where the number is attribute 0.
Operator powerOperator(std::string name, double factor, double exponent);

} // namespace jit_passes::x86
