// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A connection whose client repeats the same known request: an instance's thread reads it, and Python only gets sums of
// the requests. The first request that differs ends the lending, and Python takes the connection back.

#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "backend.h"
#include "client_socket.h"
#include "known_request.h"
#include "response.h"

namespace pyruntime {

// The common properties of all its requests.
struct LentTerms {
  std::shared_ptr<const KnownRequest> known;
  std::shared_ptr<const KnownAnswer> answer;
  std::string head;    // byte for byte
  uint32_t rows;       // of each request
};

// A request is read, executed and answered on the instance's thread, one at a time. It is counted once it has ended and
// is not referenced any more. Otherwise Python makes a job of the request (`Adopt`) and takes the connection back. The
// mutex of the connection is the client's.
class LentConnection : public Source, public std::enable_shared_from_this<LentConnection> {
 public:
  // With the GIL. `connection` is Python's object, which adopts requests; `data` was read from it already, and is a
  // request. The instance outlives the lending.
  LentConnection(TRITONBACKEND_ModelInstance* instance, LentTerms terms, std::shared_ptr<ClientSocket> client,
                 PyObject* connection, std::string data);
  ~LentConnection() override;
  LentConnection(const LentConnection&) = delete;
  LentConnection& operator=(const LentConnection&) = delete;

  // See Source.
  int descriptor() const override { return client_->descriptor(); }
  bool Read() override;

  // On the instance's thread, after Execute. Returns whether the request has ended and was counted. If not, its events
  // follow, and `answer` is set to the place of its response's event, if that was kept until now.
  bool Ended(const Execution& execution, EventPlace* answer);

  // Any thread; with the client's mutex held. Sends a claimed response, and takes its event. False if the request is
  // Python's: then the event must reach Python before the response is sent.
  bool Send(std::unique_ptr<ResponseEvent>* event);
  // Any thread; for a request that the backend has released. False if Python needs an event for it.
  bool Release(const std::optional<Statistics>& statistics);

  // With the GIL. Has Python make a job of a request, which takes the connection back. Returns a new reference.
  PyObject* Adopt(const RequestStatePtr& state);
  // With the GIL. Takes the connection back for Python, which adopts a request that is under way. Returns the bytes
  // that were read of the next request, or null with a Python exception set.
  PyObject* TakeBack();
  // With the GIL. The event that has Python take the connection back; null if it has. The bytes that were read stay
  // here until then, because an earlier event may take all connections back.
  PyObject* GiveBack() const;

  // The number of requests that have begun.
  uint64_t begun() const { return begun_; }

 private:
  // With the mutex held.
  std::unique_ptr<TRITONBACKEND_Request> ReadRequest();
  bool Matches() const;
  void BecomePythons();

  TRITONBACKEND_ModelInstance* const instance_;
  const LentTerms terms_;
  const std::shared_ptr<ClientSocket> client_;
  PyObject* const connection_;
  std::atomic<uint64_t> begun_{0};

  // With the client's mutex: the bytes that were read of a request; the request under way, its arrival, and the
  // response that was sent for it.
  std::string data_;
  RequestStatePtr current_;
  uint64_t arrived_ns_ = 0;
  std::unique_ptr<ResponseEvent> kept_;
  // The connection is not read any more, and the current request has events for Python.
  bool ended_ = false;
  // With the GIL. Python has taken it back.
  bool is_back_ = false;
};

}  // namespace pyruntime
