// Operators that come from no node of their own.
#pragma once

#include "program.h"

namespace jit_passes::x86 {

// Without inputs and output.
Operator inputOperator(std::string name, int64_t number);
Operator constantOperator(std::string name, at::Tensor elements);
Operator quantizeOperator(std::string name);
Operator dequantizeOperator();
Operator tableOperator(std::string name, at::Tensor table);
// factor * number^exponent, of attribute 0.
Operator powerOperator(std::string name, double factor, double exponent);

} // namespace jit_passes::x86
