// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Decoupled: a request has one response per element of IN, each from a thread, none before Execute may have returned.
//
//   IN    INT32 [n]    the responses' OUT (INT32 [1]); IDX (UINT32 [1]) is the number of the response
//   DELAY UINT32 [n]   the pause before each of them, in ms
//   WAIT  UINT32 [1]   the duration of Execute, in ms
//
// The request is released before its first response. A cancellation ends the responses.
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common.h"

namespace {

using testing::Fail;
using testing::Must;
using testing::Tensor;

struct FactoryDelete {
  void operator()(TRITONBACKEND_ResponseFactory* factory) const { Must(TRITONBACKEND_ResponseFactoryDelete(factory)); }
};
using Factory = std::unique_ptr<TRITONBACKEND_ResponseFactory, FactoryDelete>;

void Sleep(uint32_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void Report(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_ResponseFactory* factory, uint64_t start_ns,
            uint64_t output_ns, TRITONSERVER_Error* error) {
  TRITONBACKEND_ModelInstanceResponseStatistics* statistics = nullptr;
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, start_ns));
  if (output_ns != 0) {
    Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, output_ns));
  }
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, testing::NowNs()));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error));
  Must(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
}

struct Work {
  Factory factory;
  Tensor in;
  Tensor delay;
  bool is_batched;

  void Respond(TRITONBACKEND_ModelInstance* instance, uint32_t index) const {
    const uint64_t start_ns = testing::NowNs();
    Sleep(delay.as<uint32_t>()[index]);
    const uint64_t output_ns = testing::NowNs();
    const std::vector<int64_t> shape = is_batched ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{1};
    TRITONBACKEND_Response* response = nullptr;
    Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory.get()));
    testing::Error error(testing::WriteOutput(response, "OUT", TRITONSERVER_TYPE_INT32, shape,
                                              in.as<int32_t>() + index, sizeof(int32_t)));
    if (error == nullptr) {
      error.reset(testing::WriteOutput(response, "IDX", TRITONSERVER_TYPE_UINT32, shape, &index, sizeof(index)));
    }
    Must(TRITONBACKEND_ResponseSend(response, 0, error.get()));
    Report(instance, factory.get(), start_ns, output_ns, error.get());
  }

  void Run(TRITONBACKEND_ModelInstance* instance) const {
    for (uint32_t index = 0; index < in.count<int32_t>(); ++index) {
      bool is_cancelled = false;
      Must(TRITONBACKEND_ResponseFactoryIsCancelled(factory.get(), &is_cancelled));
      if (is_cancelled) {
        testing::Log(TRITONSERVER_LOG_INFO, "repeat: cancelled before response " + std::to_string(index));
        break;
      }
      Respond(instance, index);
    }
    const uint64_t start_ns = testing::NowNs();
    Must(TRITONBACKEND_ResponseFactorySendFlags(factory.get(), TRITONSERVER_RESPONSE_COMPLETE_FINAL));
    Report(instance, factory.get(), start_ns, 0, nullptr);
  }
};

struct Instance {
  bool is_batched;
  std::vector<std::thread> threads;

  ~Instance() {
    for (std::thread& thread : threads) thread.join();
  }
};

TRITONSERVER_Error* Read(TRITONBACKEND_Request* request, Work* work, uint32_t* wait_ms) {
  Tensor wait;
  RETURN_IF_ERROR(testing::ReadInput(request, "IN", &work->in));
  RETURN_IF_ERROR(testing::ReadInput(request, "DELAY", &work->delay));
  RETURN_IF_ERROR(testing::ReadInput(request, "WAIT", &wait));
  if (work->in.count<int32_t>() != work->delay.count<uint32_t>()) {
    return Fail("expected IN and DELAY shape to match, got " + std::to_string(work->in.count<int32_t>()) + " and " +
                std::to_string(work->delay.count<uint32_t>()));
  }
  if (wait.count<uint32_t>() != 1) return Fail("expected WAIT to have one element");
  *wait_ms = *wait.as<uint32_t>();
  return nullptr;
}

void ExecuteOne(TRITONBACKEND_ModelInstance* instance, Instance* state, TRITONBACKEND_Request* request) {
  const uint64_t start_ns = testing::NowNs();
  Work work{nullptr, {}, {}, state->is_batched};
  uint32_t wait_ms = 0;
  const testing::Error error(Read(request, &work, &wait_ms));
  if (error != nullptr) {
    TRITONBACKEND_Response* response = nullptr;
    Must(TRITONBACKEND_ResponseNew(&response, request));
    Must(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error.get()));
  } else {
    TRITONBACKEND_ResponseFactory* factory = nullptr;
    Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
    work.factory.reset(factory);
  }
  const uint64_t end_ns = testing::NowNs();
  Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, error == nullptr, start_ns, start_ns, end_ns,
                                                   end_ns));
  Must(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  if (work.factory != nullptr) {
    state->threads.emplace_back([instance, work = std::move(work)] { work.Run(instance); });
  }
  Sleep(wait_ms);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  const testing::Config config(testing::ModelOf(instance));
  auto state = std::make_unique<Instance>();
  state->is_batched = config.Number("max_batch_size") > 0;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
  state.release();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  std::unique_ptr<Instance> state(testing::StateOf<Instance>(instance));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  auto* state = testing::StateOf<Instance>(instance);
  const uint64_t start_ns = testing::NowNs();
  for (uint32_t index = 0; index < count; ++index) ExecuteOne(instance, state, requests[index]);
  const uint64_t end_ns = testing::NowNs();
  Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start_ns, start_ns, end_ns, end_ns));
  return nullptr;
}

}  // extern "C"
