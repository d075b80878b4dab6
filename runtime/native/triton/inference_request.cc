// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// TRITONSERVER_InferenceRequest*: native code builds a request. Messages are Triton's.

#include "inference.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "arguments.h"

using pyruntime::Answer;
using pyruntime::Query;
using Request = TRITONSERVER_InferenceRequest;

namespace {

constexpr size_t kCorrelationTextMax = 128;

TRITONSERVER_Error* SetParameter(Request* request, const char* key, TRITONSERVER_Parameter::Value value) {
  for (TRITONSERVER_Parameter& parameter : request->parameters) {
    if (parameter.name != key) continue;
    parameter.value = std::move(value);
    return nullptr;
  }
  request->parameters.push_back({key, std::move(value)});
  return nullptr;
}

TRITONSERVER_Error* NotGiven(const char* what) {
  return pyruntime::NewError(
      TRITONSERVER_ERROR_INTERNAL,
      "It is not possible to " + std::string(what) + " before calling TRITONSERVER_InferAsync.");
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONSERVER_InferenceRequestNew(
    Request** inference_request, TRITONSERVER_Server* server, const char* model_name, const int64_t model_version) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(server);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_GUARD({
    Answer answer;
    const std::vector<Query::Argument> arguments{std::string(model_name), model_version, pyruntime::LoadingModel()};
    if (auto failure = server->Ask(std::make_shared<Query>("InferenceRequestNew", arguments), &answer)) {
      return pyruntime::ToError(std::move(failure));
    }
    auto request = std::make_unique<Request>();
    request->model = model_name;
    request->version = model_version;
    *inference_request = request.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestDelete(Request* inference_request) {
  if (inference_request != nullptr && inference_request->under_way) {
    return pyruntime::InvalidArgument(__func__, "the request is the server's until it is released");
  }
  std::unique_ptr<Request>{inference_request};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestId(Request* inference_request, const char** id) {
  PYRUNTIME_GET(inference_request, id, inference_request->id.c_str());
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetId(Request* inference_request, const char* id) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(id);
  PYRUNTIME_GUARD({
    inference_request->id = id;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestFlags(Request* inference_request, uint32_t* flags) {
  PYRUNTIME_GET(inference_request, flags, inference_request->flags);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetFlags(Request* inference_request, uint32_t flags) {
  PYRUNTIME_REQUIRE(inference_request);
  inference_request->flags = flags;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCorrelationId(Request* inference_request, uint64_t* correlation_id) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(correlation_id);
  if (inference_request->has_correlation_text) {
    return pyruntime::NewError(
        TRITONSERVER_ERROR_INVALID_ARG, "given request's correlation id is not an unsigned int");
  }
  *correlation_id = inference_request->correlation_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCorrelationIdString(
    Request* inference_request, const char** correlation_id) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(correlation_id);
  if (!inference_request->has_correlation_text) {
    return pyruntime::NewError(TRITONSERVER_ERROR_INVALID_ARG, "given request's correlation id is not a string");
  }
  *correlation_id = inference_request->correlation_text.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationId(Request* inference_request, uint64_t correlation_id) {
  PYRUNTIME_REQUIRE(inference_request);
  inference_request->has_correlation_text = false;
  inference_request->correlation_id = correlation_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationIdString(
    Request* inference_request, const char* correlation_id) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(correlation_id);
  if (std::strlen(correlation_id) > kCorrelationTextMax) {
    return pyruntime::NewError(
        TRITONSERVER_ERROR_INVALID_ARG, "string correlation ID cannot be longer than 128 characters");
  }
  PYRUNTIME_GUARD({
    inference_request->correlation_text = correlation_id;
    inference_request->has_correlation_text = true;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCancel(Request* inference_request) {
  PYRUNTIME_REQUIRE(inference_request);
  if (inference_request->call == nullptr) return NotGiven("cancel an inference request");
  PYRUNTIME_GUARD({
    inference_request->call->Cancel();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestIsCancelled(Request* inference_request, bool* is_cancelled) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(is_cancelled);
  if (inference_request->call == nullptr) return NotGiven("query cancellation status");
  *is_cancelled = inference_request->call->IsCancelled();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestPriority(Request* inference_request, uint32_t* priority) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(priority);
  if (inference_request->priority > UINT32_MAX) {
    return pyruntime::InvalidArgument(__func__, "the request's priority needs 64 bits");
  }
  *priority = static_cast<uint32_t>(inference_request->priority);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestPriorityUInt64(Request* inference_request, uint64_t* priority) {
  PYRUNTIME_GET(inference_request, priority, inference_request->priority);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetPriority(Request* inference_request, uint32_t priority) {
  return TRITONSERVER_InferenceRequestSetPriorityUInt64(inference_request, priority);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetPriorityUInt64(Request* inference_request, uint64_t priority) {
  PYRUNTIME_REQUIRE(inference_request);
  inference_request->priority = priority;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestTimeoutMicroseconds(Request* inference_request, uint64_t* timeout_us) {
  PYRUNTIME_GET(inference_request, timeout_us, inference_request->timeout_us);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
    Request* inference_request, uint64_t timeout_us) {
  PYRUNTIME_REQUIRE(inference_request);
  inference_request->timeout_us = timeout_us;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRequestedOutput(Request* inference_request, const char* name) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_GUARD({
    auto& outputs = inference_request->outputs;
    if (std::find(outputs.begin(), outputs.end(), name) == outputs.end()) outputs.emplace_back(name);
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveRequestedOutput(Request* inference_request, const char* name) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  auto& outputs = inference_request->outputs;
  outputs.erase(std::remove(outputs.begin(), outputs.end(), name), outputs.end());
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(Request* inference_request) {
  PYRUNTIME_REQUIRE(inference_request);
  inference_request->outputs.clear();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetReleaseCallback(
    Request* inference_request, TRITONSERVER_InferenceRequestReleaseFn_t request_release_fn,
    void* request_release_userp) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(request_release_fn);
  inference_request->release = request_release_fn;
  inference_request->release_userp = request_release_userp;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    Request* inference_request, TRITONSERVER_ResponseAllocator* response_allocator, void* response_allocator_userp,
    TRITONSERVER_InferenceResponseCompleteFn_t response_fn, void* response_userp) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(response_allocator);
  PYRUNTIME_REQUIRE(response_fn);
  inference_request->target = {response_allocator, response_allocator_userp, response_fn, response_userp};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetStringParameter(
    Request* request, const char* key, const char* value) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(key);
  PYRUNTIME_REQUIRE(value);
  PYRUNTIME_GUARD({ return SetParameter(request, key, std::string(value)); });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetIntParameter(
    Request* request, const char* key, const int64_t value) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(key);
  PYRUNTIME_GUARD({ return SetParameter(request, key, value); });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetBoolParameter(Request* request, const char* key, const bool value) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(key);
  PYRUNTIME_GUARD({ return SetParameter(request, key, value); });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetDoubleParameter(
    Request* request, const char* key, const double value) {
  PYRUNTIME_REQUIRE(request);
  PYRUNTIME_REQUIRE(key);
  PYRUNTIME_GUARD({ return SetParameter(request, key, value); });
}

}  // extern "C"
