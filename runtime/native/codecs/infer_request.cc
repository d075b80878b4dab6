// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_request.h"

#include <cstring>

#include "scanner.h"

namespace pyruntime {
namespace {

// Notes that something is there. False if it was there before: two readings are possible then.
bool Note(uint64_t* seen, size_t number) {
  const uint64_t bit = uint64_t{1} << number;
  if ((*seen & bit) != 0) return false;
  *seen |= bit;
  return true;
}

template <typename Named>
size_t Find(const std::vector<Named>& all, std::string_view name, std::string_view (*name_of)(const Named&)) {
  size_t number = 0;
  while (number < all.size() && name_of(all[number]) != name) ++number;
  return number;
}

std::string_view NameOfInput(const DeclaredInput& input) { return input.name; }
std::string_view NameOfOutput(const std::string& output) { return output; }

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

class Reader {
 public:
  Reader(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out)
      : model_(model), body_(body), scanner_(body.data(), body.data() + document), position_(document), out_(out) {}

  bool Read() {
    uint64_t seen = 0;
    const bool is_read = scanner_.Members([&](std::string_view name) {
      if (name == "id") return Note(&seen, 0) && scanner_.String(&out_->id) && out_->id.size() <= kIdLengthMax;
      if (name == "parameters") return Note(&seen, 1) && ReadParameters();
      if (name == "inputs") return Note(&seen, 2) && scanner_.Elements([&] { return ReadInput(); });
      if (name == "outputs") return Note(&seen, 3) && scanner_.Elements([&] { return ReadOutput(); });
      return false;
    });
    return is_read && scanner_.AtEnd() && (seen & 4) != 0 && position_ == body_.size() && HasRequired() &&
           ChooseBinary() && CountRows();
  }

 private:
  bool ReadParameters() {
    uint64_t seen = 0;
    return scanner_.Members([&](std::string_view name) {
      if (name == "binary_data_output") return Note(&seen, 0) && scanner_.Boolean(&binary_default_);
      if (name == "sequence_id") return Note(&seen, 1) && ReadSequence();
      if (name == "sequence_start") return Note(&seen, 2) && scanner_.Boolean(&out_->starts_sequence);
      if (name == "sequence_end") return Note(&seen, 3) && scanner_.Boolean(&out_->ends_sequence);
      if (name == "priority") return Note(&seen, 4) && scanner_.Unsigned(&out_->priority);
      if (name == "timeout") return Note(&seen, 5) && scanner_.Unsigned(&out_->timeout_us);
      return false;
    });
  }

  bool ReadSequence() {
    if (scanner_.Next() != '"') return scanner_.Unsigned(&out_->sequence_id);
    return scanner_.String(&out_->sequence_name) && !out_->sequence_name.empty() &&
           out_->sequence_name.size() <= kSequenceNameMax;
  }

  bool ReadInput() {
    std::string_view name, datatype;
    InferTensor tensor;
    uint64_t seen = 0;
    tensor.dims = 0;
    const bool is_read = scanner_.Members([&](std::string_view member) {
      if (member == "name") return Note(&seen, 0) && scanner_.String(&name);
      if (member == "datatype") return Note(&seen, 1) && scanner_.String(&datatype);
      if (member == "shape") return Note(&seen, 2) && scanner_.Elements([&] { return ReadDim(&tensor); });
      if (member == "parameters") return Note(&seen, 3) && ReadSize(&tensor.byte_size);
      return false;
    });
    if (!is_read || seen != 15) return false;
    tensor.input = Find(model_.inputs, name, NameOfInput);
    if (tensor.input == model_.inputs.size() || !Note(&inputs_, tensor.input)) return false;
    if (tensor.byte_size > body_.size() - position_) return false;
    tensor.offset = position_;
    position_ += tensor.byte_size;
    out_->tensors.push_back(tensor);
    return model_.inputs[tensor.input].datatype == datatype && IsAsDeclared(out_->tensors.back());
  }

  bool ReadDim(InferTensor* tensor) {
    uint64_t dim;
    if (tensor->dims == kDimsMax || !scanner_.Unsigned(&dim)) return false;
    tensor->shape[tensor->dims++] = static_cast<int64_t>(dim);
    return true;
  }

  bool ReadSize(uint64_t* size) {
    uint64_t seen = 0;
    const bool is_read = scanner_.Members([&](std::string_view name) {
      return name == "binary_data_size" && Note(&seen, 0) && scanner_.Unsigned(size);
    });
    return is_read && seen != 0;
  }

  bool IsAsDeclared(const InferTensor& tensor) const {
    const DeclaredInput& input = model_.inputs[tensor.input];
    if (tensor.dims != input.shape.size()) return false;
    int64_t count = 1;
    for (size_t index = 0; index < tensor.dims; ++index) {
      const int64_t dim = tensor.shape[index];
      if (input.shape[index] != -1 && input.shape[index] != dim) return false;
      if (__builtin_mul_overflow(count, dim, &count)) return false;
    }
    if (input.element_bytes == 0) return AreStrings(body_.substr(tensor.offset, tensor.byte_size), count);
    int64_t byte_size;
    if (__builtin_mul_overflow(count, input.element_bytes, &byte_size)) return false;
    return static_cast<uint64_t>(byte_size) == tensor.byte_size;
  }

  bool ReadOutput() {
    std::string_view name;
    uint64_t seen = 0;
    bool is_binary = false;
    const bool is_read = scanner_.Members([&](std::string_view member) {
      if (member == "name") return Note(&seen, 0) && scanner_.String(&name);
      if (member == "parameters") return Note(&seen, 1) && ReadBinary(&is_binary, &seen);
      return false;
    });
    if (!is_read || (seen & 1) == 0) return false;
    const size_t number = Find(model_.outputs, name, NameOfOutput);
    if (number == model_.outputs.size() || !Note(&outputs_, number)) return false;
    out_->outputs.push_back(number);
    if ((seen & 4) == 0) ++by_default_;
    else if (is_binary) ++binary_;
    return true;
  }

  bool ReadBinary(bool* is_binary, uint64_t* seen) {
    return scanner_.Members([&](std::string_view name) {
      return name == "binary_data" && Note(seen, 2) && scanner_.Boolean(is_binary);
    });
  }

  bool HasRequired() const {
    for (size_t number = 0; number < model_.inputs.size(); ++number) {
      if (model_.inputs[number].required && (inputs_ >> number & 1) == 0) return false;
    }
    return true;
  }

  // All outputs are binary, or none is. The default may stand behind the outputs in the document.
  bool ChooseBinary() {
    const size_t binary = binary_ + (binary_default_ ? by_default_ : 0);
    out_->binary_outputs = out_->outputs.empty() ? binary_default_ : binary != 0;
    return out_->outputs.empty() || binary == 0 || binary == out_->outputs.size();
  }

  bool CountRows() {
    if (model_.max_batch_size <= 0 || out_->tensors.empty()) return true;
    const int64_t rows = out_->tensors[0].shape[0];
    for (const InferTensor& tensor : out_->tensors) {
      if (tensor.shape[0] != rows) return false;
    }
    out_->rows = rows > 0 ? rows : 1;
    return rows <= model_.max_batch_size;
  }

  const DeclaredModel& model_;
  const std::string_view body_;
  Scanner scanner_;
  size_t position_;
  InferRequest* const out_;
  // The inputs and outputs that are there, a bit for each.
  uint64_t inputs_ = 0;
  uint64_t outputs_ = 0;
  bool binary_default_ = false;
  size_t by_default_ = 0;
  size_t binary_ = 0;
};

}  // namespace

bool ReadInferRequest(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out) {
  return document <= body.size() && Reader(model, body, document, out).Read();
}

}  // namespace pyruntime
