// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes the fields of a message of protobuf: varints, and what has a length.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pyruntime {

// A field. `bytes` are empty for a varint.
struct WireField {
  uint32_t number;
  uint32_t type;
  uint64_t varint;
  std::string_view bytes;

  bool IsVarint() const { return type == 0; }
  bool IsBytes() const { return type == 2; }
};

// The most bytes of a tag, and of a length, which have 32 bits.
constexpr size_t kTagDigitsMax = 5;

// Takes a varint of 64 bits from the beginning.
inline bool ReadVarint(std::string_view* rest, uint64_t* value) {
  *value = 0;
  for (size_t index = 0; index < 10 && index < rest->size(); ++index) {
    const auto each = static_cast<unsigned char>((*rest)[index]);
    if (index == 9 && each > 1) return false;  // more than 64 bits
    *value |= static_cast<uint64_t>(each & 0x7f) << (7 * index);
    if (each < 0x80) {
      rest->remove_prefix(index + 1);
      return true;
    }
  }
  return false;
}

// Takes a varint that is no longer than one of 32 bits.
inline bool ReadShortVarint(std::string_view* rest, uint64_t* value) {
  const size_t before = rest->size();
  return ReadVarint(rest, value) && before - rest->size() <= kTagDigitsMax;
}

// Calls `take` with each field. False for a message with fields of other types, or one that ends early.
template <typename Take>
bool ForEachField(std::string_view message, Take take) {
  while (!message.empty()) {
    uint64_t tag, length;
    WireField field = {};
    if (!ReadShortVarint(&message, &tag) || tag >> 32 != 0 || tag >> 3 == 0) return false;
    field.number = static_cast<uint32_t>(tag >> 3);
    field.type = tag & 7;
    if (field.IsVarint()) {
      if (!ReadVarint(&message, &field.varint)) return false;
    } else if (!field.IsBytes() || !ReadShortVarint(&message, &length) || length > message.size()) {
      return false;
    } else {
      field.bytes = message.substr(0, length);
      message.remove_prefix(length);
    }
    if (!take(field)) return false;
  }
  return true;
}

inline void AddVarint(uint64_t value, std::string* out) {
  while (value > 0x7f) {
    *out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out += static_cast<char>(value);
}

inline void AddBytesField(uint32_t number, std::string_view bytes, std::string* out) {
  AddVarint(number << 3 | 2, out);
  AddVarint(bytes.size(), out);
  *out += bytes;
}

}  // namespace pyruntime
