// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions for instances (TRITONBACKEND_ModelInstance*).

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
  PYRUNTIME_GET(instance, name, instance->name.c_str());
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceKind(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_InstanceGroupKind* kind) {
  PYRUNTIME_GET(instance, kind, instance->kind);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance* instance, int32_t* device_id) {
  PYRUNTIME_GET(instance, device_id, instance->device_id);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceHostPolicy(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_Message** host_policy) {
  PYRUNTIME_GET(instance, host_policy, &instance->host_policy);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceIsPassive(TRITONBACKEND_ModelInstance* instance, bool* is_passive) {
  PYRUNTIME_GET(instance, is_passive, instance->passive);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceProfileCount(TRITONBACKEND_ModelInstance* instance, uint32_t* count) {
  PYRUNTIME_GET(instance, count, static_cast<uint32_t>(instance->profiles.size()));
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
  PYRUNTIME_GET(instance, count, static_cast<uint32_t>(instance->secondary_devices.size()));
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
  PYRUNTIME_GET(instance, model, instance->model.get());
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance, void** state) {
  PYRUNTIME_GET(instance, state, instance->state);
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
