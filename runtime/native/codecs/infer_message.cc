// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_message.h"

#include "json_text.h"
#include "wire.h"

namespace pyruntime {
namespace {

// Fields of the messages, by their numbers.
enum Request { kModelName = 1, kModelVersion = 2, kParameters = 4, kInputs = 5, kOutputs = 6 };
enum Input { kInputName = 1, kDatatype = 2, kShape = 3 };
enum Parameter { kBool = 1, kInt64 = 2, kString = 3, kUint64 = 5 };

struct Value {
  uint32_t kind;
  uint64_t number;
  std::string_view text;
};

bool IsPrintable(std::string_view text) {
  for (const char each : text) {
    if (each < 0x20 || each > 0x7e) return false;
  }
  return true;
}

class MessageReader {
 public:
  MessageReader(const DeclaredModel& model, const std::vector<RawContents>& raws, InferRequest* out)
      : raws_(raws), builder_(model, out), out_(out) {}

  bool Read(std::string_view message) {
    const bool is_read = ForEachField(message, [&](const WireField& field) {
      switch (field.number) {
        case kModelName:
        case kModelVersion:
          return true;  // the model was found by them
        case kParameters:
          return field.IsBytes() && ReadParameter(field.bytes);
        case kInputs:
          return field.IsBytes() && ReadInput(field.bytes);
        case kOutputs:
          return field.IsBytes() && ReadOutput(field.bytes);
        default:
          return false;
      }
    });
    return is_read && out_->tensors.size() == raws_.size() && builder_.Complete();
  }

 private:
  bool ReadInput(std::string_view input) {
    std::string_view name, datatype;
    InferTensor tensor;
    uint64_t seen = 0;
    tensor.dims = 0;
    const bool is_read = ForEachField(input, [&](const WireField& field) {
      switch (field.number) {
        case kInputName:
          name = field.bytes;
          return Note(&seen, 0) && field.IsBytes();
        case kDatatype:
          datatype = field.bytes;
          return Note(&seen, 1) && field.IsBytes();
        case kShape:
          return field.IsBytes() ? ReadDims(field.bytes, &tensor) : field.IsVarint() && AddDim(field.varint, &tensor);
        default:
          return false;
      }
    });
    const size_t number = out_->tensors.size();
    if (!is_read || number == raws_.size()) return false;
    tensor.offset = raws_[number].offset;
    return builder_.AddInput(name, datatype, raws_[number].bytes, &tensor);
  }

  bool ReadDims(std::string_view packed, InferTensor* tensor) {
    uint64_t dim;
    while (!packed.empty()) {
      if (!ReadVarint(&packed, &dim) || !AddDim(dim, tensor)) return false;
    }
    return true;
  }

  // Negative ones have the highest bit.
  bool AddDim(uint64_t dim, InferTensor* tensor) {
    if (tensor->dims == kDimsMax || dim >> 63 != 0) return false;
    tensor->shape[tensor->dims++] = static_cast<int64_t>(dim);
    return true;
  }

  bool ReadOutput(std::string_view output) {
    std::string_view name;
    uint64_t seen = 0;
    const bool is_read = ForEachField(output, [&](const WireField& field) {
      name = field.bytes;
      return field.number == 1 && field.IsBytes() && Note(&seen, 0);
    });
    return is_read && builder_.AddOutput(name);
  }

  // An entry of a map: its key and its value.
  bool ReadParameter(std::string_view entry) {
    std::string_view key;
    Value value = {};
    uint64_t seen = 0;
    const bool is_read = ForEachField(entry, [&](const WireField& field) {
      if (!field.IsBytes() || field.number > 2 || !Note(&seen, field.number)) return false;
      if (field.number == 2) return ReadValue(field.bytes, &value);
      key = field.bytes;
      return true;
    });
    return is_read && seen == 6 && TakeParameter(key, value);
  }

  bool ReadValue(std::string_view parameter, Value* value) {
    uint64_t seen = 0;
    const bool is_read = ForEachField(parameter, [&](const WireField& field) {
      *value = {field.number, field.varint, field.bytes};
      if (!Note(&seen, 0)) return false;
      return field.number == kString ? field.IsBytes() : field.number <= kUint64 && field.IsVarint();
    });
    return is_read && seen != 0;
  }

  bool TakeParameter(std::string_view key, const Value& value) {
    if (key == "sequence_id") return Note(&parameters_, 0) && TakeSequence(value);
    if (key == "sequence_start") return Note(&parameters_, 1) && TakeBool(value, &out_->starts_sequence);
    if (key == "sequence_end") return Note(&parameters_, 2) && TakeBool(value, &out_->ends_sequence);
    if (key == "priority") {
      out_->priority = value.number;
      return Note(&parameters_, 3) && (value.kind == kUint64 || (value.kind == kInt64 && value.number >> 63 == 0));
    }
    if (key == "timeout") {
      out_->timeout_us = value.number;
      return Note(&parameters_, 4) && value.kind == kInt64;
    }
    return TakeOwn(key, value);
  }

  // A parameter that only the model knows.
  bool TakeOwn(std::string_view key, const Value& value) {
    std::string json;
    if (value.kind == kBool) {
      json = value.number != 0 ? "true" : "false";
    } else if (value.kind == kInt64) {
      json = std::to_string(static_cast<int64_t>(value.number));
    } else if (value.kind != kString || !AddJsonText(value.text, &json)) {
      return false;
    }
    return builder_.AddParameter(key, json);
  }

  bool TakeSequence(const Value& value) {
    out_->sequence_id = value.number;
    out_->sequence_name = value.text;
    if (value.kind != kString) return value.kind == kInt64;
    return !value.text.empty() && value.text.size() <= kSequenceNameMax && IsPrintable(value.text);
  }

  bool TakeBool(const Value& value, bool* flag) {
    *flag = value.number != 0;
    return value.kind == kBool && value.number <= 1;
  }

  const std::vector<RawContents>& raws_;
  RequestBuilder builder_;
  InferRequest* const out_;
  uint64_t parameters_ = 0;
};

}  // namespace

bool ReadInferMessage(const DeclaredModel& model, std::string_view message, const std::vector<RawContents>& raws,
                      InferRequest* out) {
  out->binary_outputs = true;
  return MessageReader(model, raws, out).Read(message);
}

}  // namespace pyruntime
