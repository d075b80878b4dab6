// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Responses of backends: any number for a request, from any thread, also after the request was released.

#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffer.h"
#include "error.h"
#include "queue.h"
#include "request.h"
#include "triton/core/tritonbackend.h"
#include "values.h"

struct TRITONBACKEND_Output {
  std::string name;
  TRITONSERVER_DataType datatype;
  pyruntime::Shape shape;
  // The shared memory for a large buffer; null if there is none.
  std::shared_ptr<pyruntime::BufferPool> shared;
  // Whether the memory may be on a GPU.
  bool may_be_on_gpu = false;
  // One of them is empty, and both are until OutputBuffer is called. `attributes` have the size.
  pyruntime::Buffer buffer;
  pyruntime::GpuBlock on_gpu;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_Response {
  pyruntime::RequestStatePtr state;
  std::list<TRITONBACKEND_Output> outputs;  // a list: backends hold pointers to them
  std::vector<TRITONSERVER_Parameter> parameters;
};

struct TRITONBACKEND_ResponseFactory {
  pyruntime::RequestStatePtr state;
};

namespace pyruntime {

// A response, a failure, or only the end of the responses (neither). It becomes a kResponse tuple, whose outputs are
// Python objects that own their buffers. A last response whose request is released before Python takes the event
// becomes kAnswered, or kEncoded if it is a plain one. A response that was sent to the client becomes
// kSent; one that was sent after the request was rescheduled becomes kEarlierResponse.
class ResponseEvent : public Event {
 public:
  ResponseEvent(RequestStatePtr state, std::unique_ptr<TRITONBACKEND_Response> response,
                std::optional<Failure> failure, bool final);
  PyObject* ToPython() override;

  // Waits until the client has taken enough of the earlier responses: see response_window.h. Not for the last response.
  void WaitForRoom();

  // For the last response to a request with a client, with the client's mutex held. Reserves the answer, and returns
  // whether the caller, and nobody else, may send it without Python.
  bool ClaimClient();
  // Sends a claimed response. False if Python must send the rest.
  bool SendToClient();

  // For a response that was sent: whether its request is released and a success; the time of sending; and the times of
  // the request, which arrived at `arrived_ns`.
  bool IsOver() const { return released_ && (!statistics_ || statistics_->success); }
  uint64_t sent_ns() const { return sent_ns_; }
  Statistics times(uint64_t arrived_ns) const;

  // The backend has released the request, and reported these times, if any. Of the last response only.
  void Release(const std::optional<Statistics>& statistics);

  // Adds the end of Execute, for a batch of this one request. False if the request is not released: the end is an event
  // of its own then.
  bool Execute(const Execution& execution);

 private:
  bool IsWritten();
  PyObject* Encoded();
  PyObject* Sent();

  RequestStatePtr state_;
  std::unique_ptr<TRITONBACKEND_Response> response_;
  std::optional<Failure> failure_;
  bool final_;
  // The bytes that it counts for in the request's window, if there is one.
  size_t bytes_ = 0;
  bool released_ = false;
  std::optional<Statistics> statistics_;
  std::optional<Execution> execution_;
  // What was written of a plain response: see PlainRequests.
  std::string text_;
  bool claimed_ = false;
  // The number of bytes that the client was sent, and the time.
  size_t sent_ = 0;
  uint64_t sent_ns_ = 0;
};

}  // namespace pyruntime
