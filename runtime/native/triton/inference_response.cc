// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// TRITONSERVER_InferenceResponse*: native code reads the response to its request.

#include "arguments.h"
#include "inference.h"

using pyruntime::Failure;
using Response = TRITONSERVER_InferenceResponse;

namespace {

TRITONSERVER_Error* OutOfRange(const char* function, const char* what, uint32_t index, size_t count) {
  return pyruntime::InvalidArgument(
      function, "out of bounds index " + std::to_string(index) + ", there are " + std::to_string(count) + " " + what);
}

}  // namespace

Response::~TRITONSERVER_InferenceResponse() { ReleaseOutputs(); }

std::optional<Failure> Response::ReleaseOutputs() {
  std::optional<Failure> first;
  for (const Output& output : outputs) {
    TRITONSERVER_Error* error = allocator->release(
        allocator, output.base, output.userp, output.byte_size, output.memory_type, output.memory_type_id);
    if (error == nullptr) continue;
    Failure failure = pyruntime::TakeFailure(error);
    if (!first) first = std::move(failure);
  }
  outputs.clear();
  return first;
}

extern "C" {

TRITONSERVER_Error* TRITONSERVER_InferenceResponseDelete(Response* inference_response) {
  PYRUNTIME_GUARD({
    const std::unique_ptr<Response> response(inference_response);
    if (response == nullptr) return nullptr;
    return pyruntime::ToError(response->ReleaseOutputs());
  });
}

// A new error each time, because the caller deletes it.
TRITONSERVER_Error* TRITONSERVER_InferenceResponseError(Response* inference_response) {
  PYRUNTIME_REQUIRE(inference_response);
  PYRUNTIME_GUARD({ return pyruntime::ToError(inference_response->failure); });
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseModel(
    Response* inference_response, const char** model_name, int64_t* model_version) {
  PYRUNTIME_REQUIRE(inference_response);
  PYRUNTIME_REQUIRE(model_name);
  PYRUNTIME_REQUIRE(model_version);
  *model_name = inference_response->model.c_str();
  *model_version = inference_response->version;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseId(Response* inference_response, const char** request_id) {
  PYRUNTIME_GET(inference_response, request_id, inference_response->id.c_str());
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameterCount(Response* inference_response, uint32_t* count) {
  PYRUNTIME_GET(inference_response, count, static_cast<uint32_t>(inference_response->parameters.size()));
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameter(
    Response* inference_response, const uint32_t index, const char** name, TRITONSERVER_ParameterType* type,
    const void** vvalue) {
  PYRUNTIME_REQUIRE(inference_response);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(type);
  PYRUNTIME_REQUIRE(vvalue);
  const auto& parameters = inference_response->parameters;
  if (index >= parameters.size()) return OutOfRange(__func__, "parameters", index, parameters.size());
  *name = parameters[index].name.c_str();
  *type = parameters[index].type();
  *vvalue = parameters[index].pointer();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputCount(Response* inference_response, uint32_t* count) {
  PYRUNTIME_GET(inference_response, count, static_cast<uint32_t>(inference_response->outputs.size()));
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutput(
    Response* inference_response, const uint32_t index, const char** name, TRITONSERVER_DataType* datatype,
    const int64_t** shape, uint64_t* dim_count, const void** base, size_t* byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id, void** userp) {
  PYRUNTIME_REQUIRE(inference_response);
  const auto& outputs = inference_response->outputs;
  if (index >= outputs.size()) return OutOfRange(__func__, "outputs", index, outputs.size());
  const Response::Output& output = outputs[index];
  *name = output.name.c_str();
  *datatype = output.datatype;
  *shape = output.shape.data();
  *dim_count = output.shape.size();
  *base = output.base;
  *byte_size = output.byte_size;
  *memory_type = output.memory_type;
  *memory_type_id = output.memory_type_id;
  *userp = output.userp;
  return nullptr;
}

// Labels are for clients, in the server's frontends: to native code no output has any.
TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputClassificationLabel(
    Response* inference_response, const uint32_t index, const size_t /*class_index*/, const char** label) {
  PYRUNTIME_REQUIRE(inference_response);
  PYRUNTIME_REQUIRE(label);
  const size_t count = inference_response->outputs.size();
  if (index >= count) return OutOfRange(__func__, "outputs", index, count);
  *label = nullptr;
  return nullptr;
}

}  // extern "C"
