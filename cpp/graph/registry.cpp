#include "registry.h"

#include "names.h"

namespace jit_passes {
namespace {

template <typename Info>
struct Entries {
  std::mutex mutex;
  std::map<std::string, Info> entries;

  std::map<std::string, Info> copy() {
    const std::lock_guard<std::mutex> guard(mutex);
    return entries;
  }

  std::optional<Info> find(const std::string& name) {
    const std::lock_guard<std::mutex> guard(mutex);
    const auto found = entries.find(name);
    return found == entries.end() ? std::nullopt : std::optional(found->second);
  }

  bool remove(const std::string& name) {
    const std::lock_guard<std::mutex> guard(mutex);
    return entries.erase(name) > 0;
  }
};

// Never destroyed: other libraries' static objects and Python's functions may outlive it.
template <typename Info>
Entries<Info>& table() {
  static auto* const entries = new Entries<Info>();
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

void PassContext::remark(const torch::jit::Node* node, std::string reason) {
  pending_.emplace_back(node, Remark{describe(node), std::move(reason)});
}

std::vector<Remark> PassContext::remarks() const {
  std::vector<Remark> all = named_;
  if (pending_.empty()) {
    return all;
  }
  const NodeNames names = nodeNames(*graph());
  for (const auto& [node, remark] : pending_) { // the node may be destroyed: its address serves as a key only
    const auto found = names.find(node);
    all.push_back({found == names.end() ? remark.name : found->second, remark.reason});
  }
  return all;
}

RegisterPass::RegisterPass(
    std::string name, std::string summary, PassFunction run, std::vector<std::string> requires_,
    std::vector<std::string> ensures, std::vector<PassOption> options) {
  add("pass", PassInfo{
                  std::move(name), std::move(summary), std::move(run), std::move(requires_),
                  std::move(ensures), std::move(options)});
}

RegisterInvariant::RegisterInvariant(std::string name, std::string summary, InvariantFunction check) {
  add("invariant", InvariantInfo{std::move(name), std::move(summary), std::move(check)});
}

RegisterOp::RegisterOp(const std::string& schema, std::string summary)
    : library_(torch::Library::FRAGMENT, "jit_passes", std::nullopt, __FILE__, __LINE__) {
  library_.def(schema.c_str());
  add("op", OpInfo{schema.substr(0, schema.find('(')), std::move(summary)});
}

bool removePass(const std::string& name) { return table<PassInfo>().remove(name); }
bool removeInvariant(const std::string& name) { return table<InvariantInfo>().remove(name); }

std::optional<PassInfo> findPass(const std::string& name) { return table<PassInfo>().find(name); }
std::optional<InvariantInfo> findInvariant(const std::string& name) {
  return table<InvariantInfo>().find(name);
}

std::map<std::string, PassInfo> passes() { return table<PassInfo>().copy(); }
std::map<std::string, InvariantInfo> invariants() { return table<InvariantInfo>().copy(); }
std::map<std::string, OpInfo> ops() { return table<OpInfo>().copy(); }

} // namespace jit_passes
