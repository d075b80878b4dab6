// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "known_request.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend.h"
#include "host.h"

namespace pyruntime {
namespace {

// Parts that are sent with one call. A response of more outputs is left to Python.
constexpr size_t kPartsMax = 16;

}  // namespace

KnownAnswer::KnownAnswer(std::string head, std::vector<TRITONBACKEND_Output> outputs)
    : head_(std::move(head)), outputs_(std::move(outputs)), size_(head_.size()) {
  for (const TRITONBACKEND_Output& output : outputs_) size_ += output.attributes.byte_size;
}

bool KnownAnswer::IsLike(const TRITONBACKEND_Response& response) const {
  return response.parameters.empty() &&
         std::equal(
             outputs_.begin(), outputs_.end(), response.outputs.begin(), response.outputs.end(),
             [](const TRITONBACKEND_Output& known, const TRITONBACKEND_Output& output) {
               return known.attributes.byte_size == output.buffer.size() && known.datatype == output.datatype &&
                      known.shape == output.shape && known.name == output.name;
             });
}

PyObject* KnownAnswer::Encode(const TRITONBACKEND_Response& response) const {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size_));
  if (bytes == nullptr) return nullptr;
  char* at = std::copy(head_.begin(), head_.end(), PyBytes_AsString(bytes));
  for (const TRITONBACKEND_Output& output : response.outputs) {
    if (output.buffer.size() != 0) std::memcpy(at, output.buffer.data(), output.buffer.size());
    at += output.buffer.size();
  }
  return bytes;
}

size_t KnownAnswer::Send(const TRITONBACKEND_Response& response, ClientSocket* client) const {
  std::array<iovec, kPartsMax> parts;
  if (outputs_.size() >= parts.size()) return 0;
  parts[0] = {const_cast<char*>(head_.data()), head_.size()};
  size_t count = 1;
  for (const TRITONBACKEND_Output& output : response.outputs) {
    parts[count++] = {output.buffer.data(), output.buffer.size()};
  }
  return client->Send(parts.data(), count, size_);
}

KnownRequest::KnownRequest(std::shared_ptr<TRITONBACKEND_Model> model, std::string document, size_t size,
                           std::unique_ptr<TRITONBACKEND_Request> pattern)
    : model_(std::move(model)), document_(std::move(document)), size_(size), pattern_(std::move(pattern)) {}

bool KnownRequest::Begins(std::string_view beginning) const {
  const std::string_view document = beginning.substr(0, document_.size());
  return document == std::string_view(document_).substr(0, document.size());
}

std::unique_ptr<TRITONBACKEND_Request> KnownRequest::Make(
    std::string_view body, PyObject* job, uint64_t serial, RequestState::Known known) const {
  auto request = std::make_unique<TRITONBACKEND_Request>();
  request->flags = pattern_->flags;
  request->correlation_id = pattern_->correlation_id;
  request->correlation_text = pattern_->correlation_text;
  request->timeout_us = pattern_->timeout_us;
  request->inputs = pattern_->inputs;
  request->outputs = pattern_->outputs;
  request->parameters = pattern_->parameters;
  body.remove_prefix(document_.size());
  request->contents = Buffer(&Host::Get().buffers(), body.size());
  char* const contents = static_cast<char*>(request->contents.data());
  std::copy(body.begin(), body.end(), contents);
  for (TRITONBACKEND_Input& input : request->inputs) {
    if (input.attributes.byte_size != 0) input.data = contents + reinterpret_cast<uintptr_t>(input.data);
  }
  // Last, because a state that is destroyed without an answer reports its request as lost.
  request->state = std::make_shared<RequestState>(job, model_, std::string(), serial, std::move(known));
  return request;
}

}  // namespace pyruntime
