// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "plugins.h"

namespace pyruntime {
namespace {

// The last error of the loader on this thread.
std::string LoaderMessage() {
  const char* message = dlerror();
  return message == nullptr ? "unknown error" : message;
}

}  // namespace

std::optional<Failure> OpenPlugin(const std::string& path, void** handle) {
  *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (*handle != nullptr) return std::nullopt;
  return Failure{TRITONSERVER_ERROR_NOT_FOUND, "unable to load shared library: " + LoaderMessage()};
}

Failure MissingEntryPoint(const char* name) {
  return Failure{
      TRITONSERVER_ERROR_NOT_FOUND,
      std::string("unable to find required entrypoint '") + name + "' in shared library: " + LoaderMessage()};
}

}  // namespace pyruntime
