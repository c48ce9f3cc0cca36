// Rows that indices pick from a table of codes. In a file, two codes of 4 bits share a byte.
#include "x86/kernels/embedding.h"

#include "graph/dialect.h"
#include "passes/lowering/weight_alone.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"

namespace jit_passes::x86 {
namespace {

struct TableAttributes {
  enum : size_t { Columns, Bits, Count };
};
struct TableTensors {
  enum : size_t { Codes, Scales, ZeroPoints, Count };
};

CodedRows codedRows(const Operator& op) {
  const at::Tensor &codes = op.tensors[TableTensors::Codes], &scales = op.tensors[TableTensors::Scales],
                   &zeros = op.tensors[TableTensors::ZeroPoints];
  const bool there = !codes.is_meta();
  return {
      codes.size(0),
      op.attributes[TableAttributes::Columns],
      scales.size(1),
      op.attributes[TableAttributes::Bits],
      there ? codes.const_data_ptr<uint8_t>() : nullptr,
      there ? scales.const_data_ptr<float>() : nullptr,
      there && zeros.numel() > 0 ? zeros.const_data_ptr<float>() : nullptr};
}

void checkEmbedding(const Operator& op) {
  const at::Tensor &codes = op.tensors[TableTensors::Codes], &scales = op.tensors[TableTensors::Scales],
                   &zeros = op.tensors[TableTensors::ZeroPoints];
  refuseUnless(
      codes.scalar_type() == at::kByte && codes.dim() == 2 && scales.scalar_type() == at::kFloat &&
          scales.dim() == 2 && zeros.scalar_type() == at::kFloat,
      "its table is no matrix of bytes with scales of float32");
  const CodedRows table = codedRows(op);
  refuseUnless(
      between(table.rows, 1, kMostIndices) && between(table.columns, 1, kMaxSize), "it has ", table.rows,
      " rows of ", table.columns, " columns, and a plan picks ", kMostIndices, " rows at most");
  refuseUnless(
      table.bits == 8 || (table.bits == 4 && table.columns % 2 == 0), "codes of ", table.bits, " bits in ",
      table.columns, " columns");
  refuseUnless(
      scales.size(0) == table.rows && table.groups > 0 && table.columns % table.groups == 0 &&
          codes.size(1) == table.rowBytes() && (zeros.numel() == 0 || zeros.sizes() == scales.sizes()),
      "its table has codes of the shape ", codes.sizes(), ", scales ", scales.sizes(), " and zero points ",
      zeros.sizes());
  if (!codes.is_meta()) {
    refuseUnless(
        at::isfinite(scales).all().item<bool>() && at::isfinite(zeros).all().item<bool>(),
        "a scale or a zero point is not finite");
  }
}

Sizes sizesOfEmbedding(const Operands& operands) {
  Sizes sizes = operands.first();
  sizes.push_back(operands.op.attributes[TableAttributes::Columns]);
  return sizes;
}

int64_t axesOfEmbedding(const Operator& /*op*/, int64_t first, int64_t /*most*/) { return first + 1; }

// Items: indices.
Part embeddingKernel(const StepContext& c) {
  const Memory &index = c.in(), &to = c.out();
  const Placed at{{}, index.offset, index.home}, y{{}, to.offset, to.home};
  return {
      countOf(index.sizes),
      [=, table = codedRows(c.op), held = c.op.tensors, name = c.op.name, sizes = index.sizes,
       of_index = index.strides, of_result = to.strides](const Call& call, int64_t begin, int64_t end) {
        const auto* indices = at.in(call).data;
        auto* result = y.in(call).data;
        for (int64_t i = begin; i < end; ++i) {
          int64_t rest = i, asked = 0, written = 0;
          for (size_t axis = sizes.size(); axis-- > 0; rest /= sizes[axis]) {
            const int64_t here = rest % sizes[axis];
            asked += here * of_index[axis], written += here * of_result[axis];
          }
          const float wanted = *reinterpret_cast<const float*>(indices + asked);
          TORCH_CHECK_INDEX(
              wanted >= 0 && wanted < float(table.rows) && wanted == std::floor(wanted), name, " takes row ",
              wanted, ", and its table has rows 0 to ", table.rows - 1);
          table.decode(int64_t(wanted), reinterpret_cast<float*>(result + written));
        }
      }};
}

// Codes from 0 on, and their zero points; none if all are in the middle. Codes of 4 bits are stored in pairs.
std::vector<at::Tensor> tableTensors(
    const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& zero_points, int64_t bits) {
  const int64_t middle = int64_t{1} << (bits - 1), half = codes.size(1) / 2;
  const bool is_signed = codes.scalar_type() == at::kChar;
  const at::Tensor bytes = (codes.to(at::kInt) + (is_signed ? middle : 0)).to(at::kByte);
  const at::Tensor zeros = (zero_points + (is_signed ? middle : 0)).to(at::kFloat).contiguous();
  const bool centred = zeros.eq(middle).all().item<bool>();
  const at::Tensor packed =
      bits == 8 ? bytes : bytes.slice(1, 0, half).bitwise_or(bytes.slice(1, half).bitwise_left_shift(4));
  return {packed.contiguous(), scales, centred ? at::empty({0}, at::kFloat) : zeros};
}

Planned embedding(const RegionReader& reader, Node* node) {
  refuseUnless(weightAlone(node).has_value(), "its table is in float");
  const Node* maker = inputOf(node, "weight")->node();
  const at::Tensor codes = reader.tensor(maker, "q");
  refuseUnless(
      codes.dim() == 2 && codes.numel() > 0 && codes.element_size() == 1, "its table is no matrix of bytes");
  const int64_t rows = codes.size(0), columns = codes.size(1);
  const bool one = maker->kind() == dequantize;
  refuseUnless(one || reader.integer(maker, "axis") == 0, "its table has no scale for each row");
  const auto numbers = [&](const char* single, const char* each) {
    const at::Tensor given =
        one ? at::full({rows}, reader.number(maker, single), at::kDouble) : reader.tensor(maker, each);
    return given.reshape({rows, -1});
  };
  const at::Tensor scales = numbers("scale", "scales").to(at::kFloat).contiguous();
  const at::Tensor zero_points = numbers("zero_point", "zero_points");
  const int64_t low = codes.scalar_type() == at::kChar ? -8 : 0;
  const bool few = columns % 2 == 0 && !codes.is_meta() && codes.min().item<int64_t>() >= low &&
                   codes.max().item<int64_t>() <= low + 15;
  const int64_t bits = few ? 4 : 8;
  return {
      {Kind("embedding"), "", {}, 0, {columns, bits}, tableTensors(codes, scales, zero_points, bits)},
      {inputOf(node, "indices")}};
}

// Indices of any dtype arrive as float32. Attributes and tensors: see TableAttributes and TableTensors. There are no
// zero points if all are in the middle.
const RegisterOperator embedding_operator{
    {.name = "embedding",
     .attributes = {TableAttributes::Count, TableAttributes::Count},
     .tensors = {TableTensors::Count, TableTensors::Count},
     .types = Types::Real,
     .any_dtype = 0,
     .from = {{"embedding", embedding, "indices"}},
     .check = checkEmbedding,
     .infer = sizesOfEmbedding,
     .least_axes = axesOfEmbedding,
     .lower = lowerAsTheyAre,
     .kernel = embeddingKernel}};

} // namespace
} // namespace jit_passes::x86
