// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Backends: begin, end, and the functions TRITONBACKEND_Backend*.

#include "backend.h"

#include <utility>

#include "arguments.h"

namespace pyruntime {

void MemoryUsage::Set(TRITONSERVER_BufferAttributes** usage, uint32_t size) {
  std::vector<TRITONSERVER_BufferAttributes> copies;
  copies.reserve(size);
  for (uint32_t index = 0; index < size; ++index) copies.push_back(*usage[index]);
  const std::lock_guard<std::mutex> lock(mutex_);
  usage_.swap(copies);
}

std::vector<TRITONSERVER_BufferAttributes> MemoryUsage::Get() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return usage_;
}

}  // namespace pyruntime

using pyruntime::Failure;
using pyruntime::Guarded;
using pyruntime::Phase;

std::optional<Failure> TRITONBACKEND_Backend::Open() { return pyruntime::OpenLibrary(library_path, &library); }

std::optional<Failure> TRITONBACKEND_Backend::Initialize() {
  phase = Phase::kInitialized;
  std::optional<Failure> failure;
  if (library.initialize != nullptr) {
    failure = Guarded("TRITONBACKEND_Initialize", [this] { return library.initialize(this); });
  }
  if (!failure && library.attribute != nullptr) {
    failure = Guarded("TRITONBACKEND_GetBackendAttribute", [this] { return library.attribute(this, &attributes); });
  }
  if (failure) Finalize();
  return failure;
}

std::optional<Failure> TRITONBACKEND_Backend::Finalize() {
  if (models != 0) {
    return Failure{TRITONSERVER_ERROR_INTERNAL, "backend '" + name + "' is not finalized: models of it are still loaded"};
  }
  if (std::exchange(phase, Phase::kFinalized) != Phase::kInitialized || library.finalize == nullptr) {
    return std::nullopt;
  }
  return Guarded("TRITONBACKEND_Finalize", [this] { return library.finalize(this); });
}

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_BackendName(TRITONBACKEND_Backend* backend, const char** name) {
  PYRUNTIME_GET(backend, name, backend->name.c_str());
}

TRITONSERVER_Error* TRITONBACKEND_BackendConfig(
    TRITONBACKEND_Backend* backend, TRITONSERVER_Message** backend_config) {
  PYRUNTIME_GET(backend, backend_config, &backend->config);
}

TRITONSERVER_Error* TRITONBACKEND_BackendExecutionPolicy(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_ExecutionPolicy* policy) {
  PYRUNTIME_GET(backend, policy, backend->policy);
}

TRITONSERVER_Error* TRITONBACKEND_BackendSetExecutionPolicy(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_ExecutionPolicy policy) {
  PYRUNTIME_REQUIRE(backend);
  backend->policy = policy;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendArtifacts(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_ArtifactType* artifact_type, const char** location) {
  PYRUNTIME_REQUIRE(backend);
  PYRUNTIME_REQUIRE(artifact_type);
  PYRUNTIME_REQUIRE(location);
  *artifact_type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = backend->directory.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendMemoryManager(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_MemoryManager** manager) {
  PYRUNTIME_GET(backend, manager, &backend->memory);
}

TRITONSERVER_Error* TRITONBACKEND_BackendState(TRITONBACKEND_Backend* backend, void** state) {
  PYRUNTIME_GET(backend, state, backend->state);
}

TRITONSERVER_Error* TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend* backend, void* state) {
  PYRUNTIME_REQUIRE(backend);
  backend->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    TRITONBACKEND_BackendAttribute* backend_attributes, const TRITONSERVER_InstanceGroupKind kind,
    const uint64_t count, const uint64_t* device_ids, const uint64_t id_count) {
  PYRUNTIME_REQUIRE(backend_attributes);
  PYRUNTIME_GUARD({
    std::vector<uint64_t> devices;
    if (device_ids != nullptr) devices.assign(device_ids, device_ids + id_count);
    backend_attributes->preferred_groups.push_back({kind, count, std::move(devices)});
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
    TRITONBACKEND_BackendAttribute* backend_attributes, bool enabled) {
  PYRUNTIME_REQUIRE(backend_attributes);
  backend_attributes->parallel_loading = enabled;
  return nullptr;
}

}  // extern "C"
