#include "arena.h"

#include <span>

#include "geometry.h"

namespace jit_passes::x86 {
namespace {

using Is = Memory::Is;

constexpr int64_t kAlignment = 64;
constexpr double kMaxBytes = 1e12; // limit for one value

// Sets the strides, and the offset within the value's own bytes. Returns the number of bytes.
int64_t layOutOwn(Memory& memory) {
  if (memory.border == Border{}) {
    layOutDense(memory);
    return countOf(memory.sizes) * memory.bytes();
  }
  const Dims dims = imageDims(memory.sizes, memory.axis);
  const Border& border = memory.border;
  // In double, which a hostile padding cannot overflow.
  const double bytes = double(dims[0].size) * double(dims[1].size + border.front + border.back) *
                       double(dims[2].size + border.top + border.bottom) *
                       double(dims[3].size + border.left + border.right) * double(memory.channels());
  TORCH_CHECK(
      bytes < kMaxBytes, "a value of the shape ", memory.sizes, " with its padding takes ", bytes,
      " bytes, and a plan's value may take ", kMaxBytes);
  const Layout layout = layOut(
      nullptr, dims[0].size, dims[1].size, dims[2].size, dims[3].size, memory.channels(), memory.border);
  const Image& image = layout.image;
  const int64_t strides[] = {image.image, image.plane, image.row, image.pixel};
  memory.strides.assign(memory.sizes.size(), 1);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].axis >= 0) {
      memory.strides[dims[i].axis] = strides[i];
    }
  }
  memory.offset = border.front * image.plane + border.top * image.row + border.left * image.pixel;
  return layout.bytes;
}

struct Place {
  Memory* memory;
  int64_t bytes;
};

// Places the largest value first, each at the lowest address that is free while it is needed. Returns the end of
// all.
int64_t placeAll(std::vector<Place>& places) {
  struct Taken {
    int64_t begin, end;
    size_t first, last;
  };
  const auto larger = [](const Place& a, const Place& b) { return a.bytes > b.bytes; };
  std::stable_sort(places.begin(), places.end(), larger);
  std::vector<Taken> taken; // sorted by address
  int64_t bytes = 0;
  for (const Place& place : places) {
    const size_t first = place.memory->first, last = place.memory->last;
    int64_t at = 0;
    for (const Taken& other : taken) {
      if (other.first <= last && first <= other.last) {
        if (other.begin >= at + place.bytes) {
          break;
        }
        at = std::max(at, other.end);
      }
    }
    const auto behind =
        std::find_if(taken.begin(), taken.end(), [&](const Taken& t) { return t.begin > at; });
    taken.insert(behind, {at, at + place.bytes, first, last});
    place.memory->offset += at;
    bytes = std::max(bytes, at + place.bytes);
  }
  return bytes;
}

// Sets the place of a slice, a block, or another name for a value, from its parent, which may be one itself.
void follow(std::vector<Memory>& memory, size_t id) {
  std::vector<size_t> chain;
  for (; memory[id].is != Is::Own && memory[id].strides.empty(); id = memory[id].parent) {
    chain.push_back(id);
  }
  for (; !chain.empty(); chain.pop_back()) {
    Memory& part = memory[chain.back()];
    const Memory& whole = memory[part.parent];
    part.home = whole.home;
    if (part.is == Is::Slice) {
      part.strides = whole.strides;
      part.offset = whole.offset + part.start * part.bytes();
    } else {
      layOutDense(part);
      part.offset = whole.offset + part.start * part.bytes();
    }
  }
}

} // namespace

void layOutDense(Memory& memory) {
  memory.strides.assign(memory.sizes.size(), memory.bytes());
  int64_t stride = memory.channels() * memory.bytes();
  for (int64_t axis = int64_t(memory.sizes.size()) - 1; axis >= 0; --axis) {
    if (axis != memory.axis) {
      memory.strides[axis] = stride;
      stride *= memory.sizes[axis];
    }
  }
}

Memory& ownerOf(Lowered& lowered, size_t id) {
  while (lowered.memory[id].is != Is::Own) {
    id = lowered.memory[id].parent;
  }
  return lowered.memory[id];
}

namespace {

// Sets the first and the last step that uses each memory.
void findUses(Lowered& lowered) {
  for (size_t i = 0; i < lowered.steps.size(); ++i) {
    const Step& step = lowered.steps[i];
    const auto touch = [&](size_t id) {
      Memory& owner = ownerOf(lowered, id);
      owner.first = std::min(owner.first, i), owner.last = std::max(owner.last, i);
    };
    std::for_each(step.inputs.begin(), step.inputs.end(), touch);
    if (step.does != Does::Exit) {
      touch(step.output);
    }
    if (step.kept) {
      touch(*step.kept);
    }
  }
}

// The operands that a step reads element by element, each before it writes the result's element at that place.
std::span<const size_t> operandsInPlace(const Lowered& lowered, const Step& step) {
  const std::span<const size_t> all(step.inputs);
  if (step.elementwise) {
    return lowered.memory[step.output].bytes() > 1 ? all : all.first(0);
  }
  if (step.does == Does::Convolve) {
    return all.subspan(1);
  }
  return step.adds_in_place ? all.subspan(1) : all.first(0);
}

// Whether the result of a step can take the place of this memory, which no later step reads.
bool takesPlaceOf(Lowered& lowered, const Step& step, size_t index, const Memory& owner) {
  const Memory& to = lowered.memory[step.output];
  const auto reads = [&](size_t id) { return &ownerOf(lowered, id) == &owner; };
  const auto isPlain = [](const Memory& memory) {
    return memory.is == Is::Own && memory.home == 0 && memory.border == Border{};
  };
  return isPlain(owner) && isPlain(to) && owner.last == index && to.first == index &&
         owner.sizes == to.sizes && owner.axis == to.axis && owner.grid != nullptr &&
         owner.bytes() == to.bytes() && std::ranges::count_if(step.inputs, reads) == 1;
}

// Lets results take the place of an operand where possible. Results are then written to memory that is in the cache,
// and all values together need less of it.
void reusePlaces(Lowered& lowered) {
  for (size_t i = 0; i < lowered.steps.size(); ++i) {
    const Step& step = lowered.steps[i];
    for (const size_t id : operandsInPlace(lowered, step)) {
      Memory& owner = ownerOf(lowered, id);
      if (takesPlaceOf(lowered, step, i, owner)) {
        Memory& to = lowered.memory[step.output];
        to.is = Is::Same, to.parent = &owner - lowered.memory.data();
        owner.last = to.last;
        break;
      }
    }
  }
}

} // namespace

void placeMemory(Lowered& lowered) {
  findUses(lowered);
  reusePlaces(lowered);
  std::vector<Place> places;
  for (Memory& memory : lowered.memory) {
    if (memory.is != Is::Own || memory.first == SIZE_MAX) {
      continue;
    }
    const int64_t bytes = layOutOwn(memory);
    if (memory.home == 0) {
      places.push_back({&memory, (bytes + kAlignment - 1) / kAlignment * kAlignment});
    }
  }
  lowered.bytes = placeAll(places);
  for (size_t id = 0; id < lowered.memory.size(); ++id) {
    follow(lowered.memory, id);
  }
}

} // namespace jit_passes::x86
