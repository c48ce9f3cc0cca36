#include "registry.h"

namespace jit_passes {
namespace {

template <typename Info>
struct Table {
  std::mutex mutex;
  std::map<std::string, Info> entries;

  std::map<std::string, Info> copy() {
    const std::lock_guard<std::mutex> guard(mutex);
    return entries;
  }
};

// Never destroyed: other libraries' static objects and Python's functions may outlive it.
template <typename Info>
Table<Info>& table() {
  static auto* const entries = new Table<Info>();
  return *entries;
}

template <typename Info>
void add(const char* what, Info info) {
  TORCH_CHECK(!info.name.empty(), "a ", what, " needs a name");
  TORCH_CHECK(!info.summary.empty(), "the ", what, " '", info.name, "' needs a one-line summary");
  const auto name = info.name;
  const std::lock_guard<std::mutex> guard(table<Info>().mutex);
  const bool inserted = table<Info>().entries.emplace(name, std::move(info)).second;
  TORCH_CHECK(inserted, "a ", what, " named '", name, "' is registered already");
}

} // namespace

RegisterPass::RegisterPass(
    std::string name, std::string summary, PassFunction run, std::vector<std::string> requires_,
    std::vector<std::string> ensures) {
  add("pass",
      PassInfo{
          std::move(name), std::move(summary), std::move(run), std::move(requires_), std::move(ensures)});
}

RegisterInvariant::RegisterInvariant(std::string name, std::string summary, InvariantFunction check) {
  add("invariant", InvariantInfo{std::move(name), std::move(summary), std::move(check)});
}

RegisterOp::RegisterOp(std::string name, std::string summary) {
  add("op", OpInfo{std::move(name), std::move(summary)});
}

bool removePass(const std::string& name) {
  const std::lock_guard<std::mutex> guard(table<PassInfo>().mutex);
  return table<PassInfo>().entries.erase(name) > 0;
}

std::map<std::string, PassInfo> passes() { return table<PassInfo>().copy(); }
std::map<std::string, InvariantInfo> invariants() { return table<InvariantInfo>().copy(); }
std::map<std::string, OpInfo> ops() { return table<OpInfo>().copy(); }

} // namespace jit_passes
