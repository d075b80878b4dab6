// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A request as a backend sees it, and its state, which it shares with its responses.
//
// The backend owns a TRITONBACKEND_Request from Execute until RequestRelease; if Execute fails, the host answers the
// requests that were not released. Responses and response factories may outlive the request.

#pragma once

#include <Python.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "execution.h"
#include "queue.h"
#include "response_window.h"
#include "triton/core/tritonbackend.h"
#include "values.h"

namespace pyruntime {

class ClientSocket;
class LentConnection;
class PlainRequests;
class RequestState;
using RequestStatePtr = std::shared_ptr<RequestState>;

// Shared by a request, its responses, its factories and their events. The last owner releases the Python job; if the
// final response was not sent by then, the backend has lost the request, which fails for that reason (kResponse, final,
// with an error), so that no client waits for ever. Any thread. It keeps the model alive, because factories of backends
// may outlive everything else.
class RequestState : public std::enable_shared_from_this<RequestState> {
 public:
  // For a plain request (see plain_requests.h): what writes its response; the client that may be sent it without Python,
  // and the lent connection of the request, each of which may be null.
  struct Plain {
    std::shared_ptr<const PlainRequests> requests;
    std::shared_ptr<ClientSocket> client;
    std::shared_ptr<LentConnection> lent;
  };

  // Takes a new reference to `job`, so the GIL must be held. `job` may be null only for a lent connection.
  RequestState(PyObject* job, std::shared_ptr<TRITONBACKEND_Model> model, std::string id, uint64_t serial,
               std::optional<Plain> plain = std::nullopt);
  ~RequestState();
  RequestState(const RequestState&) = delete;
  RequestState& operator=(const RequestState&) = delete;

  // Borrowed; with the GIL. A request of a lent connection is adopted by Python in this call.
  PyObject* job();
  TRITONBACKEND_Model* model() const { return model_.get(); }
  const std::string& id() const { return id_; }
  uint64_t serial() const { return serial_; }
  const std::optional<Plain>& plain() const { return plain_; }
  LentConnection* lent() const { return plain_ ? plain_->lent.get() : nullptr; }

  void Cancel();
  bool IsCancelled() const { return cancelled_; }

  // Marks the final response as sent: false if it was before.
  bool Finish();
  bool IsFinished() const { return finished_; }

  // The shared memory for large outputs; null if they stay in this process. Set before the backend has the request.
  void ShareOutputs(std::shared_ptr<BufferPool> memory) { outputs_ = std::move(memory); }
  const std::shared_ptr<BufferPool>& outputs() const { return outputs_; }

  // The names of the outputs that may be on a GPU. Set before the backend has the request.
  void AllowOnGpu(std::vector<std::string> names) { on_gpu_ = std::move(names); }
  bool MayBeOnGpu(const std::string& name) const {
    return std::find(on_gpu_.begin(), on_gpu_.end(), name) != on_gpu_.end();
  }

  // Reserves the answer to the client: true for the first caller only, which is a native thread or Python.
  bool Claim() { return !claimed_.exchange(true); }

  // The request will be executed again: it is not lost if it was not answered.
  void Reschedule();

  // On Python's thread: Python knows that the request is rescheduled, so responses that follow are those of an earlier
  // execution.
  void LeaveToNext() { left_to_next_ = true; }
  bool IsLeftToNext() const { return left_to_next_; }

  // The window for responses ahead of the client; null if there is one response only.
  ResponseWindow* window() const { return window_.get(); }
  // The backend no longer waits for the client.
  void LetGo();

  // The backend has released the request: it is not answered again if Execute fails.
  void Release() { released_ = true; }
  bool IsReleased() const { return released_; }

  // The place of the final response's event.
  EventPlace* answer() { return &answer_; }

  // The number of the next response whose statistics are reported.
  uint64_t NextReported() { return reported_++; }

 private:
  PyObject* job_;
  std::shared_ptr<TRITONBACKEND_Model> model_;
  std::string id_;
  uint64_t serial_;
  const std::optional<Plain> plain_;
  std::shared_ptr<BufferPool> outputs_;
  std::vector<std::string> on_gpu_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finished_{false};
  std::atomic<bool> claimed_{false};
  std::atomic<bool> rescheduled_{false};
  std::atomic<bool> released_{false};
  bool left_to_next_ = false;
  std::atomic<uint64_t> reported_{0};
  EventPlace answer_;
  const std::unique_ptr<ResponseWindow> window_;
};

}  // namespace pyruntime

// One input. Its contents are one buffer, which is not copied: in the model's request memory, which stays until the
// request is released, or in the request itself. `attributes` have the same size and memory type.
struct TRITONBACKEND_Input {
  std::string name;
  TRITONSERVER_DataType datatype;
  pyruntime::Shape shape;
  const void* data;
  TRITONSERVER_BufferAttributes attributes;
};

// A state of a sequence that a backend writes; Update passes it to the host. A state that shares the memory of an input
// (`shared`) has no buffer of its own: whatever is in that memory when the request is released is the state then.
struct TRITONBACKEND_State {
  pyruntime::RequestStatePtr request;
  std::string name;
  TRITONSERVER_DataType datatype;
  pyruntime::Shape shape;
  // The input whose memory the state shares if it has the same size; null if it never does.
  const TRITONBACKEND_Input* input = nullptr;
  const TRITONBACKEND_Input* shared = nullptr;
  pyruntime::Buffer buffer;
  TRITONSERVER_BufferAttributes attributes;
  bool updated = false;

  size_t byte_size() const { return shared != nullptr ? shared->attributes.byte_size : buffer.size(); }
};

struct TRITONBACKEND_Request {
  // Marks a request that was not released yet. To release one twice is a use after free, and so is this check; but in
  // most cases the check finds that the mark is gone, at no cost, and the backend gets an error instead of a crash. A
  // set of live requests would find all, for a lock and an allocation per request.
  static constexpr uint32_t kLive = 0x52455155;

  TRITONBACKEND_Request() : mark(kLive) {}
  ~TRITONBACKEND_Request() { mark = 0; }
  TRITONBACKEND_Request(const TRITONBACKEND_Request&) = delete;
  TRITONBACKEND_Request& operator=(const TRITONBACKEND_Request&) = delete;

  pyruntime::RequestStatePtr state;
  uint32_t flags = 0;
  // The correlation ID is a number, or a text that is not empty. A number if the client gave none.
  uint64_t correlation_id = 0;
  std::string correlation_text;
  uint64_t timeout_us = 0;
  std::vector<TRITONBACKEND_Input> inputs;
  // The memory of the inputs, if it is the request's own.
  pyruntime::Buffer contents;
  // The outputs that the client requested, or all outputs of the model.
  std::vector<std::string> outputs;
  std::vector<TRITONSERVER_Parameter> parameters;
  // The states that the backend has made; they live as long as the request.
  std::list<TRITONBACKEND_State> states;
  std::optional<pyruntime::Statistics> statistics;
  // The context of its trace, "" if it is not traced; see traces.cc.
  std::string trace_context;
  std::unique_ptr<TRITONSERVER_InferenceTrace, void (*)(TRITONSERVER_InferenceTrace*)> trace{nullptr, nullptr};
  // Volatile, so that the compiler keeps the write in the destructor although reading it afterwards is undefined.
  volatile uint32_t mark;
};

namespace pyruntime {

// Reads one request of a batch: `wire` is a list with the items of request_layout.h, with the parameters as a dict or
// "", and in place of the places with the _triton.OutputRegion for large outputs, or a tuple of the names of outputs
// that may be on a GPU. A tensor is at `base` + its address. None for outputs stands for all outputs of the model. With
// the GIL held; null with a Python exception set if the list is malformed.
std::unique_ptr<TRITONBACKEND_Request> ReadRequest(
    PyObject* job, PyObject* wire, uint64_t serial, uintptr_t base, const std::shared_ptr<TRITONBACKEND_Model>& model);

// Passes on the states that share the memory of inputs, which is the request's. For ReleaseRequest.
void PassOnSharedStates(TRITONBACKEND_Request* request);

// Ends a request that its backend has released: Python gets the end and the statistics, as part of the final response
// if that still waits to be taken, else as kReleased.
void ReleaseRequest(std::unique_ptr<TRITONBACKEND_Request> request, bool reschedule);

// Answers and releases a request that its backend will not answer any more. An answered one is only released.
void FailRequest(std::unique_ptr<TRITONBACKEND_Request> request, TRITONSERVER_Error_Code code, std::string message);

}  // namespace pyruntime
