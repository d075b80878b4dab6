// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A connection whose client sends the same known request over and over: an instance's thread reads it itself, and
// Python hears of the requests in sums only. At the first that differs in anything, Python has the connection back.

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

// What all its requests have in common.
struct LentTerms {
  std::shared_ptr<const KnownRequest> known;
  std::shared_ptr<const KnownAnswer> answer;
  std::string head;    // byte for byte
  uint32_t rows;       // of each request
};

// A request is read, executed and answered on the instance's thread, one at a time, and counted when all of that is
// over and nobody has anything more to do with it. Else Python is told: it makes a job of the request (`Adopt`) and has
// the connection back. Its mutex is that of the client.
class LentConnection : public Source, public std::enable_shared_from_this<LentConnection> {
 public:
  // With the GIL. `connection` is what Python calls it, which adopts requests; `data` is what was read of it already: a
  // request. The instance outlives the lending.
  LentConnection(TRITONBACKEND_ModelInstance* instance, LentTerms terms, std::shared_ptr<ClientSocket> client,
                 PyObject* connection, std::string data);
  ~LentConnection() override;
  LentConnection(const LentConnection&) = delete;
  LentConnection& operator=(const LentConnection&) = delete;

  // See Source.
  int descriptor() const override { return client_->descriptor(); }
  bool Read() override;

  // On the instance's thread, when Execute has returned: whether the request is counted, and gone. If not, Python hears
  // of it as of others, and `answer` is where the event of its response is, if that was kept until now.
  bool Ended(const Execution& execution, EventPlace* answer);

  // Any thread; with the client's mutex held. Sends a response that is claimed, and takes its event; false if Python
  // has the request: it has to hear of the response first.
  bool Send(std::unique_ptr<ResponseEvent>* event);
  // Any thread: the backend has released the request. False if Python is to be told.
  bool Release(const std::optional<Statistics>& statistics);

  // With the GIL. The job that Python makes of a request, a new reference; it has the connection back then.
  PyObject* Adopt(const RequestStatePtr& state);
  // With the GIL. Python has the connection back: the bytes that were read of the next request, or null with a Python
  // exception set. What is under way is adopted.
  PyObject* TakeBack();
  // With the GIL. The event that asks Python to take it back; null if it has. What was read stays here until it does: an
  // event before this one may have it take all connections back.
  PyObject* GiveBack() const;

  // How many requests have begun.
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

  // With the client's mutex. What was read of a request; the request that is under way, and what was sent for it.
  std::string data_;
  RequestStatePtr current_;
  uint64_t arrived_ns_ = 0;
  std::unique_ptr<ResponseEvent> kept_;
  // Nothing is read any more; of the current request, Python hears all.
  bool ended_ = false;
  // With the GIL. Python has it back.
  bool is_back_ = false;
};

}  // namespace pyruntime
