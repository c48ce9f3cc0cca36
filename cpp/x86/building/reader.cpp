#include "reader.h"

#include "facts/casts.h"
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/dialect.h"
#include "graph/places.h"

namespace jit_passes::x86 {
namespace {

constexpr int64_t kSignedShift = 128;

// The number that is added to codes of a dtype for storage; nothing for dtypes that do not fit into a byte.
std::optional<int64_t> shiftOf(at::ScalarType dtype) {
  return dtype == at::kByte   ? std::optional<int64_t>(0)
         : dtype == at::kChar ? std::optional(kSignedShift)
                              : std::nullopt;
}

bool isDequantize(const Node* node) {
  return node->kind() == dequantize || node->kind() == dequantize_per_channel;
}

void refuseUnlessKnown(bool known, const std::string& operand) {
  refuseUnless(known, "its operand '", operand, "' is computed by the model");
}

void requireType(const std::string& name, const c10::IValue& value, bool fits, const char* type) {
  refuseUnless(fits, "its operand '", name, "' is ", value.tagKind(), ", and a plan takes ", type);
}

// Whether all readers of the value, also after moves, take any dtype, for truths or indices.
bool isReadInAnyDtype(const Value* value) {
  return std::ranges::all_of(value->uses(), [](const torch::jit::Use& use) {
    return takesAnyDtype(use) || (repeatsOrCuts(use.user) && isReadInAnyDtype(use.user->output()));
  });
}

} // namespace

int64_t axesOf(const Value* tensor) {
  const auto type = tensor->type()->cast<c10::TensorType>();
  return type ? static_cast<int64_t>(type->dim().value_or(0)) : 0;
}

std::optional<c10::IValue> RegionReader::find(const Value* value) const {
  if (isConstant(value)) {
    return torch::jit::toIValue(value);
  }
  const Node* node = value->node();
  if (node->kind() == c10::prim::ListConstruct && !known_.isWritten(value)) {
    std::vector<c10::IValue> elements;
    for (const Value* element : node->inputs()) {
      auto found = find(element);
      if (!found) {
        return std::nullopt;
      }
      elements.push_back(std::move(*found));
    }
    c10::impl::GenericList list(value->type()->expectRef<c10::ListType>().getElementType());
    for (auto& element : elements) {
      list.push_back(std::move(element));
    }
    return list;
  }
  return known_.parameter(value);
}

c10::IValue RegionReader::operand(const Node* node, const std::string& name) const {
  const Value* value = operandOf(node, name);
  refuseUnless(value != nullptr, "it has no operand '", name, "'");
  auto found = find(value);
  refuseUnlessKnown(found.has_value(), name);
  return std::move(*found);
}

bool RegionReader::has(const Node* node, const std::string& name) const {
  const Value* value = operandOf(node, name);
  return value != nullptr && !isNone(value);
}

double RegionReader::number(const Node* node, const std::string& name) const {
  const auto value = operand(node, name);
  if (value.isTensor() && value.toTensor().numel() == 1) {
    const auto& tensor = value.toTensor(); // with an axis, its dtype may be the result's
    refuseUnless(
        tensor.dim() == 0 || tensor.scalar_type() != at::kDouble, "its operand '", name,
        "' is a float64 tensor");
    return tensor.item<double>();
  }
  requireType(name, value, value.isScalar() && !value.isComplexDouble(), "a number");
  return value.toScalar().toDouble();
}

int64_t RegionReader::integer(const Node* node, const std::string& name) const {
  const auto value = operand(node, name);
  requireType(name, value, value.isInt(), "a whole number");
  return value.toInt();
}

bool RegionReader::flag(const Node* node, const std::string& name) const {
  const auto value = operand(node, name);
  requireType(name, value, value.isBool(), "True or False");
  return value.toBool();
}

std::string RegionReader::text(const Node* node, const std::string& name) const {
  const auto value = operand(node, name);
  requireType(name, value, value.isString(), "a text");
  return value.toStringRef();
}

at::Tensor RegionReader::tensor(const Node* node, const std::string& name) const {
  const auto value = operand(node, name);
  requireType(name, value, value.isTensor(), "a tensor");
  return value.toTensor();
}

std::vector<int64_t> RegionReader::integers(const Node* node, const std::string& name) const {
  const auto value = operand(node, name);
  requireType(name, value, value.isInt() || value.isIntList(), "a list of whole numbers");
  return value.isInt() ? std::vector{value.toInt()} : value.toIntVector();
}

std::vector<int64_t> RegionReader::integers(const Node* node, const std::string& name, size_t count) const {
  auto numbers = integers(node, name);
  if (numbers.size() == 1) {
    numbers.resize(count, numbers[0]);
  }
  refuseUnless(
      numbers.size() == count, "its operand '", name, "' has ", numbers.size(), " numbers for ", count,
      " axes");
  return numbers;
}

void RegionReader::refuseCast(const Node* node) const {
  refuseUnless(
      !has(node, "dtype") || integer(node, "dtype") == static_cast<int64_t>(at::kFloat),
      "it changes the dtype");
}

void RegionReader::refuseTraining(const Node* node, const char* name) const {
  refuseUnless(!flag(node, name), "it is in training mode");
}

Numbers RegionReader::numbers(const Node* node, const std::string& name) const {
  Value* value = operandOf(node, name);
  refuseUnless(value != nullptr, "it has no operand '", name, "'");
  Numbers numbers;
  if (const auto found = find(value)) {
    refuseUnless(
        found->isInt() || found->isIntList(), "its operand '", name,
        "' is no whole number, or list of these");
    numbers.known = found->isInt() ? std::vector{found->toInt()} : found->toIntVector();
    return numbers;
  }
  const bool list = value->node()->kind() == c10::prim::ListConstruct && !isWritten(value);
  const auto elements = list ? value->node()->inputs().vec() : std::vector{value};
  for (Value* element : elements) {
    refuseUnless(
        (takesShape(node) && isSizes(element)) || element->type()->kind() == c10::TypeKind::IntType,
        "its operand '", name, "' is computed by the model");
    const auto known = find(element);
    if (!known) {
      numbers.computed.emplace_back(numbers.known.size(), element);
    }
    numbers.known.push_back(known ? known->toInt() : 1);
  }
  return numbers;
}

void append(Planned& planned, const Numbers& numbers) {
  auto& attributes = planned.op.attributes;
  for (const auto& [position, value] : numbers.computed) {
    planned.computed.emplace_back(attributes.size() + position, value);
  }
  attributes.insert(attributes.end(), numbers.known.begin(), numbers.known.end());
}

Codes RegionReader::codesOf(const Node* quantize) const {
  const auto shift = shiftOf(static_cast<at::ScalarType>(integer(quantize, "dtype")));
  refuseUnless(shift.has_value(), "its codes are not of 8 bits");
  const double scale = number(quantize, "scale");
  const int64_t zero_point = integer(quantize, "zero_point") + *shift;
  const int64_t low = integer(quantize, "quant_min") + *shift;
  const int64_t high = integer(quantize, "quant_max") + *shift;
  refuseUnless(
      zero_point >= 0 && zero_point <= 255 && low >= 0 && low <= high && high <= 255,
      "its zero point or its range does not fit its dtype");
  return {{scale, zero_point, low, high}, *shift};
}

std::pair<double, int64_t> RegionReader::scaleOf(const Node* dequantize) const {
  return {number(dequantize, "scale"), integer(dequantize, "zero_point")};
}

std::pair<at::Tensor, int64_t> RegionReader::tableOf(
    const Node* lookup, const Grid& from, int64_t from_shift) const {
  const at::Tensor entries = tensor(lookup, "table").contiguous();
  const auto shift = shiftOf(entries.scalar_type());
  refuseUnless(shift.has_value(), "its entries are no codes of 8 bits");
  const int64_t count = entries.numel(), first = integer(lookup, "first") + from_shift;
  refuseUnless(
      count > 0 && from.low >= first && from.high < first + count,
      "it has no entry for some code of its operand");
  auto table = at::empty({256}, at::kByte);
  const auto* stored = static_cast<const uint8_t*>(entries.const_data_ptr());
  for (int64_t code = 0; code < 256; ++code) {
    const int64_t entry = std::clamp(code, from.low, from.high) - first;
    table.mutable_data_ptr<uint8_t>()[code] = stored[entry] + *shift;
  }
  return {table, *shift};
}

Grid RegionReader::gridOfTable(const Node* lookup, const at::Tensor& table, int64_t shift) const {
  Grid grid{1, shift, table.min().item<uint8_t>(), table.max().item<uint8_t>()};
  bool known = false;
  for (const torch::jit::Use& use : lookup->output()->uses()) {
    if (use.user->kind() == dequantize) {
      const auto [scale, zero_point] = scaleOf(use.user);
      refuseUnless(
          !known || (grid.scale == scale && grid.zero_point == zero_point + shift),
          "its result is dequantized with two scales");
      grid.scale = scale, grid.zero_point = zero_point + shift, known = true;
    }
  }
  refuseUnless(grid.zero_point >= 0 && grid.zero_point <= 255, "its zero point is no code");
  return grid;
}

std::pair<at::Tensor, at::Tensor> RegionReader::weights(const Value* value, int64_t axis) const {
  const Node* node = value->node();
  const bool coded = isDequantize(node);
  if (const auto held = !sized_ ? std::nullopt
                        : coded ? operand(node, "q").toOptional<at::Tensor>()
                                : known_.tensor(value)) {
    refuseUnless(held->dim() >= 2 && held->numel() > 0, "its weight is empty, or a vector");
    refuseUnless(!coded || held->scalar_type() == at::kChar, "its weights are not int8");
    if (!coded || !mayLeaveInt32(held->movedim(axis, 0))) {
      return {
          at::empty(held->sizes(), at::device(at::kMeta).dtype(at::kChar)),
          at::ones({held->size(axis)}, at::kDouble)};
    }
  }
  refuseUnless(isDequantize(node), "no dequantize makes its weight");
  const auto codes = operand(node, "q");
  refuseUnless(codes.isTensor() && codes.toTensor().scalar_type() == at::kChar, "its weights are not int8");
  const at::Tensor weight = codes.toTensor().contiguous();
  refuseUnless(weight.dim() >= 2 && weight.numel() > 0, "its weight is empty");
  at::Tensor scales;
  if (node->kind() == dequantize) {
    const auto [scale, zero_point] = scaleOf(node);
    refuseUnless(zero_point == 0, "its weights have the zero point ", zero_point, ", which is not 0");
    scales = at::full({weight.size(axis)}, scale, at::kDouble);
  } else {
    const int64_t own = integer(node, "axis");
    refuseUnless(
        own == axis || own == axis - weight.dim(), "its weights have a scale for each index of axis ", own);
    refuseUnless(tensor(node, "zero_points").eq(0).all().item<bool>(), "its weights have zero points");
    scales = tensor(node, "scales").to(at::kDouble).contiguous();
  }
  refuseUnless(
      scales.dim() == 1 && scales.size(0) == weight.size(axis), "its weights have ", scales.numel(),
      " scales");
  return {weight, scales};
}

std::optional<std::pair<at::Tensor, Grid>> RegionReader::constant(const Value* value) const {
  const Node* node = value->node();
  const bool coded = node->kind() == dequantize;
  const auto held = find(coded ? node->input(0) : value);
  if (held && (held->isDouble() || held->isInt())) {
    return std::pair(at::scalar_tensor(held->toScalar().toDouble(), at::kDouble).to(at::kFloat), kFloat32);
  }
  if (!held || !held->isTensor()) {
    return std::nullopt;
  }
  if (!coded) {
    at::Tensor floats = held->toTensor().detach().contiguous();
    const bool number = floats.dim() == 0 && !floats.is_complex(); // a number in a trace
    floats = number || isReadInAnyDtype(value) ? floats.to(at::kFloat) : floats;
    refuseUnless(floats.scalar_type() == at::kFloat, "its constant is not float32");
    return std::pair(floats, kFloat32);
  }
  const auto shift = shiftOf(held->toTensor().scalar_type());
  refuseUnless(shift.has_value(), "the codes of a constant are not of 8 bits");
  const auto codes = held->toTensor().to(at::kInt).add(*shift).to(at::kByte).contiguous();
  const auto [scale, zero_point] = scaleOf(node);
  const int64_t zero = zero_point + *shift;
  refuseUnless(zero >= 0 && zero <= 255, "the zero point of a constant does not fit its dtype");
  return std::pair(codes, Grid{scale, zero, 0, 255});
}

at::Tensor RegionReader::bias(const Value* value, int64_t count) const {
  if (isNone(value)) {
    return at::zeros({count}, at::kFloat);
  }
  const Node* node = value->node();
  auto known = sized_ && isDequantize(node) ? std::optional(operand(node, "q"))
               : sized_ && isTensor(value)  ? std::optional<c10::IValue>(known_.tensor(value))
                                            : find(value);
  if (!known && isDequantize(node)) {
    torch::jit::Stack stack;
    for (const auto& argument : node->schema().arguments()) {
      stack.push_back(operand(node, argument.name()));
    }
    node->getOperation()(stack);
    known = stack.back();
  }
  refuseUnlessKnown(known.has_value(), "bias");
  if (known->isNone()) {
    return at::zeros({count}, at::kFloat);
  }
  const auto bias = known->toTensor().detach().to(at::kFloat).contiguous();
  refuseUnless(bias.dim() == 1 && bias.size(0) == count, "its bias has the shape ", bias.sizes());
  return bias;
}

bool isSilent(const Node* node) {
  static const std::unordered_set<c10::Symbol> kinds{
      c10::prim::Constant, c10::prim::GetAttr, c10::prim::ListConstruct, c10::prim::TupleConstruct,
      choose_qparams,      quantize_dynamic,   dequantize_dynamic};
  return kinds.count(node->kind()) > 0 || computesNumber(node) || node->kind() == dequantize_per_channel;
}

} // namespace jit_passes::x86
