// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "plain_requests.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <forward_list>
#include <utility>

#include "backend.h"
#include "host.h"
#include "infer_document.h"
#include "infer_response.h"
#include "scanner.h"

namespace pyruntime {
namespace {

// Parts that are sent with one call. A response of more outputs is left to Python.
constexpr size_t kPartsMax = 16;

// Reads the members of a JSON object. False for a value that is no text, integer or boolean.
bool ReadOwnParameters(const std::string& json, std::vector<TRITONSERVER_Parameter>* parameters) {
  if (json.empty()) return true;
  std::forward_list<std::string> decoded;
  Scanner scanner(json.data(), json.data() + json.size(), &decoded);
  return scanner.Members([&](std::string_view name) {
    TRITONSERVER_Parameter& parameter = parameters->emplace_back();
    parameter.name = name;
    const char first = scanner.Next();
    if (first == '"') {
      std::string_view text;
      if (!scanner.String(&text)) return false;
      parameter.value = std::string(text);
    } else if (first == 't' || first == 'f') {
      bool flag;
      if (!scanner.Boolean(&flag)) return false;
      parameter.value = flag;
    } else {
      uint64_t number;
      if (!scanner.Unsigned(&number)) return false;
      parameter.value = static_cast<int64_t>(number);
    }
    return true;
  });
}

}  // namespace

PlainRequests::PlainRequests(
    std::shared_ptr<TRITONBACKEND_Model> model, DeclaredModel declared, std::vector<DeclaredOutput> outputs)
    : model_(std::move(model)), declared_(std::move(declared)), outputs_(std::move(outputs)) {}

std::unique_ptr<TRITONBACKEND_Request> PlainRequests::Read(
    std::string_view body, size_t document, PyObject* job, uint64_t serial, RequestState::Plain plain,
    int64_t* rows) const {
  InferRequest read;
  if (body.size() > kPlainBodyMax || !ReadInferDocument(declared_, body, document, &read)) return nullptr;
  // Python says once that a timeout has no effect: requests to models for which it has one are not read here.
  if (!read.binary_outputs || !read.binary.empty() || read.timeout_us != 0) return nullptr;
  auto request = std::make_unique<TRITONBACKEND_Request>();
  if (!ReadOwnParameters(read.parameters, &request->parameters)) return nullptr;
  request->flags = (read.starts_sequence ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_START : 0) |
                   (read.ends_sequence ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_END : 0);
  request->correlation_id = read.sequence_id;
  request->correlation_text = read.sequence_name;
  if (read.outputs.empty()) request->outputs = model_->outputs;
  for (const size_t number : read.outputs) request->outputs.push_back(declared_.outputs[number]);
  body.remove_prefix(document);
  // What was made of JSON follows the binary contents.
  const size_t made = (body.size() + kContentsAlignment - 1) / kContentsAlignment * kContentsAlignment;
  request->contents = Buffer(&Host::Get().buffers(), read.contents.empty() ? body.size() : made + read.contents.size());
  char* const contents = static_cast<char*>(request->contents.data());
  std::copy(body.begin(), body.end(), contents);
  std::copy(read.contents.begin(), read.contents.end(), contents + made);
  request->inputs.reserve(read.tensors.size());
  for (const InferTensor& tensor : read.tensors) {
    const DeclaredInput& declared = declared_.inputs[tensor.input];
    TRITONBACKEND_Input& input = request->inputs.emplace_back();
    input.name = declared.name;
    input.datatype = DatatypeOf(declared.datatype);
    input.shape.assign(tensor.shape, tensor.shape + tensor.dims);
    input.data = tensor.byte_size == 0 ? nullptr : contents + (tensor.made ? made + tensor.offset : tensor.offset - document);
    input.attributes.byte_size = tensor.byte_size;
  }
  *rows = read.rows;
  // Last, because a state that is destroyed without an answer reports its request as lost.
  request->state = std::make_shared<RequestState>(job, model_, std::string(read.id), serial, std::move(plain));
  return request;
}

bool PlainRequests::IsAsDeclared(const TRITONBACKEND_Output& output) const {
  const auto declared = std::find_if(
      outputs_.begin(), outputs_.end(), [&](const DeclaredOutput& each) { return each.name == output.name; });
  return declared != outputs_.end() && declared->datatype == output.datatype &&
         std::equal(
             declared->shape.begin(), declared->shape.end(), output.shape.begin(), output.shape.end(),
             [](int64_t wanted, int64_t dim) { return wanted == -1 || wanted == dim; });
}

bool PlainRequests::Write(const TRITONBACKEND_Response& response, std::string* text) const {
  if (!response.parameters.empty() || response.outputs.size() >= kPartsMax) return false;
  InferDocument document;
  if (!document.Begin(response.state->id(), model_->name, static_cast<int64_t>(model_->version), "")) return false;
  for (const TRITONBACKEND_Output& output : response.outputs) {
    if (!IsAsDeclared(output) || !document.BeginOutput(output.name, NameOf(output.datatype))) return false;
    for (const int64_t dim : output.shape) document.AddDim(dim);
    document.EndBinary(output.buffer.size());
  }
  const std::string& written = document.End();
  const size_t length = written.size() + ContentsOf(response);
  if (length > kPlainResponseMax) return false;
  *text = InferHead(response.outputs.empty() ? 0 : written.size(), length, "");
  *text += written;
  return true;
}

size_t ContentsOf(const TRITONBACKEND_Response& response) {
  size_t size = 0;
  for (const TRITONBACKEND_Output& output : response.outputs) size += output.buffer.size();
  return size;
}

PyObject* JoinPlain(const std::string& text, const TRITONBACKEND_Response& response, size_t skipped) {
  std::string_view head = text;
  const size_t size = text.size() + ContentsOf(response);
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size - skipped));
  if (bytes == nullptr) return nullptr;
  char* at = PyBytes_AsString(bytes);
  const auto add = [&](const char* data, size_t count) {
    const size_t before = std::min(skipped, count);
    skipped -= before;
    if (count != before) std::memcpy(at, data + before, count - before);
    at += count - before;
  };
  add(head.data(), head.size());
  for (const TRITONBACKEND_Output& output : response.outputs) {
    add(static_cast<const char*>(output.buffer.data()), output.buffer.size());
  }
  return bytes;
}

size_t SendPlain(const std::string& text, const TRITONBACKEND_Response& response, ClientSocket* client) {
  std::array<iovec, kPartsMax> parts;
  parts[0] = {const_cast<char*>(text.data()), text.size()};
  size_t count = 1;
  for (const TRITONBACKEND_Output& output : response.outputs) {
    parts[count++] = {output.buffer.data(), output.buffer.size()};
  }
  return client->Send(parts.data(), count, text.size() + ContentsOf(response));
}

}  // namespace pyruntime
