// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Requests that differ from earlier ones only in the contents of their tensors, as nearly all do. The results of
// reading the first one in Python are kept here, so that Python need neither read later ones nor encode their
// responses.

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

// The response to such a request: later ones differ only in the contents of their outputs. Immutable. Any thread.
class KnownAnswer {
 public:
  // `head` is everything before the contents. The `outputs` have no contents, but their attributes have the number of
  // bytes.
  KnownAnswer(std::string head, std::vector<TRITONBACKEND_Output> outputs);

  bool IsLike(const TRITONBACKEND_Response& response) const;

  // The complete response as Python bytes, for a response that is alike; null with an exception set. With the GIL.
  PyObject* Encode(const TRITONBACKEND_Response& response) const;
  // Sends the response. Returns the number of bytes that the client was sent, of `size()`.
  size_t Send(const TRITONBACKEND_Response& response, ClientSocket* client) const;
  size_t size() const { return size_; }

 private:
  const std::string head_;
  const std::vector<TRITONBACKEND_Output> outputs_;
  size_t size_;
};

// With the GIL, unless a comment says otherwise.
class KnownRequest {
 public:
  // Each body begins with `document` and has `size` bytes. `pattern` is such a request, read with a base of 0: the
  // addresses of its inputs are their offsets from the end of the document.
  KnownRequest(std::shared_ptr<TRITONBACKEND_Model> model, std::string document, size_t size,
               std::unique_ptr<TRITONBACKEND_Request> pattern);

  const TRITONBACKEND_Model* model() const { return model_.get(); }

  // The number of bytes of each body.
  size_t size() const { return size_; }
  // Whether `body` is the body of such a request.
  bool Matches(std::string_view body) const { return body.size() == size_ && Begins(body); }
  // Whether a body may begin with `beginning`, which is not longer than a body.
  bool Begins(std::string_view beginning) const;

  // Makes the request for a body that matches. It copies what it needs of the body. `job` is null for a lent
  // connection. Any thread. Throws std::bad_alloc.
  std::unique_ptr<TRITONBACKEND_Request> Make(
      std::string_view body, PyObject* job, uint64_t serial, RequestState::Known known) const;

  // The common form of the responses to requests that are made from now on; null if it is not known yet.
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
