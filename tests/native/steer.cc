// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Returns INPUT0 (INT32) as OUTPUT0. A negative first value selects an action, before that or instead: see Action. So
// requests that differ only in their contents have different outcomes.
#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "common.h"

namespace {

using testing::Error;
using testing::Fail;
using testing::Must;
using testing::Tensor;

enum Action : int32_t {
  // While there is a file `hold` in the model's folder. Logged as `steer: held`, and `steer: cancelled` if cancelled.
  kHold = -1,
  kErrorResponse = -2,
  kExecuteFails = -3,
  kThrow = -4,
  kCall = -5,  // model "callee", of the same input
  kSlow = -6,  // 5 ms
  kShorter = -7,
  kReleaseFirst = -8,
  kOtherThread = -9,
  kLost = -10,
};

bool IsHeld(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* location = nullptr;
  Must(TRITONBACKEND_ModelRepository(testing::ModelOf(instance), &type, &location));
  struct stat found = {};
  return stat((std::string(location) + "/hold").c_str(), &found) == 0;
}

// Waits while the file exists. Whether the request is still wanted.
bool Hold(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
  testing::Log(TRITONSERVER_LOG_INFO, "steer: held");
  while (IsHeld(instance)) {
    bool is_cancelled = false;
    Must(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
    if (is_cancelled) {
      testing::Log(TRITONSERVER_LOG_INFO, "steer: cancelled");
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TRITONSERVER_Error* Allocate(TRITONSERVER_ResponseAllocator*, const char*, size_t size, TRITONSERVER_MemoryType, int64_t,
                             void*, void** buffer, void**, TRITONSERVER_MemoryType* type, int64_t* type_id) {
  *buffer = std::malloc(size);
  *type = TRITONSERVER_MEMORY_CPU;
  *type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* Free(TRITONSERVER_ResponseAllocator*, void* buffer, void*, size_t, TRITONSERVER_MemoryType, int64_t) {
  std::free(buffer);
  return nullptr;
}

// Notes callbacks. Both must have happened before it is destroyed.
struct Call {
  void Notify(bool* what) {
    const std::lock_guard<std::mutex> lock(mutex);
    *what = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool is_released = false;
  bool is_answered = false;
  std::string failure;
};

void Released(TRITONSERVER_InferenceRequest* request, const uint32_t, void* userp) {
  Must(TRITONSERVER_InferenceRequestDelete(request));
  auto* call = static_cast<Call*>(userp);
  call->Notify(&call->is_released);
}

void Complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  auto* call = static_cast<Call*>(userp);
  if (response != nullptr) {
    const Error error(TRITONSERVER_InferenceResponseError(response));
    if (error != nullptr) call->failure = TRITONSERVER_ErrorMessage(error.get());
    Must(TRITONSERVER_InferenceResponseDelete(response));
  }
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0) call->Notify(&call->is_answered);
}

TRITONSERVER_Error* CallOther(TRITONBACKEND_ModelInstance* instance, const Tensor& in) {
  TRITONSERVER_Server* server = nullptr;
  TRITONSERVER_InferenceRequest* request = nullptr;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  Call call;
  Must(TRITONBACKEND_ModelServer(testing::ModelOf(instance), &server));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestNew(&request, server, "callee", -1));
  Must(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", in.datatype, in.shape.data(), in.shape.size()));
  Must(TRITONSERVER_InferenceRequestAppendInputData(
      request, "INPUT0", in.contents.data(), in.contents.size(), TRITONSERVER_MEMORY_CPU, 0));
  Must(TRITONSERVER_ResponseAllocatorNew(&allocator, Allocate, Free, nullptr));
  Must(TRITONSERVER_InferenceRequestSetReleaseCallback(request, Released, &call));
  Must(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, nullptr, Complete, &call));
  TRITONSERVER_Error* error = TRITONSERVER_ServerInferAsync(server, request, nullptr);
  if (error != nullptr) {
    Must(TRITONSERVER_InferenceRequestDelete(request));
  } else {
    std::unique_lock<std::mutex> lock(call.mutex);
    call.changed.wait(lock, [&call] { return call.is_released && call.is_answered; });
    if (!call.failure.empty()) error = Fail(call.failure);
  }
  Must(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return error;
}

// Performs the action before the response is made.
TRITONSERVER_Error* Prepare(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, int32_t action,
                            const Tensor& in) {
  if (action == kHold && !Hold(instance, request)) return Fail("cancelled", TRITONSERVER_ERROR_CANCELLED);
  if (action == kErrorResponse) return Fail("as the request says");
  if (action == kSlow) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return action == kCall ? CallOther(instance, in) : nullptr;
}

void Respond(TRITONBACKEND_Response* response, Tensor out, int32_t action, const Error& error) {
  if (action == kShorter) {
    out.contents.resize(out.contents.size() - sizeof(int32_t));
    --out.shape.back();
  }
  if (error == nullptr) Must(testing::WriteOutput(response, "OUTPUT0", out));
  Must(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error.get()));
}

void Release(TRITONBACKEND_Request* request) {
  Must(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

TRITONSERVER_Error* Execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
  const uint64_t start_ns = testing::NowNs();
  Tensor in;
  Must(testing::ReadInput(request, "INPUT0", &in));
  const int32_t action = in.contents.empty() ? 0 : in.as<int32_t>()[0];
  if (action == kExecuteFails) return Fail("Execute fails");
  if (action == kThrow) throw std::runtime_error("thrown");
  if (action == kLost) return Release(request), nullptr;
  const Error error(Prepare(instance, request, action, in));
  TRITONBACKEND_Response* response = nullptr;
  Must(TRITONBACKEND_ResponseNew(&response, request));
  const uint64_t end_ns = testing::NowNs();
  Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, error == nullptr, start_ns, start_ns, end_ns,
                                                   end_ns));
  Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, start_ns, start_ns, end_ns, end_ns));
  const auto respond = [&] { Respond(response, in, action, error); };
  if (action == kReleaseFirst) Release(request);
  if (action == kOtherThread) {
    std::thread(respond).join();
  } else {
    respond();
  }
  if (action != kReleaseFirst) Release(request);
  return nullptr;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) RETURN_IF_ERROR(Execute(instance, requests[index]));
  return nullptr;
}

}  // extern "C"
