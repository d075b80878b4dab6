// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "backend.h"
#include "plugins.h"

namespace pyruntime {

std::optional<Failure> OpenLibrary(const std::string& path, Library* library) {
  static constexpr char kExecute[] = "TRITONBACKEND_ModelInstanceExecute";
  void* handle = nullptr;
  if (std::optional<Failure> failure = OpenPlugin(path, &handle)) return failure;
  Find(handle, "TRITONBACKEND_Initialize", &library->initialize);
  Find(handle, "TRITONBACKEND_Finalize", &library->finalize);
  Find(handle, "TRITONBACKEND_GetBackendAttribute", &library->attribute);
  Find(handle, "TRITONBACKEND_ModelInitialize", &library->model_initialize);
  Find(handle, "TRITONBACKEND_ModelFinalize", &library->model_finalize);
  Find(handle, "TRITONBACKEND_ModelInstanceInitialize", &library->instance_initialize);
  Find(handle, "TRITONBACKEND_ModelInstanceFinalize", &library->instance_finalize);
  Find(handle, "TRITONBACKEND_ModelInstanceReady", &library->instance_ready);
  Find(handle, kExecute, &library->execute);
  if (library->execute == nullptr) return MissingEntryPoint(kExecute);
  return std::nullopt;
}

}  // namespace pyruntime
