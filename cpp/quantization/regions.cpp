#include "regions.h"

#include "facts/shape_facts.h"
#include "graph/alias.h"
#include "graph/operators.h"
#include "view/snapshot.h"

namespace jit_passes {
namespace {

using c10::Symbol;

// Visits the operands of a node, and the values that its blocks read or return.
void forEachOperand(const Node* node, const std::function<void(Value*)>& visit) {
  std::for_each(node->inputs().begin(), node->inputs().end(), [&](const Value* value) {
    visit(const_cast<Value*>(value));
  });
  for (const Block* block : node->blocks()) {
    for (const Node* inner : block->nodes()) {
      forEachOperand(inner, visit);
    }
    std::for_each(block->outputs().begin(), block->outputs().end(), [&](const Value* value) {
      visit(const_cast<Value*>(value));
    });
  }
}

struct Region {
  size_t first, last; // positions in the block
  std::vector<size_t> units;
  std::vector<const Node*> nodes;
  std::vector<const Node*> sources; // nodes that are read, outside when their reader joined
};

// Finds the regions of one block. A region counts as one node, or two regions could come to read each other.
class Search {
 public:
  Search(const Order& order, const Units& units, const std::vector<size_t>& own) {
    Block* block = units[own.front()].front()->owningBlock();
    order.visit(*block->nodes().begin(), nullptr, [&](Node* node, const std::vector<Node*>& before) {
      places_.emplace(node, Place{places_.size(), before});
    });
    lowest_.resize(places_.size());
    std::iota(lowest_.begin(), lowest_.end(), 0);
    for (const size_t unit : own) {
      const auto positions = [&](const Node* a, const Node* b) { return positionOf(a) < positionOf(b); };
      const auto [first, last] = std::minmax_element(units[unit].begin(), units[unit].end(), positions);
      auto& region = regions_.emplace_back(
          std::make_unique<Region>(Region{
              positionOf(*first), positionOf(*last), {unit}, {units[unit].begin(), units[unit].end()}, {}}));
      bool free = true;
      for (Node* node : units[unit]) {
        free &= !order.isFixed(node) && !order.readsFixedSize(node);
        by_node_[node] = region.get();
        const auto sources = order.sourcesOf(node);
        region->sources.insert(region->sources.end(), sources.begin(), sources.end());
      }
      if (free && !closesPath(*region, *region)) {
        by_unit_.emplace(unit, region.get());
        span(region->first, region->first, region->last);
      } else {
        std::for_each(units[unit].begin(), units[unit].end(), [&](Node* node) { by_node_.erase(node); });
      }
    }
  }

  void join(size_t one, size_t other) {
    const auto a = by_unit_.find(one), b = by_unit_.find(other);
    if (a == by_unit_.end() || b == by_unit_.end() || a->second == b->second ||
        closesPath(*a->second, *b->second)) {
      return;
    }
    Region *into = a->second, *gone = b->second;
    if (into->units.size() < gone->units.size()) {
      std::swap(into, gone);
    }
    const size_t first = std::min(into->first, gone->first), last = std::max(into->last, gone->last);
    span(first, first, into->first);
    span(first, into->last, last);
    into->first = first, into->last = last;
    for (const size_t unit : gone->units) {
      by_unit_[unit] = into;
      into->units.push_back(unit);
    }
    for (const Node* node : gone->nodes) {
      by_node_[node] = into;
      into->nodes.push_back(node);
    }
    std::copy_if(
        gone->sources.begin(), gone->sources.end(), std::back_inserter(into->sources),
        [&](const Node* source) { return regionOf(source) != into; });
  }

  const std::unordered_map<size_t, Region*>& byUnit() const { return by_unit_; }

 private:
  const Region* regionOf(const Node* node) const {
    const auto found = by_node_.find(node);
    return found == by_node_.end() ? nullptr : found->second;
  }

  size_t positionOf(const Node* node) const { return places_.at(node).position; }

  // Notes that a region which begins at `first` covers the positions after `from`, up to and including `to`.
  void span(size_t first, size_t from, size_t to) {
    for (size_t i = from + 1; i <= to; ++i) {
      lowest_[i] = std::min(lowest_[i], first);
    }
  }

  // Whether a path leaves the two regions and comes back. A path through a position in front of both cannot come
  // back, unless a region covers that position and a later one.
  bool closesPath(const Region& one, const Region& other) const {
    size_t lowest = std::min(one.first, other.first);
    while (lowest_[lowest] < lowest) {
      lowest = lowest_[lowest];
    }
    std::unordered_set<const void*> seen;
    std::vector<const Node*> pending;
    const auto follow = [&](const auto& sources) {
      pending.insert(pending.end(), sources.begin(), sources.end());
    };
    const auto inside = [&](const Region* region) { return region == &one || region == &other; };
    for (const Region* region : {&one, &other}) {
      std::copy_if(
          region->sources.begin(), region->sources.end(), std::back_inserter(pending),
          [&](const Node* source) { return !inside(regionOf(source)); });
    }
    while (!pending.empty()) {
      const Node* node = pending.back();
      pending.pop_back();
      const Region* region = regionOf(node);
      if (inside(region)) {
        return true;
      }
      if (positionOf(node) < lowest) {
        continue;
      }
      if (region != nullptr) {
        if (seen.insert(region).second) {
          follow(region->sources);
        }
      } else if (seen.insert(node).second) {
        follow(places_.at(node).before);
      }
    }
    return false;
  }

  struct Place {
    size_t position;
    std::vector<Node*> before;
  };

  std::unordered_map<const Node*, Place> places_;
  std::vector<size_t> lowest_; // for each position, the first position of the regions that cover it
  std::unordered_map<const Node*, Region*> by_node_;
  std::unordered_map<size_t, Region*> by_unit_;
  std::vector<std::unique_ptr<Region>> regions_;
};

void checkUnits(const Units& units) {
  std::unordered_set<const Node*> known;
  for (const auto& nodes : units) {
    TORCH_CHECK(!nodes.empty(), "an operator of a region consists of no node");
    for (const Node* node : nodes) {
      TORCH_CHECK(known.insert(node).second, describe(node), " belongs to two operators of regions");
      TORCH_CHECK(
          node->owningBlock() == nodes.front()->owningBlock(), describe(node), " and ",
          describe(nodes.front()), " stand in different branches or loops: a region is of one block");
    }
  }
}

} // namespace

Order::Order(const std::shared_ptr<Graph>& graph) {
  const auto written = writtenValues(graph);
  bool assigns = false;
  forEachNode(*graph, [&](const Node* node) { assigns |= node->kind() == prim::SetAttr; });
  const auto any = [](const auto& values, const auto& test) {
    return std::any_of(values.begin(), values.end(), test);
  };
  const auto is_written = [&](const Value* value) { return written.count(value) > 0; };
  forEachNode(*graph, [&](const Node* node) { // inner nodes first
    const bool contains = any(node->blocks(), [&](const Block* block) {
      return any(block->nodes(), [&](const Node* inner) { return isFixed(inner); });
    });
    if (contains || mayWrite(node) || node->hasSideEffects() || isRandom(node) ||
        (assigns && node->kind() == prim::GetAttr) || any(node->inputs(), is_written) ||
        any(node->outputs(), is_written)) {
      fixed_.insert(node);
    }
  });
}

bool Order::isCopied(const Node* node) const {
  static const std::unordered_set<Symbol> kinds{
      prim::Constant,
      prim::ListConstruct,
      prim::ListUnpack,
      Symbol::fromQualString("jit_passes::quantize"),
      Symbol::fromQualString("jit_passes::dequantize"),
      Symbol::fromQualString("jit_passes::choose_qparams"),
      Symbol::fromQualString("jit_passes::quantize_dynamic"),
      Symbol::fromQualString("jit_passes::dequantize_dynamic"),
      Symbol::fromQualString("jit_passes::quantize_per_channel"),
      Symbol::fromQualString("jit_passes::dequantize_per_channel")};
  const Node* moved = movedConstant(node);
  const bool moves = moved != nullptr && !isFixed(moved);
  return (kinds.count(node->kind()) > 0 || computesNumber(node) || moves) && !isFixed(node);
}

bool Order::readsFixedSize(const Node* node) const {
  std::vector<const Node*> pending{node};
  std::unordered_set<const Node*> seen;
  while (!pending.empty()) {
    const Node* reader = pending.back();
    pending.pop_back();
    for (const Value* value : reader->inputs()) {
      const Node* source = value->node();
      if (!seen.insert(source).second) {
        continue;
      }
      if (isCopied(source)) {
        pending.push_back(source);
      } else if (isFixed(source) && computesNumber(source)) {
        return true;
      }
    }
  }
  return false;
}

std::vector<Node*> Order::sourcesOf(Node* node) const {
  std::vector<Node*> sources, pending{node};
  std::unordered_set<const Node*> seen;
  while (!pending.empty()) {
    const Node* reader = pending.back();
    pending.pop_back();
    for (const Value* value : reader->inputs()) {
      Node* source = const_cast<Node*>(value->node());
      const bool here = source->owningBlock() == node->owningBlock() && source->kind() != prim::Param;
      if (here && seen.insert(source).second) { // `seen`: copied nodes that read each other have many paths
        (isCopied(source) ? pending : sources).push_back(source);
      }
    }
  }
  return sources;
}

void Order::visit(Node* first, const Node* last, const Visit& visit) const {
  const Block* block = first->owningBlock();
  Node* fixed = nullptr; // the previous fixed node
  for (Node* node = first; node->kind() != prim::Return; node = node->next()) {
    std::vector<Node*> before;
    forEachOperand(node, [&](const Value* value) {
      Node* source = const_cast<Node*>(value->node());
      const bool inside = source->owningBlock() == block && source->kind() != prim::Param;
      if (inside && !source->isBefore(first)) {
        before.push_back(source);
      }
    });
    if (isFixed(node)) {
      if (fixed != nullptr) {
        before.push_back(fixed);
      }
      fixed = node;
    }
    visit(node, before);
    if (node == last) {
      return;
    }
  }
}

std::vector<int64_t> findRegions(
    const std::shared_ptr<Graph>& graph, const Units& units, const Links& links) {
  checkUnits(units);
  const Order order(graph);
  std::unordered_map<const Block*, std::vector<size_t>> blocks;
  std::unordered_map<const Node*, size_t> position;
  for (const Node* node : nodesInOrder(*graph)) {
    position.emplace(node, position.size());
  }
  const auto end = [&](size_t unit) {
    size_t last = 0;
    for (const Node* node : units[unit]) {
      last = std::max(last, position.at(node));
    }
    return last;
  };
  std::vector<size_t> ends;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    blocks[units[unit].front()->owningBlock()].push_back(unit);
    ends.push_back(end(unit));
  }
  Links sorted;
  for (const auto& [one, other] : links) {
    TORCH_CHECK(
        one < units.size() && other < units.size(), "a link names operators ", one, " and ", other,
        ", and there are ", units.size());
    sorted.emplace_back(ends[one] < ends[other] ? one : other, ends[one] < ends[other] ? other : one);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) {
    return ends[a.second] < ends[b.second];
  });
  std::vector<const Region*> regions(units.size());
  std::vector<std::unique_ptr<Search>> searches; // they own the regions
  for (const auto& [block, own] : blocks) {
    const auto& search = searches.emplace_back(std::make_unique<Search>(order, units, own));
    for (const auto& [one, other] : sorted) {
      search->join(one, other);
    }
    for (const auto& [unit, region] : search->byUnit()) {
      regions[unit] = region;
    }
  }
  std::vector<size_t> in_order(units.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  std::sort(in_order.begin(), in_order.end(), [&](size_t a, size_t b) { return ends[a] < ends[b]; });
  std::unordered_map<const Region*, int64_t> numbers;
  std::vector<int64_t> result(units.size(), -1);
  for (const size_t unit : in_order) {
    if (regions[unit] != nullptr) {
      result[unit] = numbers.emplace(regions[unit], numbers.size()).first->second;
    }
  }
  return result;
}

} // namespace jit_passes
