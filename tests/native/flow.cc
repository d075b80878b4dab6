// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Decoupled: sends responses as fast as possible, from a thread of its own. IN (INT64 [3]) has their number, the bytes
// of each, and whether they are errors. OUT (INT64 [1]) is the number of a response, PAD (UINT8 [-1]) are its bytes.
// The ID of a request may select another action:
//
//   end      sends the final response to the request that is being answered
//   report   returns OUT (INT64 [4]): the number of sent responses, of ended threads and of responses that threads have
//            begun to send, and the number of the latest thread; with the last error of the server as the parameter
//            "told"
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "report.h"

namespace {

using testing::Must;
using testing::Tensor;

struct FactoryDelete {
  void operator()(TRITONBACKEND_ResponseFactory* factory) const { Must(TRITONBACKEND_ResponseFactoryDelete(factory)); }
};
using Factory = std::unique_ptr<TRITONBACKEND_ResponseFactory, FactoryDelete>;

struct Work {
  Factory factory;
  int64_t count;
  size_t bytes;
  bool is_error;
};

struct Instance {
  std::vector<std::thread> threads;
  std::atomic<int64_t> sent{0};
  std::atomic<int64_t> ended{0};
  std::atomic<int64_t> begun{0};
  std::atomic<int64_t> thread{0};
  std::mutex mutex;
  std::string told;
  Factory latest;

  ~Instance() {
    for (std::thread& thread : threads) thread.join();
  }

  void Tell(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex);
    told = what;
  }

  // False if the server refused it.
  bool Send(const Work& work, int64_t number) {
    TRITONBACKEND_Response* response = testing::ResponseOf(work.factory.get());
    testing::WriteNumber(response, number);
    if (work.bytes != 0) {
      // The buffer is not written to, so that it takes no memory.
      void* buffer = nullptr;
      TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
      int64_t type_id = 0;
      TRITONBACKEND_Output* pad =
          testing::AddOutput(response, "PAD", TRITONSERVER_TYPE_UINT8, {static_cast<int64_t>(work.bytes)});
      Must(TRITONBACKEND_OutputBuffer(pad, &buffer, work.bytes, &type, &type_id));
    }
    const testing::Error error(work.is_error ? testing::Fail("no. " + std::to_string(number)) : nullptr);
    ++begun;
    const std::string what = testing::Told(TRITONBACKEND_ResponseSend(response, 0, error.get()));
    if (!what.empty()) Tell(what);
    return what.empty();
  }

  void Run(const Work& work) {
    int64_t number = 0;
    thread = syscall(SYS_gettid);
    while (number < work.count && Send(work, number)) {
      ++number;
      ++sent;
    }
    if (number == work.count) Must(TRITONBACKEND_ResponseFactorySendFlags(work.factory.get(), testing::kFinal));
    ++ended;
  }
};

void Report(Instance* state, TRITONBACKEND_Request* request) {
  const int64_t numbers[] = {state->sent, state->ended, state->begun, state->thread};
  TRITONBACKEND_Response* response = testing::ResponseOf(request);
  Must(testing::WriteOutput(response, "OUT", TRITONSERVER_TYPE_INT64, {4}, numbers, sizeof numbers));
  {
    const std::lock_guard<std::mutex> lock(state->mutex);
    Must(TRITONBACKEND_ResponseSetStringParameter(response, "told", state->told.c_str()));
  }
  Must(TRITONBACKEND_ResponseSend(response, testing::kFinal, nullptr));
}

void Flood(Instance* state, TRITONBACKEND_Request* request) {
  Tensor in;
  Must(testing::ReadInput(request, "IN", &in));
  const int64_t* numbers = in.as<int64_t>();
  Work work{Factory(testing::FactoryOf(request)), numbers[0], static_cast<size_t>(numbers[1]), numbers[2] != 0};
  state->latest.reset(testing::FactoryOf(request));
  state->threads.emplace_back([state, work = std::move(work)] { state->Run(work); });
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  auto state = std::make_unique<Instance>();
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
  state.release();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  const std::unique_ptr<Instance> state(testing::StateOf<Instance>(instance));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  auto* state = testing::StateOf<Instance>(instance);
  for (uint32_t index = 0; index < count; ++index) {
    const char* id = nullptr;
    Must(TRITONBACKEND_RequestId(requests[index], &id));
    if (std::string(id) == "report") {
      Report(state, requests[index]);
    } else if (std::string(id) == "end") {
      Must(TRITONBACKEND_ResponseFactorySendFlags(state->latest.get(), testing::kFinal));
      Report(state, requests[index]);
    } else {
      Flood(state, requests[index]);
    }
    testing::Release(requests[index]);
  }
  return nullptr;
}

}  // extern "C"
