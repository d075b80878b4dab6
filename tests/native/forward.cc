// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Decoupled: calls model "callee" once for each request, and answers the request in the callback for the callee's
// response. IN (INT64 [1]) is the number of responses, OUT (INT64 [1]) the number of a response.
#include <cstdlib>
#include <memory>

#include "report.h"

namespace {

using testing::Must;

struct Forward {
  TRITONBACKEND_ResponseFactory* factory;
  int64_t count;
};

TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator*, const char*, size_t, TRITONSERVER_MemoryType, int64_t,
                             void*, void**, void**, TRITONSERVER_MemoryType*, int64_t*) {
  return testing::Fail("there is nothing to allocate");
}

TRITONSERVER_Error* Free(TRITONSERVER_ResponseAllocator*, void*, void*, size_t, TRITONSERVER_MemoryType, int64_t) {
  return nullptr;
}

void Released(TRITONSERVER_InferenceRequest* request, const uint32_t, void*) {
  Must(TRITONSERVER_InferenceRequestDelete(request));
}

void Complete(TRITONSERVER_InferenceResponse*, const uint32_t, void* userp) {
  const std::unique_ptr<Forward> forward(static_cast<Forward*>(userp));
  for (int64_t number = 0; number < forward->count; ++number) {
    TRITONBACKEND_Response* response = testing::ResponseOf(forward->factory);
    testing::WriteNumber(response, number);
    Must(TRITONBACKEND_ResponseSend(response, 0, nullptr));
  }
  Must(TRITONBACKEND_ResponseFactorySendFlags(forward->factory, testing::kFinal));
  Must(TRITONBACKEND_ResponseFactoryDelete(forward->factory));
}

void Ask(TRITONBACKEND_ModelInstance* instance, TRITONSERVER_ResponseAllocator* allocator,
         TRITONBACKEND_Request* request) {
  testing::Tensor in;
  TRITONSERVER_Server* server = nullptr;
  TRITONSERVER_InferenceRequest* call = nullptr;
  Must(testing::ReadInput(request, "IN", &in));
  Must(TRITONBACKEND_ModelServer(testing::ModelOf(instance), &server));
  Must(TRITONSERVER_InferenceRequestNew(&call, server, "callee", -1));
  auto forward = std::make_unique<Forward>(Forward{testing::FactoryOf(request), *in.as<int64_t>()});
  Must(TRITONSERVER_InferenceRequestSetReleaseCallback(call, Released, nullptr));
  Must(TRITONSERVER_InferenceRequestSetResponseCallback(call, allocator, nullptr, Complete, forward.release()));
  Must(TRITONSERVER_ServerInferAsync(server, call, nullptr));
  testing::Release(request);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  RETURN_IF_ERROR(TRITONSERVER_ResponseAllocatorNew(&allocator, Allocate, Free, nullptr));
  return TRITONBACKEND_ModelInstanceSetState(instance, allocator);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return TRITONSERVER_ResponseAllocatorDelete(testing::StateOf<TRITONSERVER_ResponseAllocator>(instance));
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  auto* allocator = testing::StateOf<TRITONSERVER_ResponseAllocator>(instance);
  for (uint32_t index = 0; index < count; ++index) Ask(instance, allocator, requests[index]);
  return nullptr;
}

}  // extern "C"
