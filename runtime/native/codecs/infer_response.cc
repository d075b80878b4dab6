// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_response.h"

namespace pyruntime {
namespace {

// Most documents fit here, which spares them growth.
constexpr size_t kFirstBytes = 512;

}  // namespace

bool InferDocument::AddText(std::string_view text) {
  text_ += '"';
  for (const char each : text) {
    if (each < 0x20 || each > 0x7e || each == '"' || each == '\\') return false;
  }
  text_ += text;
  text_ += '"';
  return true;
}

bool InferDocument::Begin(std::string_view id, std::string_view model, int64_t version) {
  text_.reserve(kFirstBytes);
  text_ = "{";
  if (!id.empty()) {
    text_ += "\"id\":";
    if (!AddText(id)) return false;
    text_ += ',';
  }
  text_ += "\"model_name\":";
  if (!AddText(model)) return false;
  text_ += ",\"model_version\":\"";
  text_ += std::to_string(version);
  text_ += "\",\"outputs\":[";
  return true;
}

bool InferDocument::BeginOutput(std::string_view name, std::string_view datatype) {
  text_ += has_outputs_ ? ",{\"name\":" : "{\"name\":";
  has_outputs_ = true;
  has_dims_ = false;
  if (!AddText(name)) return false;
  text_ += ",\"datatype\":";
  if (!AddText(datatype)) return false;
  text_ += ",\"shape\":[";
  return true;
}

void InferDocument::AddDim(int64_t dim) {
  if (has_dims_) text_ += ',';
  has_dims_ = true;
  text_ += std::to_string(dim);
}

void InferDocument::EndOutput(uint64_t byte_size) {
  text_ += "],\"parameters\":{\"binary_data_size\":";
  text_ += std::to_string(byte_size);
  text_ += "}}";
}

const std::string& InferDocument::End() {
  text_ += "]}";
  return text_;
}

}  // namespace pyruntime
