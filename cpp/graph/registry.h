// Passes and dialect operators announce themselves through static objects declared with this
// header, in this package or in one of your own:
//
//   static const jit_passes::RegisterPass registration{
//       "remove_dropout", "Remove dropout, which does nothing in eval mode.", remove_dropout};
#pragma once

#include "jit.h"

namespace jit_passes JIT_PASSES_API {

using Options = std::unordered_map<std::string, c10::IValue>;

// A message for the user about a node, for example why a pass left it alone.
struct Remark {
  std::string name; // stable name of the node
  std::string reason;
};

// The object of a pass: a method of a module, or a graph alone, which PyTorch's executor has after autograd, and a
// scripted function too. A pass may edit the graph, add or remove attributes of the module, or replace the module
// altogether. The pass works on a copy, which callers get only if all passes succeed.
class PassContext {
 public:
  PassContext(torch::jit::Module module, std::string method, const Options& options)
      : module_(std::move(module)), method_(std::move(method)), options_(options) {}
  PassContext(std::shared_ptr<torch::jit::Graph> graph, const Options& options)
      : graph_(std::move(graph)), options_(options) {}

  std::shared_ptr<torch::jit::Graph> graph() const {
    return graph_ ? graph_ : module_->get_method(method_).graph();
  }

  bool hasModule() const { return module_.has_value(); }

  torch::jit::Module& module() {
    TORCH_CHECK(
        module_,
        "the pass needs the module that the graph belongs to, and this is a graph alone: run it "
        "before autograd, on a module");
    return *module_;
  }
  const torch::jit::Module& module() const { return const_cast<PassContext*>(this)->module(); }

  const std::string& method() const { return method_; }

  // An option that the pass requires.
  const c10::IValue& option(const std::string& name) const {
    const auto found = options_.find(name);
    TORCH_CHECK(found != options_.end(), "the pass needs the option '", name, "'");
    return found->second;
  }
  const Options& options() const { return options_; }

  // Tells the user why the pass changed nothing at this node, which must be in the graph.
  void remark(const torch::jit::Node* node, std::string reason);
  void remark(Remark remark) { named_.push_back(std::move(remark)); }
  // All remarks. Nodes have their names in the present graph.
  std::vector<Remark> remarks() const;

 private:
  std::optional<torch::jit::Module> module_;
  std::string method_;
  std::shared_ptr<torch::jit::Graph> graph_;
  const Options& options_;
  std::vector<Remark> named_;
  std::vector<std::pair<const torch::jit::Node*, Remark>> pending_; // named once the pass is done
};

// Returns whether anything changed.
using PassFunction = std::function<bool(PassContext&)>;

// An option of a pass. Its type is bool, int, float, str, None, Tensor, list, a list of one of these such as
// list[int], several of them with | in between, or Any.
struct PassOption {
  std::string name;
  std::string type;
  std::optional<c10::IValue> value = std::nullopt; // the default; without one the option must be given
};

struct PassInfo {
  std::string name;
  std::string summary;
  PassFunction run;
  std::vector<std::string> requires_; // invariants that must hold before
  std::vector<std::string> ensures;   // invariants that hold after
  std::vector<PassOption> options;
};

// Returns why the invariant does not hold, or nothing if it holds. The context has the remarks of all passes that
// have run in the pipeline.
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

// For static objects of other kinds: keeps the error if the registration throws.
void registerOrKeep(const std::function<void()>& registration);
// Raises the kept errors, each once.
void raiseKeptErrors();

// The invariants and the options of a pass.
template <typename... Names>
std::vector<std::string> needs(Names... names) {
  return {names...};
}
template <typename... Names>
std::vector<std::string> ensures(Names... names) {
  return {names...};
}
inline std::vector<PassOption> takes(std::vector<PassOption> options) { return options; }

// A program that loads a library ends if a static object of the library throws. So the objects below keep their errors,
// and the next call that reads a registry raises them.
struct RegisterPass {
  RegisterPass(
      std::string name, std::string summary, PassFunction run, std::vector<std::string> requires_ = {},
      std::vector<std::string> ensures = {}, std::vector<PassOption> options = {});
  RegisterPass(
      std::string name, std::string summary, PassFunction run, std::vector<std::string> requires_,
      std::vector<PassOption> options)
      : RegisterPass(
            std::move(name), std::move(summary), std::move(run), std::move(requires_), {},
            std::move(options)) {}
};

struct RegisterInvariant {
  RegisterInvariant(std::string name, std::string summary, InvariantFunction check);
};

// A kernel for one device: onCpu(quantize).
template <c10::DispatchKey key>
struct KernelFor {
  template <typename Kernel>
  torch::CppFunction operator()(Kernel&& kernel) const {
    return torch::dispatch(key, std::forward<Kernel>(kernel));
  }
};
inline constexpr KernelFor<c10::DispatchKey::CPU> onCpu;
inline constexpr KernelFor<c10::DispatchKey::CUDA> onCuda;
inline constexpr KernelFor<c10::DispatchKey::Meta> onMeta;
inline constexpr KernelFor<c10::DispatchKey::Autograd> withGradient;
// Kernels made of PyTorch's operators: on any device but meta, without a gradient; or on the devices and with the
// gradients of these operators.
inline constexpr KernelFor<c10::DispatchKey::CompositeExplicitAutograd> onAnyDevice;
inline constexpr KernelFor<c10::DispatchKey::CompositeImplicitAutograd> composed;

// An operator of the dialect:
//
//   const RegisterOp dequantize_op{
//       "dequantize(Tensor q, float scale, int zero_point) -> Tensor", "Integers to float.", onCpu(dequantize)};
class RegisterOp {
 public:
  template <typename... Kernels>
  RegisterOp(const std::string& schema, std::string summary, Kernels&&... kernels) : RegisterOp() {
    registerOrKeep([&] {
      const std::string name = define(schema, std::move(summary));
      (library_.impl(name.c_str(), std::forward<Kernels>(kernels)), ...);
    });
  }

 private:
  RegisterOp();
  std::string define(const std::string& schema, std::string summary);

  torch::Library library_;
};

// An error if the name is taken, or if name or summary is empty.
void registerPass(PassInfo info);
void registerInvariant(InvariantInfo info);

// Removes a pass that was registered while the program runs. Returns whether there was one.
bool removePass(const std::string& name);
bool removeInvariant(const std::string& name);

std::optional<PassInfo> findPass(const std::string& name);
std::optional<InvariantInfo> findInvariant(const std::string& name);

// Copies, ordered by name: tables made from them are stable, and other threads may register.
std::map<std::string, PassInfo> passes();
std::map<std::string, InvariantInfo> invariants();
std::map<std::string, OpInfo> ops();

} // namespace jit_passes JIT_PASSES_API
