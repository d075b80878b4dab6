// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Decoupled and iterative: executes a request IN (INT64 [1]) times, and sends a response each time. OUT (INT64 [1]) is
// the number of executions that are left. It releases a request, to be executed again or for good, before it sends the
// response of that execution.
//
// Parameter SEND: "execute", during Execute; "thread", from another thread, in order and possibly much later.
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "report.h"

namespace {

using testing::Must;
using testing::StateOf;

struct Answer {
  TRITONBACKEND_Response* response;
  uint32_t flags;

  void Send() const { Must(TRITONBACKEND_ResponseSend(response, flags, nullptr)); }
};

// Sends answers from a thread of its own.
class Sender {
 public:
  ~Sender() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void Add(const Answer& answer) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_.push_back(answer);
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ended_ || !answers_.empty(); });
      if (answers_.empty()) return;
      const Answer answer = answers_.front();
      answers_.pop_front();
      lock.unlock();
      answer.Send();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Answer> answers_;
  bool ended_ = false;
  std::thread thread_{[this] { Run(); }};
};

struct Model {
  std::mutex mutex;
  std::map<uint64_t, int64_t> left;  // by correlation ID
  bool sends_in_thread = false;
  Sender sender;

  int64_t Next(TRITONBACKEND_Request* request) {
    uint64_t id = 0;
    uint32_t flags = 0;
    Must(TRITONBACKEND_RequestCorrelationId(request, &id));
    Must(TRITONBACKEND_RequestFlags(request, &flags));
    const std::lock_guard<std::mutex> lock(mutex);
    if ((flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) != 0) {
      testing::Tensor in;
      Must(testing::ReadInput(request, "IN", &in));
      left[id] = in.as<int64_t>()[0];
    }
    return --left[id];
  }
};

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  auto state = std::make_unique<Model>();
  state->sends_in_thread = testing::Config(model).Parameter("SEND", "execute") == "thread";
  RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, state.get()));
  state.release();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  const std::unique_ptr<Model> state(StateOf<Model>(model));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  auto* state = StateOf<Model>(testing::ModelOf(instance));
  for (uint32_t index = 0; index < count; ++index) {
    const int64_t left = state->Next(requests[index]);
    const Answer answer{testing::ResponseOf(requests[index]), left == 0 ? testing::kFinal : 0};
    testing::WriteNumber(answer.response, left);
    Must(TRITONBACKEND_RequestRelease(requests[index], left == 0 ? testing::kAll : testing::kReschedule));
    if (state->sends_in_thread) {
      state->sender.Add(answer);
    } else {
      answer.Send();
    }
  }
  return nullptr;
}

}  // extern "C"
