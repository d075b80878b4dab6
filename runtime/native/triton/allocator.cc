// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Response allocators, and the placement of outputs in their buffers.

#include <cstring>
#include <utility>

#include "arguments.h"
#include "cuda_driver.h"
#include "host.h"
#include "inference.h"

namespace pyruntime {
namespace {

using Output = TRITONSERVER_InferenceResponse::Output;

// Reports the size and the memory type of a buffer to its allocator, if that has a function for it.
std::optional<Failure> Describe(const ResponseTarget& target, const Output& output) {
  const auto describe = target.allocator->buffer_attributes;
  if (describe == nullptr) return std::nullopt;
  TRITONSERVER_BufferAttributes attributes;
  attributes.byte_size = output.byte_size;
  attributes.memory_type = output.memory_type;
  attributes.memory_type_id = output.memory_type_id;
  TRITONSERVER_Error* error =
      describe(target.allocator, output.name.c_str(), &attributes, target.allocator_userp, output.userp);
  if (error == nullptr) return std::nullopt;
  return TakeFailure(error);
}

// Copies an output to the memory that its allocator has chosen.
std::optional<Failure> Fill(const Output& output, const void* data) {
  if (output.byte_size == 0) return std::nullopt;
  if (output.memory_type != TRITONSERVER_MEMORY_GPU) {
    std::memcpy(output.base, data, output.byte_size);
    return std::nullopt;
  }
  std::string reason;
  CudaDriver* const driver = CudaDriver::Find(&reason);
  if (driver != nullptr) {
    const auto failed = driver->Write(output.memory_type_id, output.base, data, output.byte_size);
    if (!failed) return std::nullopt;
    reason = *failed;
  }
  return Failure{
      TRITONSERVER_ERROR_INTERNAL, "output '" + output.name + "' cannot be copied to GPU " +
                                       std::to_string(output.memory_type_id) + ": " + reason};
}

// The allocator is asked for CPU memory, where outputs come from, and may choose another kind. Its query function is not
// called.
std::optional<Failure> Place(
    const ResponseTarget& target, OutputView view, TRITONSERVER_InferenceResponse* response) {
  Output output{std::move(view.name), view.datatype,          std::move(view.shape), nullptr,
                view.size,            TRITONSERVER_MEMORY_CPU, 0,                     nullptr};
  TRITONSERVER_Error* error = target.allocator->alloc(
      target.allocator, output.name.c_str(), output.byte_size, TRITONSERVER_MEMORY_CPU, 0, target.allocator_userp,
      &output.base, &output.userp, &output.memory_type, &output.memory_type_id);
  if (error != nullptr) return TakeFailure(error);
  response->outputs.push_back(std::move(output));
  const Output& placed = response->outputs.back();
  if (placed.base == nullptr && placed.byte_size != 0) {
    return Failure{TRITONSERVER_ERROR_INTERNAL, "no memory was allocated for output '" + placed.name + "'"};
  }
  if (auto failure = Fill(placed, view.data)) return failure;
  return Describe(target, placed);
}

std::optional<Failure> PlaceAll(
    const ResponseTarget& target, std::vector<OutputView> outputs, TRITONSERVER_InferenceResponse* response) {
  for (OutputView& output : outputs) {
    if (auto failure = Place(target, std::move(output), response)) return failure;
  }
  return std::nullopt;
}

std::optional<Failure> Start(const ResponseTarget& target) {
  const auto start = target.allocator->start;
  TRITONSERVER_Error* error = start != nullptr ? start(target.allocator, target.allocator_userp) : nullptr;
  if (error == nullptr) return std::nullopt;
  Failure failure = TakeFailure(error);
  failure.message = "response allocation start failed: " + failure.message;
  return failure;
}

}  // namespace

std::unique_ptr<TRITONSERVER_InferenceResponse> MakeResponse(
    const ResponseTarget& target, const std::string& id, Delivery* delivery) {
  auto response = std::make_unique<TRITONSERVER_InferenceResponse>();
  response->allocator = target.allocator;
  response->model = std::move(delivery->model);
  response->version = delivery->version;
  response->id = id;
  response->failure = Start(target);
  if (!response->failure) response->failure = std::move(delivery->failure);
  if (!response->failure) response->failure = PlaceAll(target, std::move(*delivery->outputs), response.get());
  if (response->failure) {
    response->ReleaseOutputs();
  } else {
    response->parameters = std::move(delivery->parameters);
  }
  return response;
}

}  // namespace pyruntime

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorNew(
    TRITONSERVER_ResponseAllocator** allocator, TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn,
    TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn, TRITONSERVER_ResponseAllocatorStartFn_t start_fn) {
  PYRUNTIME_REQUIRE(allocator);
  PYRUNTIME_REQUIRE(alloc_fn);
  PYRUNTIME_REQUIRE(release_fn);
  PYRUNTIME_GUARD({
    auto made = std::make_unique<TRITONSERVER_ResponseAllocator>();
    made->alloc = alloc_fn;
    made->release = release_fn;
    made->start = start_fn;
    *allocator = made.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    TRITONSERVER_ResponseAllocator* allocator,
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t buffer_attributes_fn) {
  PYRUNTIME_REQUIRE(allocator);
  allocator->buffer_attributes = buffer_attributes_fn;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorSetQueryFunction(
    TRITONSERVER_ResponseAllocator* allocator, TRITONSERVER_ResponseAllocatorQueryFn_t query_fn) {
  PYRUNTIME_REQUIRE(allocator);
  allocator->query = query_fn;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator* allocator) {
  std::unique_ptr<TRITONSERVER_ResponseAllocator>{allocator};
  return nullptr;
}

}  // extern "C"
