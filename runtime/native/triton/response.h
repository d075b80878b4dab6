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
  // Empty until OutputBuffer asks for it.
  pyruntime::Buffer buffer;
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

// A response, or a failure, or only the news that it was the last (neither): becomes a kResponse tuple, its outputs
// Python objects that own their buffers. Or a kAnswered tuple, if it is the last, and the request is released as well
// before Python takes it; or a kEncoded one, if moreover it is like what is known of the request; or a kSent one.
class ResponseEvent : public Event {
 public:
  ResponseEvent(RequestStatePtr state, std::unique_ptr<TRITONBACKEND_Response> response,
                std::optional<Failure> failure, bool final);
  PyObject* ToPython() override;

  // Waits until the client has taken enough of what was sent before: see response_window.h. Of others than the last
  // response.
  void WaitForRoom();

  // Of the last response to a request with a client, with the mutex of that held: whether the client may be sent it
  // without Python, by nobody but who asks.
  bool ClaimClient();
  // Sends it then. What is left of it is for Python to send; false if that is anything.
  bool SendToClient();

  // Of a response that was sent: whether its request is released as well, and a success; when it was sent; and the
  // times of the request, which arrived then.
  bool IsOver() const { return released_ && (!statistics_ || statistics_->success); }
  uint64_t sent_ns() const { return sent_ns_; }
  Statistics times(uint64_t arrived_ns) const;

  // The backend has released the request, and reported these times, if any. Of the last response only.
  void Release(const std::optional<Statistics>& statistics);

  // Execute has returned, of a batch of this one request. False if the request is not released: they are told apart then.
  bool Execute(const Execution& execution);

 private:
  const KnownAnswer* Answer() const;
  PyObject* Encoded();
  PyObject* Sent();

  RequestStatePtr state_;
  std::unique_ptr<TRITONBACKEND_Response> response_;
  std::optional<Failure> failure_;
  bool final_;
  // What it counts for in the request's window, if there is one.
  size_t bytes_ = 0;
  bool released_ = false;
  std::optional<Statistics> statistics_;
  std::optional<Execution> execution_;
  bool claimed_ = false;
  // How many bytes the client was sent, and when.
  size_t sent_ = 0;
  uint64_t sent_ns_ = 0;
};

}  // namespace pyruntime
