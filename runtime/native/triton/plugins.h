// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Loading of libraries for their functions: backends, repository agents, caches, batching strategies. No library is
// ever closed.

#pragma once

#include <dlfcn.h>

#include <optional>
#include <string>

#include "error.h"

namespace pyruntime {

// dlopen (RTLD_NOW | RTLD_LOCAL), without the GIL. Returns the reason if the library cannot be opened.
std::optional<Failure> OpenPlugin(const std::string& path, void** handle);

// Sets `function` to null if the library has none of this name.
template <typename Function>
void Find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
}

// The failure for a required function that `Find` has not found; to be called right after it.
Failure MissingEntryPoint(const char* name);

}  // namespace pyruntime
