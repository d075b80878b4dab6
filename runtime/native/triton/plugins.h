// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Libraries that are loaded for the functions that they have: backends, repository agents, caches, batching strategies.
// None is ever closed.

#pragma once

#include <dlfcn.h>

#include <optional>
#include <string>

#include "error.h"

namespace pyruntime {

// dlopen (RTLD_NOW | RTLD_LOCAL). Without the GIL. The reason if it cannot be opened.
std::optional<Failure> OpenPlugin(const std::string& path, void** handle);

// Null if there is none of this name.
template <typename Function>
void Find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
}

// Right after `Find` has found none that there must be.
Failure MissingEntryPoint(const char* name);

}  // namespace pyruntime
