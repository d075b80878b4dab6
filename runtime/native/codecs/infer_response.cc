// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_response.h"

#include "json_contents.h"
#include "json_text.h"

namespace pyruntime {
namespace {

// Most documents fit here, which spares them growth.
constexpr size_t kFirstBytes = 512;

}  // namespace

bool InferDocument::Begin(std::string_view id, std::string_view model, int64_t version,
                          std::string_view parameters) {
  text_.reserve(kFirstBytes);
  text_ = "{";
  if (!id.empty()) {
    text_ += "\"id\":";
    if (!AddJsonText(id, &text_)) return false;
    text_ += ',';
  }
  text_ += "\"model_name\":";
  if (!AddJsonText(model, &text_)) return false;
  text_ += ",\"model_version\":\"";
  text_ += std::to_string(version);
  text_ += "\",";
  if (!parameters.empty()) {
    text_ += "\"parameters\":";
    text_ += parameters;
    text_ += ',';
  }
  text_ += "\"outputs\":[";
  return true;
}

bool InferDocument::BeginOutput(std::string_view name, std::string_view datatype) {
  text_ += has_outputs_ ? ",{\"name\":" : "{\"name\":";
  has_outputs_ = true;
  has_dims_ = false;
  elements_ = 1;
  if (!AddJsonText(name, &text_)) return false;
  text_ += ",\"datatype\":";
  if (!AddJsonText(datatype, &text_)) return false;
  text_ += ",\"shape\":[";
  return true;
}

void InferDocument::AddDim(int64_t dim) {
  if (has_dims_) text_ += ',';
  has_dims_ = true;
  text_ += std::to_string(dim);
  int64_t elements;
  if (elements_ && !__builtin_mul_overflow(*elements_, dim, &elements)) {
    elements_ = elements;
  } else {
    elements_.reset();
  }
}

void InferDocument::EndBinary(uint64_t byte_size) {
  text_ += "],\"parameters\":{\"binary_data_size\":";
  text_ += std::to_string(byte_size);
  text_ += "}}";
}

bool InferDocument::EndWithData(std::string_view datatype, std::string_view contents) {
  text_ += "],\"data\":[";
  if (!elements_ || !AddContents(datatype, contents, *elements_, &text_)) return false;
  text_ += "]}";
  return true;
}

const std::string& InferDocument::End() {
  text_ += "]}";
  return text_;
}

std::string InferHead(size_t document, uint64_t length, std::string_view lines) {
  std::string head;
  head.reserve(kFirstBytes);
  head = "HTTP/1.1 200 OK\r\nContent-Type: application/";
  if (document != 0) {
    head += "octet-stream\r\nInference-Header-Content-Length: ";
    head += std::to_string(document);
  } else {
    head += "json";
  }
  head += "\r\nContent-Length: ";
  head += std::to_string(length);
  head += "\r\n";
  head += lines;
  head += "\r\n";
  return head;
}

}  // namespace pyruntime
