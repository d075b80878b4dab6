// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "message_response.h"

#include <cstring>

#include "wire.h"

namespace pyruntime {
namespace {

// The fields of the messages, by their numbers.
enum ResponseField { kOfModel = 1, kOfVersion = 2, kOfId = 3, kOfParameters = 4, kOfOutputs = 5, kOfContents = 6 };
enum OutputField { kOfName = 1, kOfDatatype = 2, kOfShape = 3 };
enum ParameterField { kOfBool = 1, kOfInteger = 2, kOfText = 3, kOfDouble = 4 };
enum EntryField { kOfKey = 1, kOfValue = 2 };
constexpr uint32_t kOfResponse = 2;

constexpr std::string_view kFinal = "triton_final_response";

// Most responses fit here, which spares them growth.
constexpr size_t kFirstBytes = 256;

// Protobuf leaves out what is empty.
void AddUnlessEmpty(uint32_t number, std::string_view bytes, std::string* out) {
  if (!bytes.empty()) AddBytesField(number, bytes, out);
}

void AddVarintField(uint32_t number, uint64_t value, std::string* out) {
  AddVarint(number << 3, out);
  AddVarint(value, out);
}

}  // namespace

void ResponseMessage::Begin(std::string_view model, int64_t version) {
  texts_[0].reserve(kFirstBytes);
  AddUnlessEmpty(kOfModel, model, &texts_[0]);
  AddUnlessEmpty(kOfVersion, std::to_string(version), &texts_[0]);
}

void ResponseMessage::AddOutput(std::string_view name, std::string_view datatype, const std::vector<int64_t>& shape) {
  std::string dims;
  for (const int64_t dim : shape) AddVarint(static_cast<uint64_t>(dim), &dims);
  part_.clear();
  AddUnlessEmpty(kOfName, name, &part_);
  AddUnlessEmpty(kOfDatatype, datatype, &part_);
  AddUnlessEmpty(kOfShape, dims, &part_);
  AddBytesField(kOfOutputs, part_, &texts_[0]);
}

void ResponseMessage::AddId(std::string_view id) { AddUnlessEmpty(kOfId, id, &texts_[0]); }

void ResponseMessage::AddBool(std::string_view name, bool value) {
  std::string choice;
  AddVarintField(kOfBool, value ? 1 : 0, &choice);
  AddParameter(name, choice);
}

void ResponseMessage::AddInteger(std::string_view name, int64_t value) {
  std::string choice;
  AddVarintField(kOfInteger, static_cast<uint64_t>(value), &choice);
  AddParameter(name, choice);
}

void ResponseMessage::AddDouble(std::string_view name, double value) {
  std::string choice(1, static_cast<char>(kOfDouble << 3 | 1));
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  for (size_t index = 0; index < sizeof(bits); ++index) choice += static_cast<char>(bits >> (8 * index));
  AddParameter(name, choice);
}

void ResponseMessage::AddText(std::string_view name, std::string_view value) {
  std::string choice;
  AddBytesField(kOfText, value, &choice);
  AddParameter(name, choice);
}

void ResponseMessage::AddParameter(std::string_view name, std::string_view value) {
  part_.clear();
  AddBytesField(kOfKey, name, &part_);
  AddBytesField(kOfValue, value, &part_);
  AddBytesField(kOfParameters, part_, &texts_.back());
}

void ResponseMessage::BeginContents(uint64_t byte_size) {
  AddVarint(kOfContents << 3 | 2, &texts_.back());
  AddVarint(byte_size, &texts_.back());
  contents_bytes_ += byte_size;
  texts_.emplace_back();
}

void ResponseMessage::EndEvent(bool is_final) {
  is_event_ = true;
  AddBool(kFinal, is_final);
}

const std::vector<std::string>& ResponseMessage::End() {
  if (is_event_) {
    uint64_t size = contents_bytes_;
    for (const std::string& text : texts_) size += text.size();
    std::string prefix;
    AddVarint(kOfResponse << 3 | 2, &prefix);
    AddVarint(size, &prefix);
    texts_[0].insert(0, prefix);
  }
  return texts_;
}

}  // namespace pyruntime
