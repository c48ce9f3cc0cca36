// The line of the user's code that a node comes from.
#include "graph.h"

namespace jit_passes {
namespace {

using torch::jit::SourceRange;

const std::string kTracer = "/torch/jit/_trace.py";

bool isOfTorch(const std::string& line) {
  static const std::array<const char*, 4> places{
      "/torch/nn/", "/torch/functional.py", "/torch/_", "/torch/jit/"};
  return std::ranges::any_of(
      places, [&](const char* place) { return line.find(place) != std::string::npos; });
}

std::string textOf(const SourceRange& range) {
  const auto location = range.file_line_col();
  if (!location || std::get<0>(*location).empty()) {
    return "";
  }
  return std::get<0>(*location) + ":" + std::to_string(std::get<1>(*location));
}

// The first call outside of PyTorch. Tracing notes the whole stack of Python, the innermost call first:
// "/net.py(12): forward\n/torch/nn/...". Nothing if the stack goes from PyTorch's code straight to the tracer.
std::string tracedLine(const SourceRange& range) {
  const auto& source = range.source();
  for (size_t i = 0; i < source->num_lines(); ++i) {
    const std::string call = source->get_line(i).str();
    const size_t end = call.rfind("): ");
    const size_t open = end == std::string::npos ? end : call.rfind('(', end);
    const std::string number = open == std::string::npos ? "" : call.substr(open + 1, end - open - 1);
    const bool is_call = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
    if (!is_call || call.find(kTracer) != std::string::npos) {
      return "";
    }
    const std::string line = call.substr(0, open) + ":" + number;
    if (!isOfTorch(line)) {
      return line;
    }
  }
  return "";
}

} // namespace

std::string lineOf(const SourceRange& range) {
  // A file notes for each piece of its code the original code. For the call of a function this note begins at the
  // parenthesis, where the range of the call ends.
  auto original = range.findSourceRangeThatGenerated();
  std::string line = original ? textOf(*original) : "";
  if (original && line.empty()) {
    original = SourceRange(range.source(), range.end(), range.end()).findSourceRangeThatGenerated();
    line = original ? textOf(*original) : "";
  }
  const SourceRange& known = line.empty() ? range : *original;
  line = line.empty() ? textOf(range) : line;
  if (line.rfind("code/__torch__", 0) == 0) {
    return line + " in the file";
  }
  const std::string user = isOfTorch(line) ? tracedLine(known) : "";
  return user.empty() ? line : user;
}

const SourceLines::Line& SourceLines::at(const SourceRange& range) {
  const auto [found, is_new] = known_.try_emplace({range.source().get(), range.start(), range.end()});
  if (is_new) {
    std::string text = lineOf(range);
    const bool is_of_torch = isOfTorch(text);
    found->second = {std::move(text), is_of_torch};
  }
  return found->second;
}

// The innermost call outside of PyTorch's own modules, which the user wrote.
std::string SourceLines::of(const Node* node) {
  const Line& own = at(node->sourceRange());
  if (!own.is_of_torch || !node->callstack()) {
    return own.text;
  }
  const auto calls = (*node->callstack())->vec(); // the outermost first
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    const Line& line = at(std::get<1>(*call));
    if (!line.text.empty() && !line.is_of_torch) {
      return line.text;
    }
  }
  return own.text;
}

std::string sourceLine(const Node* node) { return SourceLines().of(node); }

} // namespace jit_passes
