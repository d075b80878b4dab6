// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_message.h"

#include <cstring>
#include <utility>

#include "json_text.h"
#include "typed_contents.h"
#include "wire.h"

namespace pyruntime {
namespace {

// Fields of the messages, by their numbers.
enum Request {
  kModelName = 1, kModelVersion = 2, kId = 3, kParameters = 4, kInputs = 5, kOutputs = 6, kRawContents = 7
};
enum Input { kInputName = 1, kDatatype = 2, kShape = 3, kContents = 5 };
enum Parameter { kBool = 1, kInt64 = 2, kString = 3, kUint64 = 5 };

struct Value {
  uint32_t kind;
  uint64_t number;
  std::string_view text;
};

// An input without its contents, or with typed ones.
struct MessageInput {
  std::string_view name;
  std::string_view datatype;
  std::string_view typed;
  bool is_typed = false;
  InferTensor tensor;
};

// The most digits of a version: any such number fits.
constexpr size_t kVersionDigitsMax = 18;

uint64_t Align(uint64_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }

bool IsPrintable(std::string_view text) {
  for (const char each : text) {
    if (each < 0x20 || each > 0x7e) return false;
  }
  return true;
}

bool ReadVersion(std::string_view text, int64_t* version) {
  *version = 0;
  if (text.size() > kVersionDigitsMax) return false;
  for (const char each : text) {
    if (each < '0' || each > '9') return false;
    *version = *version * 10 + (each - '0');
  }
  return text.empty() || *version > 0;
}

// The size of the typed contents of an input as a tensor, if there are some. False if they are not plain.
bool MeasureInput(std::string_view input, bool* is_typed, uint64_t* byte_size) {
  std::string_view datatype, contents;
  const bool is_read = ForEachField(input, [&](const WireField& field) {
    if (field.number == kDatatype) datatype = field.bytes;
    if (field.number != kContents) return true;
    contents = field.bytes;
    return !std::exchange(*is_typed, true);
  });
  *byte_size = 0;
  return is_read && (!*is_typed || MeasureContents(datatype, contents, byte_size));
}

class MessageReader {
 public:
  MessageReader(const DeclaredModel& model, char* memory, uint64_t memory_bytes, InferRequest* out)
      : memory_(memory), memory_bytes_(memory_bytes), builder_(model, out), out_(out) {}

  bool Read(std::string_view message) {
    const bool is_read = ForEachField(message, [&](const WireField& field) {
      switch (field.number) {
        case kModelName:
        case kModelVersion:
        case kId:
          return true;  // of the target
        case kParameters:
          return field.IsBytes() && ReadParameter(field.bytes);
        case kInputs:
          return field.IsBytes() && ReadInput(field.bytes);
        case kOutputs:
          return field.IsBytes() && ReadOutput(field.bytes);
        case kRawContents:
          raws_.push_back(field.bytes);
          return field.IsBytes() && raws_.size() <= kTensorsMax;
        default:
          return false;
      }
    });
    return is_read && PlaceInputs() && builder_.Complete();
  }

 private:
  bool ReadInput(std::string_view input) {
    MessageInput& read = inputs_.emplace_back();
    read.tensor.dims = 0;
    uint64_t seen = 0;
    if (inputs_.size() > kTensorsMax) return false;
    return ForEachField(input, [&](const WireField& field) {
      switch (field.number) {
        case kInputName:
          read.name = field.bytes;
          return Note(&seen, kInputName) && field.IsBytes();
        case kDatatype:
          read.datatype = field.bytes;
          return Note(&seen, kDatatype) && field.IsBytes();
        case kShape:
          return field.IsBytes() ? ReadDims(field.bytes, &read.tensor)
                                 : field.IsVarint() && AddDim(field.varint, &read.tensor);
        case kContents:
          read.typed = field.bytes;
          read.is_typed = true;
          return Note(&seen, kContents) && field.IsBytes();
        default:
          return false;
      }
    });
  }

  // Contents are all raw, or all typed.
  bool PlaceInputs() {
    const bool are_raw = !raws_.empty();
    if (are_raw && raws_.size() != inputs_.size()) return false;
    for (size_t number = 0; number < inputs_.size(); ++number) {
      MessageInput& input = inputs_[number];
      std::string_view placed;
      if (input.is_typed == are_raw) return false;
      if (!(are_raw ? PlaceRaw(raws_[number], &placed) : PlaceTyped(input, &placed))) return false;
      input.tensor.offset = end_ - placed.size();
      if (!builder_.AddInput(input.name, input.datatype, placed, &input.tensor)) return false;
    }
    return true;
  }

  bool PlaceRaw(std::string_view contents, std::string_view* placed) {
    char* to = Reserve(contents.size());
    if (to == nullptr) return false;
    if (!contents.empty()) std::memcpy(to, contents.data(), contents.size());
    *placed = {to, contents.size()};
    return true;
  }

  bool PlaceTyped(const MessageInput& input, std::string_view* placed) {
    uint64_t byte_size;
    if (!MeasureContents(input.datatype, input.typed, &byte_size)) return false;
    char* to = Reserve(byte_size);
    *placed = {to, byte_size};
    return to != nullptr && WriteContents(input.datatype, input.typed, to);
  }

  // The next so many bytes of the memory, null if it ends before.
  char* Reserve(uint64_t byte_size) {
    const uint64_t at = Align(end_);
    if (at > memory_bytes_ || byte_size > memory_bytes_ - at) return nullptr;
    end_ = at + byte_size;
    return memory_ + at;
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

  char* const memory_;
  const uint64_t memory_bytes_;
  uint64_t end_ = 0;  // of what is in the memory
  std::vector<MessageInput> inputs_;
  std::vector<std::string_view> raws_;
  RequestBuilder builder_;
  InferRequest* const out_;
  uint64_t parameters_ = 0;
};

}  // namespace

bool ReadMessageTarget(std::string_view message, MessageTarget* out) {
  uint64_t seen = 0, byte_size, end = 0;
  bool are_raw = false, are_typed = false, is_typed;
  const bool is_read = ForEachField(message, [&](const WireField& field) {
    if (!field.IsBytes()) return false;
    switch (field.number) {
      case kModelName:
        out->model = field.bytes;
        return Note(&seen, kModelName);
      case kModelVersion:
        return Note(&seen, kModelVersion) && ReadVersion(field.bytes, &out->version);
      case kId:
        out->id = field.bytes;
        return Note(&seen, kId) && field.bytes.size() <= kIdLengthMax;
      case kInputs:
        is_typed = false;
        if (!MeasureInput(field.bytes, &is_typed, &byte_size)) return false;
        are_typed = are_typed || is_typed;
        end = is_typed ? Align(end) + byte_size : end;
        return true;
      case kRawContents:
        are_raw = true;
        end = Align(end) + field.bytes.size();
        return true;
      default:
        return field.number == kParameters || field.number == kOutputs;
    }
  });
  out->contents_bytes = end;
  return is_read && !(are_raw && are_typed);
}

bool ReadInferMessage(const DeclaredModel& model, std::string_view message, char* memory, uint64_t memory_bytes,
                      InferRequest* out) {
  out->binary_outputs = true;
  return MessageReader(model, memory, memory_bytes, out).Read(message);
}

}  // namespace pyruntime
