// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Versions of the interfaces, and the names and sizes of their enumerators.

#include <string>

#include "arguments.h"
#include "error.h"
#include "triton/core/tritonbackend.h"
#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"
#include "triton/core/tritonserver.h"
#include "values.h"

namespace {

constexpr const char* kInvalid = "<invalid>";
constexpr const char* kUnknown = "<unknown>";

struct Datatype {
  const char* name;
  uint32_t byte_size;  // 0: it varies
};

// By TRITONSERVER_DataType.
constexpr Datatype kDatatypes[] = {
    {kInvalid, 0}, {"BOOL", 1},  {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8}, {"INT8", 1}, {"INT16", 2},
    {"INT32", 4},  {"INT64", 8}, {"FP16", 2},  {"FP32", 4},   {"FP64", 8},   {"BYTES", 0},  {"BF16", 2},
};

const Datatype& DatatypeAt(TRITONSERVER_DataType datatype) {
  const bool known = datatype >= TRITONSERVER_TYPE_INVALID && datatype <= TRITONSERVER_TYPE_BF16;
  return kDatatypes[known ? datatype : TRITONSERVER_TYPE_INVALID];
}

}  // namespace

namespace pyruntime {

TRITONSERVER_DataType DatatypeOf(const std::string& name) {
  for (int datatype = TRITONSERVER_TYPE_BOOL; datatype <= TRITONSERVER_TYPE_BF16; ++datatype) {
    if (name == kDatatypes[datatype].name) return static_cast<TRITONSERVER_DataType>(datatype);
  }
  return TRITONSERVER_TYPE_INVALID;
}

const char* NameOf(TRITONSERVER_DataType datatype) { return DatatypeAt(datatype).name; }

}  // namespace pyruntime

TRITONSERVER_Error* TRITONSERVER_ApiVersion(uint32_t* major, uint32_t* minor) {
  PYRUNTIME_REQUIRE(major);
  PYRUNTIME_REQUIRE(minor);
  *major = TRITONSERVER_API_VERSION_MAJOR;
  *minor = TRITONSERVER_API_VERSION_MINOR;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
  PYRUNTIME_REQUIRE(major);
  PYRUNTIME_REQUIRE(minor);
  *major = TRITONBACKEND_API_VERSION_MAJOR;
  *minor = TRITONBACKEND_API_VERSION_MINOR;
  return nullptr;
}

TRITONSERVER_Error* TRITONREPOAGENT_ApiVersion(uint32_t* major, uint32_t* minor) {
  PYRUNTIME_REQUIRE(major);
  PYRUNTIME_REQUIRE(minor);
  *major = TRITONREPOAGENT_API_VERSION_MAJOR;
  *minor = TRITONREPOAGENT_API_VERSION_MINOR;
  return nullptr;
}

TRITONSERVER_Error* TRITONCACHE_ApiVersion(uint32_t* major, uint32_t* minor) {
  PYRUNTIME_REQUIRE(major);
  PYRUNTIME_REQUIRE(minor);
  *major = TRITONCACHE_API_VERSION_MAJOR;
  *minor = TRITONCACHE_API_VERSION_MINOR;
  return nullptr;
}

const char* TRITONSERVER_DataTypeString(TRITONSERVER_DataType datatype) { return pyruntime::NameOf(datatype); }

TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char* dtype) {
  return dtype == nullptr ? TRITONSERVER_TYPE_INVALID : pyruntime::DatatypeOf(dtype);
}

uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType datatype) { return DatatypeAt(datatype).byte_size; }

const char* TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType memtype) {
  switch (memtype) {
    case TRITONSERVER_MEMORY_CPU: return "CPU";
    case TRITONSERVER_MEMORY_CPU_PINNED: return "CPU_PINNED";
    case TRITONSERVER_MEMORY_GPU: return "GPU";
  }
  return kInvalid;
}

const char* TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType paramtype) {
  switch (paramtype) {
    case TRITONSERVER_PARAMETER_STRING: return "STRING";
    case TRITONSERVER_PARAMETER_INT: return "INT";
    case TRITONSERVER_PARAMETER_BOOL: return "BOOL";
    case TRITONSERVER_PARAMETER_DOUBLE: return "DOUBLE";
    case TRITONSERVER_PARAMETER_BYTES: return "BYTES";
  }
  return kInvalid;
}

const char* TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind) {
  switch (kind) {
    case TRITONSERVER_INSTANCEGROUPKIND_AUTO: return "AUTO";
    case TRITONSERVER_INSTANCEGROUPKIND_CPU: return "CPU";
    case TRITONSERVER_INSTANCEGROUPKIND_GPU: return "GPU";
    case TRITONSERVER_INSTANCEGROUPKIND_MODEL: return "MODEL";
  }
  return kInvalid;
}

const char* TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel level) {
  switch (level) {
    case TRITONSERVER_TRACE_LEVEL_DISABLED: return "DISABLED";
    case TRITONSERVER_TRACE_LEVEL_MIN: return "MIN";
    case TRITONSERVER_TRACE_LEVEL_MAX: return "MAX";
    case TRITONSERVER_TRACE_LEVEL_TIMESTAMPS: return "TIMESTAMPS";
    case TRITONSERVER_TRACE_LEVEL_TENSORS: return "TENSORS";
  }
  return kUnknown;
}

const char* TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity activity) {
  switch (activity) {
    case TRITONSERVER_TRACE_REQUEST_START: return "REQUEST_START";
    case TRITONSERVER_TRACE_QUEUE_START: return "QUEUE_START";
    case TRITONSERVER_TRACE_COMPUTE_START: return "COMPUTE_START";
    case TRITONSERVER_TRACE_COMPUTE_INPUT_END: return "COMPUTE_INPUT_END";
    case TRITONSERVER_TRACE_COMPUTE_OUTPUT_START: return "COMPUTE_OUTPUT_START";
    case TRITONSERVER_TRACE_COMPUTE_END: return "COMPUTE_END";
    case TRITONSERVER_TRACE_REQUEST_END: return "REQUEST_END";
    case TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT: return "TENSOR_QUEUE_INPUT";
    case TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT: return "TENSOR_BACKEND_INPUT";
    case TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT: return "TENSOR_BACKEND_OUTPUT";
    case TRITONSERVER_TRACE_CUSTOM_ACTIVITY: return "CUSTOM_ACTIVITY";
  }
  return kUnknown;
}
