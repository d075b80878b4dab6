// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A request as a backend sees it, and what it shares with everything that answers it.
//
// The backend owns a TRITONBACKEND_Request from Execute until RequestRelease; if Execute fails, the host keeps those
// that were not released and answers them. Responses and response factories may outlive the request.

#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffer.h"
#include "execution.h"
#include "queue.h"
#include "response_window.h"
#include "triton/core/tritonbackend.h"
#include "values.h"

namespace pyruntime {

class ClientSocket;
class KnownAnswer;
class LentConnection;
class RequestState;
using RequestStatePtr = std::shared_ptr<RequestState>;

// Shared by a request, its responses, its factories and the events about them. The last to go gives the Python job
// back; if nobody has sent the final response by then, the request was lost by its backend, and fails for that reason
// (kResponse, final, with an error): nobody waits for ever. Any thread. It keeps the model, for factories of backends
// may stay after everything else.
class RequestState : public std::enable_shared_from_this<RequestState> {
 public:
  // Of a request that is known (see known_request.h): what its response will be like, who may be sent it without asking
  // Python, and the connection that has it, if that is lent; each may be null.
  struct Known {
    std::shared_ptr<const KnownAnswer> answer;
    std::shared_ptr<ClientSocket> client;
    std::shared_ptr<LentConnection> lent;
  };

  // Takes a reference to `job` for itself: call it with the GIL held. Only of a lent connection's it may be null.
  RequestState(PyObject* job, std::shared_ptr<TRITONBACKEND_Model> model, std::string id, uint64_t serial,
               std::optional<Known> known = std::nullopt);
  ~RequestState();
  RequestState(const RequestState&) = delete;
  RequestState& operator=(const RequestState&) = delete;

  // Borrowed; with the GIL. Whoever asks for that of a lent connection's request has Python adopt it.
  PyObject* job();
  TRITONBACKEND_Model* model() const { return model_.get(); }
  const std::string& id() const { return id_; }
  uint64_t serial() const { return serial_; }
  const std::optional<Known>& known() const { return known_; }
  LentConnection* lent() const { return known_ ? known_->lent.get() : nullptr; }

  void Cancel();
  bool IsCancelled() const { return cancelled_; }

  // Marks the request as answered for good: false if it was before.
  bool Finish();
  bool IsFinished() const { return finished_; }

  // True for the first who wants to answer the client, of a native thread that can and Python that cannot wait for it.
  bool Claim() { return !claimed_.exchange(true); }

  // The request will be executed again: it is not lost if nobody has answered it.
  void Reschedule();

  // How far its backend may be ahead of its client; null where there is one response only.
  ResponseWindow* window() const { return window_.get(); }
  // Its backend does not wait for its client any longer.
  void LetGo();

  // The backend has given the request back: if Execute fails nevertheless, there is nothing to take back.
  void Release() { released_ = true; }
  bool IsReleased() const { return released_; }

  // Where the event of the final response is.
  EventPlace* answer() { return &answer_; }

  // The number of the next response whose statistics are reported.
  uint64_t NextReported() { return reported_++; }

 private:
  PyObject* job_;
  std::shared_ptr<TRITONBACKEND_Model> model_;
  std::string id_;
  uint64_t serial_;
  const std::optional<Known> known_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finished_{false};
  std::atomic<bool> claimed_{false};
  std::atomic<bool> rescheduled_{false};
  std::atomic<bool> released_{false};
  std::atomic<uint64_t> reported_{0};
  EventPlace answer_;
  const std::unique_ptr<ResponseWindow> window_;
};

}  // namespace pyruntime

// One input. Its contents lie in the model's request memory, which stays until the request is released, or are the
// request's own: one buffer, not copied. `attributes` say the same as size and memory type.
struct TRITONBACKEND_Input {
  std::string name;
  TRITONSERVER_DataType datatype;
  pyruntime::Shape shape;
  const void* data;
  TRITONSERVER_BufferAttributes attributes;
};

// A state of a sequence that a backend writes; Update hands it to the host.
struct TRITONBACKEND_State {
  pyruntime::RequestStatePtr request;
  std::string name;
  TRITONSERVER_DataType datatype;
  pyruntime::Shape shape;
  pyruntime::Buffer buffer;
  TRITONSERVER_BufferAttributes attributes;
  bool updated = false;
};

struct TRITONBACKEND_Request {
  // Says that this is a request that was not released yet. To release one twice is a use after free, and to look for
  // this then is one too; but in most cases it finds what it looks for, at no cost, and the backend hears of its fault
  // instead of dying of it. A set of live requests would find all, for a lock and an allocation per request.
  static constexpr uint32_t kLive = 0x52455155;

  TRITONBACKEND_Request() : mark(kLive) {}
  ~TRITONBACKEND_Request() { mark = 0; }
  TRITONBACKEND_Request(const TRITONBACKEND_Request&) = delete;
  TRITONBACKEND_Request& operator=(const TRITONBACKEND_Request&) = delete;

  pyruntime::RequestStatePtr state;
  uint32_t flags = 0;
  // One of them, by what the client gave: a number, or text, which is not empty. A number if it gave none.
  uint64_t correlation_id = 0;
  std::string correlation_text;
  uint64_t timeout_us = 0;
  std::vector<TRITONBACKEND_Input> inputs;
  // What they lie in, where that is the request's own.
  pyruntime::Buffer contents;
  // Those that the client asked for, or all that the model has.
  std::vector<std::string> outputs;
  std::vector<TRITONSERVER_Parameter> parameters;
  // Those that the backend has made; they live as long as the request.
  std::list<TRITONBACKEND_State> states;
  std::optional<pyruntime::Statistics> statistics;
  // The context of its trace, "" if it is not traced; see traces.cc.
  std::string trace_context;
  std::unique_ptr<TRITONSERVER_InferenceTrace, void (*)(TRITONSERVER_InferenceTrace*)> trace{nullptr, nullptr};
  // Volatile: that nobody may read it after the destructor is no reason not to write it there.
  volatile uint32_t mark;
};

namespace pyruntime {

// Reads one request of a batch: `wire` is a list with the items of request_layout.h, the parameters a dict or "". A
// tensor lies at `base` + its address. None for outputs means all that the model has. With the GIL held; null with a
// Python exception set if it is not such a list.
std::unique_ptr<TRITONBACKEND_Request> ReadRequest(
    PyObject* job, PyObject* wire, uint64_t serial, uintptr_t base, const std::shared_ptr<TRITONBACKEND_Model>& model);

// A request that such a list describes, without a state: none that could be executed. As above.
std::unique_ptr<TRITONBACKEND_Request> ReadPattern(PyObject* wire, const TRITONBACKEND_Model& model);

// Ends a request that its backend is done with: Python is told so, and its statistics, with the final response if that
// still waits to be taken, and else by kReleased.
void ReleaseRequest(std::unique_ptr<TRITONBACKEND_Request> request, bool reschedule);

// Answers a request that its backend will not answer any more, unless it was answered before, and releases it.
void FailRequest(std::unique_ptr<TRITONBACKEND_Request> request, TRITONSERVER_Error_Code code, std::string message);

}  // namespace pyruntime
