#include "registry.h"

#include "callers_error.h"
#include "names.h"

namespace jit_passes {
namespace {

template <typename Info>
struct Entries {
  std::mutex mutex;
  std::map<std::string, Info> entries;

  std::map<std::string, Info> copy() {
    raiseKeptErrors();
    const std::lock_guard<std::mutex> guard(mutex);
    return entries;
  }

  std::optional<Info> find(const std::string& name) {
    raiseKeptErrors();
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

struct KeptErrors {
  std::mutex mutex;
  std::vector<std::string> messages;
};

KeptErrors& keptErrors() {
  static auto* const errors = new KeptErrors(); // never destroyed, like the tables
  return *errors;
}

void keepError(std::string message) {
  const std::lock_guard<std::mutex> guard(keptErrors().mutex);
  keptErrors().messages.push_back(std::move(message));
}

} // namespace

void registerOrKeep(const std::function<void()>& registration) {
  try {
    registration();
  } catch (const c10::Error& error) {
    keepError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    keepError(error.what());
  }
}

void raiseKeptErrors() {
  std::vector<std::string> messages;
  {
    const std::lock_guard<std::mutex> guard(keptErrors().mutex);
    messages.swap(keptErrors().messages);
  }
  checkCaller(messages.empty(), "a library was loaded with an error: ", c10::Join("; ", messages));
}

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

void registerPass(PassInfo info) { add("pass", std::move(info)); }
void registerInvariant(InvariantInfo info) { add("invariant", std::move(info)); }

RegisterPass::RegisterPass(
    std::string name, std::string summary, PassFunction run, std::vector<std::string> requires_,
    std::vector<std::string> ensures, std::vector<PassOption> options) {
  registerOrKeep([&] {
    registerPass(
        {std::move(name), std::move(summary), std::move(run), std::move(requires_), std::move(ensures),
         std::move(options)});
  });
}

RegisterInvariant::RegisterInvariant(std::string name, std::string summary, InvariantFunction check) {
  registerOrKeep([&] { registerInvariant({std::move(name), std::move(summary), std::move(check)}); });
}

RegisterOp::RegisterOp()
    : library_(torch::Library::FRAGMENT, "jit_passes", std::nullopt, __FILE__, __LINE__) {}

std::string RegisterOp::define(const std::string& schema, std::string summary) {
  library_.def(schema.c_str());
  std::string name = schema.substr(0, schema.find('('));
  add("op", OpInfo{name, std::move(summary)});
  return name;
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
