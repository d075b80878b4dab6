// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Requests that come again with nothing new in them but the contents of their tensors, as nearly all do. What Python
// found out about the first of them is kept here, so that it need not read those that follow, nor put their responses
// into words.

#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client_socket.h"
#include "request.h"
#include "response.h"

namespace pyruntime {

// What the response to such a request was: those to others are like it, but for the contents of their outputs. It never
// changes. Any thread.
class KnownAnswer {
 public:
  // `head` is all that comes before the contents. Of `outputs` there are none, but their attributes say how many bytes
  // they have.
  KnownAnswer(std::string head, std::vector<TRITONBACKEND_Output> outputs);

  bool IsLike(const TRITONBACKEND_Response& response) const;

  // All of a response that is like it, as bytes of Python's; null with an exception set. With the GIL.
  PyObject* Encode(const TRITONBACKEND_Response& response) const;
  // Sends it. How many bytes the client has been sent, of `size()`.
  size_t Send(const TRITONBACKEND_Response& response, ClientSocket* client) const;
  size_t size() const { return size_; }

 private:
  const std::string head_;
  const std::vector<TRITONBACKEND_Output> outputs_;
  size_t size_;
};

// With the GIL, unless it says otherwise.
class KnownRequest {
 public:
  // `document` is what each body begins with, and `size` how long all of it is. `pattern` is a request like those that
  // are to come, read with a base of 0: its inputs lie that far behind the document.
  KnownRequest(std::shared_ptr<TRITONBACKEND_Model> model, std::string document, size_t size,
               std::unique_ptr<TRITONBACKEND_Request> pattern);

  const TRITONBACKEND_Model* model() const { return model_.get(); }

  // How many bytes each body has.
  size_t size() const { return size_; }
  // Whether `body` is that of such a request.
  bool Matches(std::string_view body) const { return body.size() == size_ && Begins(body); }
  // Whether there may be such a body that begins with this; it is no longer than one.
  bool Begins(std::string_view beginning) const;

  // The request whose body is `body`, which matches. It has what it needs of it. `job` is null for one that is lent.
  // Any thread. Throws std::bad_alloc.
  std::unique_ptr<TRITONBACKEND_Request> Make(
      std::string_view body, PyObject* job, uint64_t serial, RequestState::Known known) const;

  // What responses to requests are like that are made from now on; null if that is not known yet.
  void Remember(std::shared_ptr<const KnownAnswer> answer) { answer_ = std::move(answer); }
  const std::shared_ptr<const KnownAnswer>& answer() const { return answer_; }

 private:
  const std::shared_ptr<TRITONBACKEND_Model> model_;
  const std::string document_;
  const size_t size_;
  const std::unique_ptr<TRITONBACKEND_Request> pattern_;
  std::shared_ptr<const KnownAnswer> answer_;
};

}  // namespace pyruntime
