// Several methods of one module: what each does with attributes, and a module some of whose methods are quantized.
#pragma once

#include "graph/attributes.h"
#include "graph/module.h"

namespace jit_passes {

// An attribute of one object. Two modules may have the same type, and one may have two names.
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
// Adds a value, and all that is in it. An object of a C++ class counts as a whole.
void addMemory(const c10::IValue& value, Memory& memory);

// The attributes at a list of paths; an error where there is none.
std::set<Attribute> attributesAt(const Module& module, const c10::IValue& paths);

struct MethodState {
  std::shared_ptr<Graph> graph;          // inlined
  std::map<Attribute, std::string> used; // read or assigned, modules too, each with a path
  std::set<Attribute> changed;           // by running the method, as far as can be told
};

// Nothing where the method picks modules as it runs.
std::optional<MethodState> stateOf(const Module& module, const std::string& method);

// State that methods have in common, where one of them at least is quantized apart from the others: attributes that one
// changes and another uses, and all that shares memory with these.
struct CommonState {
  std::map<Attribute, std::string> attributes; // each with a path
  // A method that picks modules as it runs, or uses such an attribute in a branch that runs on its own, so that it
  // cannot be told what it does; "" for none.
  std::string opaque;
};
CommonState commonState(const Module& module, const std::unordered_set<std::string>& quantized);

// Moves that state of methods into one module, which becomes an attribute of the joined module and of those that its
// quantized methods were given.
void shareState(
    const Module& original, const CommonState& state, Module& joined,
    const std::vector<std::pair<std::string, Module>>& quantized);

// A module with all methods of the original, which shares nothing with it. Those that are given are called in
// the modules given for them, attributes quantized_<method>; others are copied.
Module joinMethods(const Module& original, const std::vector<std::pair<std::string, Module>>& quantized);

// Makes constants and packed parameters of its submodules one where they are equal: see share_equal.cpp.
void shareEqual(const Module& module);

} // namespace jit_passes
