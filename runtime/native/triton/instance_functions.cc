// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// What a backend may ask of an instance, and set (TRITONBACKEND_ModelInstance*).

#include <string>

#include "arguments.h"
#include "backend.h"

namespace {

TRITONSERVER_Error* OutOfBounds(uint32_t index, size_t count, const char* what) {
  return pyruntime::NewError(
      TRITONSERVER_ERROR_INVALID_ARG,
      "out of bounds index " + std::to_string(index) + ": instance is configured with " + std::to_string(count) + what);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance* instance, const char** name) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(name);
  *name = instance->name.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceKind(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_InstanceGroupKind* kind) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(kind);
  *kind = instance->kind;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance* instance, int32_t* device_id) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(device_id);
  *device_id = instance->device_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceHostPolicy(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_Message** host_policy) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(host_policy);
  *host_policy = &instance->host_policy;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceIsPassive(TRITONBACKEND_ModelInstance* instance, bool* is_passive) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(is_passive);
  *is_passive = instance->passive;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceProfileCount(TRITONBACKEND_ModelInstance* instance, uint32_t* count) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(count);
  *count = static_cast<uint32_t>(instance->profiles.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceProfileName(
    TRITONBACKEND_ModelInstance* instance, const uint32_t index, const char** profile_name) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(profile_name);
  PYRUNTIME_GUARD({
    *profile_name = nullptr;
    const size_t count = instance->profiles.size();
    if (index >= count) return OutOfBounds(index, count, " profiles");
    *profile_name = instance->profiles[index].c_str();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
    TRITONBACKEND_ModelInstance* instance, uint32_t* count) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(count);
  *count = static_cast<uint32_t>(instance->secondary_devices.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
    TRITONBACKEND_ModelInstance* instance, uint32_t index, const char** kind, int64_t* id) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(kind);
  PYRUNTIME_REQUIRE(id);
  PYRUNTIME_GUARD({
    *kind = nullptr;
    *id = 0;
    const size_t count = instance->secondary_devices.size();
    if (index >= count) return OutOfBounds(index, count, " secondary devices");
    *kind = instance->secondary_devices[index].kind.c_str();
    *id = instance->secondary_devices[index].id;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Model** model) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(model);
  *model = instance->model.get();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(state);
  *state = instance->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) {
  PYRUNTIME_REQUIRE(instance);
  instance->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportMemoryUsage(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_BufferAttributes** usage, uint32_t usage_size) {
  PYRUNTIME_REQUIRE(instance);
  if (usage_size != 0) PYRUNTIME_REQUIRE(usage);
  PYRUNTIME_GUARD({
    instance->memory_usage.Set(usage, usage_size);
    return nullptr;
  });
}

}  // extern "C"
