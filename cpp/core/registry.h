// Passes and dialect operators announce themselves through static objects declared with this
// header, in this package or in one of your own:
//
//   static const jit_passes::RegisterPass registration{
//       "remove_dropout", "Remove dropout, which does nothing in eval mode.", remove_dropout};
#pragma once

#include "jit.h"

namespace jit_passes JIT_PASSES_API {

using Options = std::unordered_map<std::string, c10::IValue>;

// What a pass works on. It may edit the graph, add or remove attributes of the module, or replace
// the module altogether; the runner hands it a module that no caller sees until all has gone well.
struct PassContext {
  torch::jit::Module module;
  std::string method;
  const Options& options;

  std::shared_ptr<torch::jit::Graph> graph() const { return module.get_method(method).graph(); }

  // An option that the pass cannot do without.
  const c10::IValue& option(const std::string& name) const {
    const auto found = options.find(name);
    TORCH_CHECK(found != options.end(), "the pass needs the option '", name, "'");
    return found->second;
  }
};

// Returns whether anything changed.
using PassFunction = std::function<bool(PassContext&)>;

struct PassInfo {
  std::string name;
  std::string summary;
  PassFunction run;
  std::vector<std::string> requires_; // invariants that must hold before
  std::vector<std::string> ensures;   // invariants that hold after
};

// Returns why the invariant does not hold, or nothing when it does.
using InvariantFunction = std::function<std::optional<std::string>(const PassContext&)>;

struct InvariantInfo {
  std::string name;
  std::string summary;
  InvariantFunction check;
};

struct OpInfo {
  std::string name;
  std::string summary;
};

struct RegisterPass {
  RegisterPass(
      std::string name, std::string summary, PassFunction run, std::vector<std::string> requires_ = {},
      std::vector<std::string> ensures = {});
};

struct RegisterInvariant {
  RegisterInvariant(std::string name, std::string summary, InvariantFunction check);
};

struct RegisterOp {
  RegisterOp(std::string name, std::string summary);
};

// Ordered by name, so that tables made from them are stable.
const std::map<std::string, PassInfo>& passes();
const std::map<std::string, InvariantInfo>& invariants();
const std::map<std::string, OpInfo>& ops();

} // namespace jit_passes JIT_PASSES_API
