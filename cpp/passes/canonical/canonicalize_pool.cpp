// Replace adaptive average pools that reduce some axes to one element, and leave the others as they are, by means.
//
//   %n : int = aten::size(%x, 3)
//   %y = aten::adaptive_avg_pool2d(%x, [1, %n])      ->   %y = aten::mean(%x, [-2], True, None)
//
// Traces of nn.AdaptiveAvgPool2d((1, None)) have this form; networks that read lines of text use it. With a known
// rank it is certain that %n is the size of the pooled axis: axis 3 of a batch of images.
#include "facts/shape_facts.h"
#include "facts/shapes.h"
#include "graph/registry.h"

namespace jit_passes {
namespace {

const auto pool2d = symbol("aten::adaptive_avg_pool2d");
const auto pool3d = symbol("aten::adaptive_avg_pool3d");

Value* asMean(const Shapes& shapes, Node* pool) {
  if (pool->kind() != pool2d && pool->kind() != pool3d) {
    return nullptr;
  }
  const Node* list = inputOf(pool, "output_size")->node();
  const int64_t spatial = spatialOf(pool);
  const bool listed = list->kind() == prim::ListConstruct && int64_t(list->inputs().size()) == spatial;
  if (!listed || shapes.isWritten(inputOf(pool, "self")) || shapes.isWritten(list->output())) {
    return nullptr;
  }
  const auto rank = shapes.rank(inputOf(pool, "self"));
  std::vector<int64_t> gone;
  for (int64_t i = 0; rank && i < spatial; ++i) {
    const Extent size = shapes.ofNumber(list->input(i));
    const Extent own = shapes.ofAxis(inputOf(pool, "self"), *rank - spatial + i);
    if (size.number() == 1) {
      gone.push_back(i - spatial);
    } else if (size.isNumber() || size != own) {
      return nullptr;
    }
  }
  if (gone.empty() || int64_t(gone.size()) == spatial) { // other passes know a pool to one pixel
    return nullptr;
  }
  Value *axes = insertConstant(pool, gone), *keep = insertConstant(pool, true);
  return insertValue(
      pool, aten::mean, {inputOf(pool, "self"), axes, keep, insertConstant(pool, c10::IValue())}, pool);
}

bool canonicalizePool(PassContext& context) {
  const Shapes shapes(context, Images::Unknown);
  return replaceNodes(*context.graph(), [&](Node* node) { return asMean(shapes, node); });
}

const RegisterPass canonicalize_pool_pass{
    "canonicalize_pool", "Write adaptive pools that reduce whole axes as means.", canonicalizePool,
    needs("inlined")};

} // namespace
} // namespace jit_passes
