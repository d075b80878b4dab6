// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A connection whose client sends one plain request after the other to one model: an instance's thread reads it, and
// Python only gets sums of the requests. The first request that is another one ends the lending, and Python takes the
// connection back with it, unread.

#pragma once

#include <Python.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "backend.h"
#include "client_socket.h"
#include "http_head.h"
#include "plain_requests.h"
#include "response.h"

namespace pyruntime {

// The head of a request in the bytes of a connection, which it refers to; its size, and that of the whole request, 0
// before they are known.
struct PlacedRequest {
  HttpHead head;
  size_t head_size = 0;
  size_t size = 0;
};

// Whether some bytes begin with a request that may be plain: all of it, a part of it, or none.
enum class Found { kWhole, kPart, kNone };
Found FindRequest(std::string_view data, PlacedRequest* request);

// What all its requests have in common.
struct LentTerms {
  std::shared_ptr<const PlainRequests> requests;
  // The request line with its end, byte for byte.
  std::string line;
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
  Found Find(std::string_view data, PlacedRequest* placed) const;
  std::unique_ptr<TRITONBACKEND_Request> Begin(std::string_view data, const PlacedRequest& placed);
  void BecomePythons();

  TRITONBACKEND_ModelInstance* const instance_;
  const LentTerms terms_;
  const std::shared_ptr<ClientSocket> client_;
  PyObject* const connection_;
  std::atomic<uint64_t> begun_{0};

  // With the client's mutex: the bytes that were read of a request, none while one is under way; the size of the longest
  // one; the one that is under way, its arrival, its rows, and the response that was sent for it.
  std::string data_;
  size_t longest_ = 1;
  RequestStatePtr current_;
  uint64_t arrived_ns_ = 0;
  uint32_t rows_ = 0;
  std::unique_ptr<ResponseEvent> kept_;
  // The connection is not read any more, and the current request has events for Python.
  bool ended_ = false;
  // With the GIL. Python has taken it back.
  bool is_back_ = false;
};

}  // namespace pyruntime
