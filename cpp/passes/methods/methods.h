// Several methods of one module: the attributes that each uses and changes, and a module that has some methods
// quantized.
#pragma once

#include "graph/attributes.h"
#include "graph/module.h"

namespace jit_passes {

// An attribute of one object rather than of a type or path: two modules may have one type, and a module two paths.
struct Attribute {
  const c10::ivalue::Object* owner;
  std::string name;

  c10::IValue value() const { return attributeNamed(*owner, name).value(); }
  bool operator<(const Attribute& other) const {
    return std::tie(owner, name) < std::tie(other.owner, other.name);
  }
};

// Tensors, containers and objects that values share.
using Memory = c10::IValue::HashAliasedIValues;
bool isContainer(const c10::IValue& value);
// Adds a value and all its contents. An object of a C++ class counts as a whole.
void addMemory(const c10::IValue& value, Memory& memory);

// The attributes at a list of paths. A missing one is an error.
std::set<Attribute> attributesAt(const Module& module, const c10::IValue& paths);

struct MethodState {
  std::shared_ptr<Graph> graph;          // inlined
  std::map<Attribute, std::string> used; // attributes and modules that are read or assigned, each with a path
  std::set<Attribute> changed;           // attributes that the method may change
};

// Nothing if the method picks modules at run time.
std::optional<MethodState> stateOf(const Module& module, const std::string& method);

// State that methods share, if at least one of the methods is quantized: attributes that one method changes and
// another uses, and attributes that share memory with these.
struct CommonState {
  std::map<Attribute, std::string> attributes; // each with a path
  // A method whose effect is not known, since it picks modules at run time, or uses this attribute in a forked
  // branch. "" if there is none.
  std::string opaque;
};
CommonState commonState(const Module& module, const std::unordered_set<std::string>& quantized);

// Moves this state into one module, which becomes an attribute of the joined module and of the modules of its
// quantized methods.
void shareState(
    const Module& original, const CommonState& state, Module& joined,
    const std::vector<std::pair<std::string, Module>>& quantized);

// A module with all methods of the original, which shares no tensors with it. A quantized method calls its module,
// the attribute quantized_<method>; the other methods are copied.
Module joinMethods(const Module& original, const std::vector<std::pair<std::string, Module>>& quantized);

// Makes equal constants, and equal packed parameters, of submodules one object: see share_equal.cpp.
void shareEqual(const Module& module);

} // namespace jit_passes
