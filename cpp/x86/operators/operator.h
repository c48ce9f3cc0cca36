// For a file with an operator of plans, in this package or in another one.
//
// An operator has a name, a function that turns nodes of a graph into it, the sizes of its result, a function that
// lowers it to steps, and a kernel. A RegisterOperator declares all of them: see Declaration. along_axis.cpp is a short
// example.
#pragma once

#include "sizes.h"
#include "x86/building/from_graph.h"
#include "x86/lowering/general.h"
#include "x86/program/checks.h"
#include "x86/running/step_context.h"
