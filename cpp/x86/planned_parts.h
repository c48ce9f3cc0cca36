// Operators of reference models that take an axis apart.
#pragma once

#include "reader.h"

namespace jit_passes::x86 {

Planned unflatten(const Reader& reader, Node* node);
Planned transpose(const Reader& reader, Node* node);
Planned unsqueeze(const Reader& reader, Node* node);
Planned squeeze(const Reader& reader, Node* node);
Planned expand(const Reader& reader, Node* node);
Planned roll(const Reader& reader, Node* node);
Planned channelShuffle(const Reader& reader, Node* node);
Planned slice(const Reader& reader, Node* node);
Planned narrow(const Reader& reader, Node* node);
Planned select(const Reader& reader, Node* node);
// Of nodes that give a list: its first element. The others differ in `PartAttributes::Number`.
Planned chunk(const Reader& reader, Node* node);
Planned split(const Reader& reader, Node* node);
Planned unbind(const Reader& reader, Node* node);

} // namespace jit_passes::x86
