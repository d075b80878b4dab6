// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_request.h"

#include <algorithm>

#include "json_text.h"

namespace pyruntime {
namespace {

// Whether some bytes are exactly so many elements, each a length of four bytes (little-endian) and so many bytes.
bool AreStrings(std::string_view contents, int64_t count) {
  if (count > kStringsMax) return false;
  size_t at = 0;
  for (int64_t index = 0; index < count; ++index) {
    if (contents.size() - at < 4) return false;
    const auto* prefix = reinterpret_cast<const unsigned char*>(contents.data() + at);
    const size_t length = prefix[0] | prefix[1] << 8 | prefix[2] << 16 | static_cast<size_t>(prefix[3]) << 24;
    at += 4;
    if (contents.size() - at < length) return false;
    at += length;
  }
  return at == contents.size();
}

bool IsAsDeclared(const DeclaredInput& input, const InferTensor& tensor, std::string_view contents) {
  if (tensor.dims != input.shape.size()) return false;
  int64_t count = 1;
  for (size_t index = 0; index < tensor.dims; ++index) {
    const int64_t dim = tensor.shape[index];
    if (input.shape[index] != -1 && input.shape[index] != dim) return false;
    if (__builtin_mul_overflow(count, dim, &count)) return false;
  }
  if (input.element_bytes == 0) return AreStrings(contents, count);
  int64_t byte_size;
  if (__builtin_mul_overflow(count, input.element_bytes, &byte_size)) return false;
  return static_cast<uint64_t>(byte_size) == contents.size();
}

}  // namespace

const DeclaredInput* FindInput(const DeclaredModel& model, std::string_view name) {
  for (const DeclaredInput& input : model.inputs) {
    if (input.name == name) return &input;
  }
  return nullptr;
}

bool Note(uint64_t* seen, size_t number) {
  const uint64_t bit = uint64_t{1} << number;
  if ((*seen & bit) != 0) return false;
  *seen |= bit;
  return true;
}

bool RequestBuilder::AddInput(std::string_view name, std::string_view datatype, std::string_view contents,
                              InferTensor* tensor) {
  const DeclaredInput* input = FindInput(model_, name);
  if (input == nullptr) return false;
  const auto number = static_cast<size_t>(input - model_.inputs.data());
  if (!Note(&inputs_, number) || input->datatype != datatype || !IsAsDeclared(*input, *tensor, contents)) return false;
  tensor->input = number;
  tensor->byte_size = contents.size();
  request_->tensors.push_back(*tensor);
  return true;
}

bool RequestBuilder::AddOutput(std::string_view name) {
  const auto found = std::find(model_.outputs.begin(), model_.outputs.end(), name);
  const auto number = static_cast<size_t>(found - model_.outputs.begin());
  if (found == model_.outputs.end() || !Note(&outputs_, number)) return false;
  request_->outputs.push_back(number);
  return true;
}

bool RequestBuilder::AddParameter(std::string_view name, std::string_view value) {
  if (parameters_.size() == kParametersMax || name.substr(0, 7) == "triton_") return false;
  for (const std::string_view each : parameters_) {
    if (each == name) return false;
  }
  parameters_.push_back(name);
  std::string& json = request_->parameters;
  json += json.empty() ? '{' : ',';
  if (!AddJsonText(name, &json)) return false;
  json += ':';
  json += value;
  return true;
}

bool RequestBuilder::Complete() {
  if (!parameters_.empty()) request_->parameters += '}';
  return HasRequired() && CountRows();
}

bool RequestBuilder::HasRequired() const {
  for (size_t number = 0; number < model_.inputs.size(); ++number) {
    if (model_.inputs[number].required && (inputs_ >> number & 1) == 0) return false;
  }
  return true;
}

bool RequestBuilder::CountRows() {
  if (model_.max_batch_size <= 0 || request_->tensors.empty()) return true;
  const int64_t rows = request_->tensors[0].shape[0];
  for (const InferTensor& tensor : request_->tensors) {
    if (tensor.shape[0] != rows) return false;
  }
  request_->rows = rows > 0 ? rows : 1;
  return rows <= model_.max_batch_size;
}

}  // namespace pyruntime
