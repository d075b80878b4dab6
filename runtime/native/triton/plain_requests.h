// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Plain requests over HTTP, and their responses: those that can be read, and written, without Python. What is not plain,
// right or wrong, is left to Python, which is the reference: see codecs/.

#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client_socket.h"
#include "infer_request.h"
#include "request.h"
#include "response.h"

namespace pyruntime {

// The longest body of a plain request, and that of a plain response, in bytes. Python reads longer requests into shared
// memory as they arrive, and sends longer responses from the memory that they are in.
constexpr size_t kPlainBodyMax = 16 << 10;
constexpr size_t kPlainResponseMax = 32 << 10;

// An output that a model declares. -1 in a shape, which includes the batch dimension, is any size.
struct DeclaredOutput {
  std::string name;
  TRITONSERVER_DataType datatype;
  Shape shape;
};

// Reads the requests to one model, and writes its responses. Immutable. Any thread.
class PlainRequests {
 public:
  // `declared.outputs` are the names of `outputs`.
  PlainRequests(std::shared_ptr<TRITONBACKEND_Model> model, DeclaredModel declared, std::vector<DeclaredOutput> outputs);

  const TRITONBACKEND_Model* model() const { return model_.get(); }

  // The request with this body, of which the first `document` bytes are the document, and how many rows it has; null if
  // it is not plain. It copies what it needs of the body. `job` is null for a lent connection; with another one, the GIL
  // must be held. Throws std::bad_alloc.
  std::unique_ptr<TRITONBACKEND_Request> Read(
      std::string_view body, size_t document, PyObject* job, uint64_t serial, RequestState::Plain plain,
      int64_t* rows) const;

  // Writes all of a response but the contents of its outputs, which follow in their order: for a connection that stays.
  // False if the response is not plain.
  bool Write(const TRITONBACKEND_Response& response, std::string* text) const;

 private:
  bool IsAsDeclared(const TRITONBACKEND_Output& output) const;

  const std::shared_ptr<TRITONBACKEND_Model> model_;
  const DeclaredModel declared_;
  const std::vector<DeclaredOutput> outputs_;
};

// The bytes of the contents of a response.
size_t ContentsOf(const TRITONBACKEND_Response& response);
// The bytes of a response of which `text` is what Write has written, as Python bytes without the first `skipped` ones;
// null with an exception set. With the GIL.
PyObject* JoinPlain(const std::string& text, const TRITONBACKEND_Response& response, size_t skipped = 0);
// Sends such a response. Returns the number of bytes that the client was sent.
size_t SendPlain(const std::string& text, const TRITONBACKEND_Response& response, ClientSocket* client);

}  // namespace pyruntime
