#include "checks.h"
#include "sizes.h"

namespace jit_passes::x86 {
namespace {

void checkConcat(const Operator& op) { checkAxesFrom(op, 0); }
Sizes sizesOfConcat(const Operands& operands) { return joined(operands, operands.op.attributes[0]); }

const RegisterOperator concat_operator{
    Kind::Concat,
    {.name = "concat",
     .inputs = {1, 4096},
     .attributes = {1, 1},
     .tensors = {0, 0},
     .types = Types::Same,
     .check = checkConcat,
     .infer = sizesOfConcat}};

} // namespace
} // namespace jit_passes::x86
