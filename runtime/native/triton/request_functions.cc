// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// TRITONBACKEND_Request*: the properties of a request. For inputs see input_functions.cc.

#include <memory>
#include <string>

#include "arguments.h"
#include "backend.h"
#include "request.h"
#include "traces.h"

namespace pyruntime {
namespace {

// The beginning of messages about a request.
std::string Prefix(const TRITONBACKEND_Request& request) {
  const std::string& id = request.state->id();
  return "[request id: " + (id.empty() ? "<id_unknown>" : id) + "] ";
}

TRITONSERVER_Error* OutOfBounds(
    const TRITONBACKEND_Request& request, uint32_t index, size_t count, const char* of_what) {
  return NewError(
      TRITONSERVER_ERROR_INVALID_ARG, Prefix(request) + "out of bounds index " + std::to_string(index) +
                                          ": request has " + std::to_string(count) + " " + of_what);
}

}  // namespace
}  // namespace pyruntime

using pyruntime::OutOfBounds;
using pyruntime::Prefix;

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_RequestId(TRITONBACKEND_Request* request, const char** id) {
  PYRUNTIME_GET(request, id, request->state->id().c_str());
}

TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request* request, uint64_t* id) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(id);
  PYRUNTIME_GUARD({
    if (!request->correlation_text.empty()) {
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INVALID_ARG, Prefix(*request) + "correlation ID in request is not an unsigned int");
    }
    *id = request->correlation_id;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request* request, const char** id) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(id);
  PYRUNTIME_GUARD({
    if (request->correlation_text.empty()) {
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INVALID_ARG, Prefix(*request) + "correlation ID in request is not a string");
    }
    *id = request->correlation_text.c_str();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_RequestFlags(TRITONBACKEND_Request* request, uint32_t* flags) {
  PYRUNTIME_GET(request, flags, request->flags);
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, uint32_t* count) {
  PYRUNTIME_GET(request, count, static_cast<uint32_t>(request->parameters.size()));
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request* request, const uint32_t index, const char** key, TRITONSERVER_ParameterType* type,
    const void** vvalue) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(key);
  PYRUNTIME_REQUIRE(type);
  PYRUNTIME_REQUIRE(vvalue);
  PYRUNTIME_GUARD({
    if (index >= request->parameters.size()) {
      *key = nullptr;
      *vvalue = nullptr;
      const std::string count = std::to_string(request->parameters.size());
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INVALID_ARG,
          "out of bounds index " + std::to_string(index) + ": request has " + count + " parameters");
    }
    const TRITONSERVER_Parameter& parameter = request->parameters[index];
    *key = parameter.name.c_str();
    *type = parameter.type();
    *vvalue = parameter.pointer();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  PYRUNTIME_GET(request, count, static_cast<uint32_t>(request->inputs.size()));
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputName(
    TRITONBACKEND_Request* request, const uint32_t index, const char** input_name) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(input_name);
  PYRUNTIME_GUARD({
    *input_name = nullptr;
    if (index >= request->inputs.size()) return OutOfBounds(*request, index, request->inputs.size(), "inputs");
    *input_name = request->inputs[index].name.c_str();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_RequestInput(
    TRITONBACKEND_Request* request, const char* name, TRITONBACKEND_Input** input) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(input);
  PYRUNTIME_GUARD({
    *input = nullptr;
    for (TRITONBACKEND_Input& candidate : request->inputs) {
      if (candidate.name == name) {
        *input = &candidate;
        return nullptr;
      }
    }
    return pyruntime::NewError(
        TRITONSERVER_ERROR_INVALID_ARG, Prefix(*request) + "unknown request input name " + name);
  });
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(
    TRITONBACKEND_Request* request, const uint32_t index, TRITONBACKEND_Input** input) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(input);
  PYRUNTIME_GUARD({
    *input = nullptr;
    if (index >= request->inputs.size()) return OutOfBounds(*request, index, request->inputs.size(), "inputs");
    *input = &request->inputs[index];
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  PYRUNTIME_GET(request, count, static_cast<uint32_t>(request->outputs.size()));
}

TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(
    TRITONBACKEND_Request* request, const uint32_t index, const char** output_name) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(output_name);
  PYRUNTIME_GUARD({
    *output_name = nullptr;
    if (index >= request->outputs.size()) {
      return OutOfBounds(*request, index, request->outputs.size(), "requested outputs");
    }
    *output_name = request->outputs[index].c_str();
    return nullptr;
  });
}

// All outputs are allocated in the same memory, whatever their names and sizes.
TRITONSERVER_Error* TRITONBACKEND_RequestOutputBufferProperties(
    TRITONBACKEND_Request* request, const char* name, size_t* /*byte_size*/, TRITONSERVER_MemoryType* memory_type,
    int64_t* memory_type_id) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(memory_type);
  PYRUNTIME_REQUIRE(memory_type_id);
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
  PYRUNTIME_GET(request, is_cancelled, request->state->IsCancelled());
}

TRITONSERVER_Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    TRITONBACKEND_Request* request, uint64_t* timeout) {
  PYRUNTIME_GET(request, timeout, request->timeout_us);
}

TRITONSERVER_Error* TRITONBACKEND_RequestTrace(TRITONBACKEND_Request* request, TRITONSERVER_InferenceTrace** trace) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(trace);
  PYRUNTIME_GUARD({
    *trace = pyruntime::TraceOf(request);
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t release_flags) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_GUARD({
    if (request->mark != TRITONBACKEND_Request::kLive) {
      return pyruntime::InvalidArgument(__func__, "the request was released before");
    }
    constexpr uint32_t kKnown = TRITONSERVER_REQUEST_RELEASE_ALL | TRITONSERVER_REQUEST_RELEASE_RESCHEDULE;
    if (release_flags == 0 || (release_flags & ~kKnown) != 0) {
      return pyruntime::InvalidArgument(
          __func__, "release flags " + std::to_string(release_flags) +
                        " are neither TRITONSERVER_REQUEST_RELEASE_ALL nor TRITONSERVER_REQUEST_RELEASE_RESCHEDULE");
    }
    const bool reschedule = (release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) != 0;
    if (reschedule && !request->state->model()->iterative) {
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INVALID_ARG,
          "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
          "handle such a flag.");
    }
    pyruntime::ReleaseRequest(std::unique_ptr<TRITONBACKEND_Request>(request), reschedule);
    return nullptr;
  });
}

}  // extern "C"
