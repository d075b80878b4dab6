// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The inputs of TRITONSERVER_InferenceRequests. Messages are Triton's.

#include <algorithm>
#include <utility>

#include "arguments.h"
#include "inference.h"

using pyruntime::RequestInput;
using Request = TRITONSERVER_InferenceRequest;

namespace {

TRITONSERVER_Error* Invalid(const Request& request, const std::string& what) {
  const std::string id = request.id.empty() ? "<id_unknown>" : request.id;
  return pyruntime::NewError(TRITONSERVER_ERROR_INVALID_ARG, "[request id: " + id + "] " + what);
}

TRITONSERVER_Error* Missing(const Request& request, const char* name) {
  return Invalid(request, "input '" + std::string(name) + "' does not exist in request");
}

RequestInput* Find(Request* request, const char* name) {
  const auto has_name = [name](const RequestInput& input) { return input.name == name; };
  const auto found = std::find_if(request->inputs.begin(), request->inputs.end(), has_name);
  return found != request->inputs.end() ? &*found : nullptr;
}

bool HasRawInput(const Request& request) {
  return std::any_of(request.inputs.begin(), request.inputs.end(), [](const RequestInput& input) {
    return input.datatype == TRITONSERVER_TYPE_INVALID;
  });
}

std::optional<int64_t> GpuOf(TRITONSERVER_MemoryType memory_type, int64_t memory_type_id) {
  return memory_type == TRITONSERVER_MEMORY_GPU ? std::make_optional(memory_type_id) : std::nullopt;
}

TRITONSERVER_Error* Append(Request* request, const char* name, RequestInput::Piece piece) {
  RequestInput* input = Find(request, name);
  if (input == nullptr) return Missing(*request, name);
  if (piece.data == nullptr && piece.size != 0) {
    return Invalid(*request, "input '" + input->name + "' has no data at its address");
  }
  input->pieces.push_back(std::move(piece));
  return nullptr;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddInput(
    Request* inference_request, const char* name, const TRITONSERVER_DataType datatype, const int64_t* shape,
    uint64_t dim_count) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  if (dim_count != 0) PYRUNTIME_REQUIRE(shape);
  PYRUNTIME_GUARD({
    if (datatype == TRITONSERVER_TYPE_INVALID || datatype > TRITONSERVER_TYPE_BF16) {
      return Invalid(*inference_request, "input '" + std::string(name) + "' has no data type");
    }
    if (Find(inference_request, name) != nullptr) {
      return Invalid(*inference_request, "input '" + std::string(name) + "' already exists in request");
    }
    pyruntime::Shape dims;
    if (dim_count != 0) dims.assign(shape, shape + dim_count);
    inference_request->inputs.push_back({name, datatype, std::move(dims), {}});
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRawInput(Request* inference_request, const char* name) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_GUARD({
    if (HasRawInput(*inference_request)) {
      return Invalid(
          *inference_request, "raw input '" + inference_request->inputs.front().name + "' already exists in request");
    }
    if (!inference_request->inputs.empty()) {
      return Invalid(
          *inference_request, "raw input '" + std::string(name) + "' can't be added to request with other inputs");
    }
    inference_request->inputs.push_back({name, TRITONSERVER_TYPE_INVALID, {}, {}});
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveInput(Request* inference_request, const char* name) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_GUARD({
    auto& inputs = inference_request->inputs;
    if (Find(inference_request, name) == nullptr) return Missing(*inference_request, name);
    const auto has_name = [name](const RequestInput& input) { return input.name == name; };
    inputs.erase(std::remove_if(inputs.begin(), inputs.end(), has_name), inputs.end());
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputs(Request* inference_request) {
  PYRUNTIME_REQUIRE(inference_request);
  inference_request->inputs.clear();
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputData(
    Request* inference_request, const char* name, const void* base, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_GUARD({
    return Append(inference_request, name, {base, byte_size, "", GpuOf(memory_type, memory_type_id)});
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    Request* inference_request, const char* name, const void* base, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, const char* host_policy_name) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(host_policy_name);
  PYRUNTIME_GUARD({
    return Append(inference_request, name, {base, byte_size, host_policy_name, GpuOf(memory_type, memory_type_id)});
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    Request* inference_request, const char* name, const void* base, TRITONSERVER_BufferAttributes* buffer_attributes) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_REQUIRE(buffer_attributes);
  PYRUNTIME_GUARD({
    const auto gpu = GpuOf(buffer_attributes->memory_type, buffer_attributes->memory_type_id);
    return Append(inference_request, name, {base, buffer_attributes->byte_size, "", gpu});
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputData(Request* inference_request, const char* name) {
  PYRUNTIME_REQUIRE(inference_request);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_GUARD({
    RequestInput* input = Find(inference_request, name);
    if (input == nullptr) return Missing(*inference_request, name);
    input->pieces.clear();
    return nullptr;
  });
}

}  // extern "C"
