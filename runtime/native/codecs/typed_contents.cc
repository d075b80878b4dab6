// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "typed_contents.h"

#include <cstring>

#include "wire.h"

namespace pyruntime {
namespace {

// The fields of InferTensorContents.
enum Member { kBools = 1, kInts = 2, kInt64s = 3, kUints = 4, kUint64s = 5, kFloats = 6, kDoubles = 7, kStrings = 8 };

// The length of a string in a tensor.
constexpr size_t kLengthBytes = 4;

// A datatype that has typed contents: the member that holds them, and the bytes of an element, 0 for strings.
struct Kind {
  std::string_view datatype;
  Member member;
  size_t width;
};

constexpr Kind kKinds[] = {
    {"FP32", kFloats, 4}, {"FP64", kDoubles, 8}, {"BYTES", kStrings, 0}, {"BOOL", kBools, 1},
    {"INT8", kInts, 1},   {"INT16", kInts, 2},   {"INT32", kInts, 4},    {"INT64", kInt64s, 8},
    {"UINT8", kUints, 1}, {"UINT16", kUints, 2}, {"UINT32", kUints, 4},  {"UINT64", kUint64s, 8},
};

const Kind* FindKind(std::string_view datatype) {
  for (const Kind& kind : kKinds) {
    if (kind.datatype == datatype) return &kind;
  }
  return nullptr;
}

bool IsOfFixedWidth(const Kind& kind) { return kind.member == kFloats || kind.member == kDoubles; }

// Calls `take` with the bytes of each field, all of which belong to the datatype: one field of packed numbers, or one for
// each string.
template <typename Take>
bool ForEachMember(const Kind& kind, std::string_view contents, Take take) {
  bool is_first = true;
  return ForEachField(contents, [&](const WireField& field) {
    if (field.number != kind.member || !field.IsBytes() || (kind.member != kStrings && !is_first)) return false;
    is_first = false;
    return take(field.bytes);
  });
}

uint64_t CountVarints(std::string_view packed) {
  uint64_t count = 0;
  for (const char each : packed) count += static_cast<unsigned char>(each) < 0x80 ? 1 : 0;
  return count;
}

// Whether a number, which protobuf cuts to 32 bits, is in the range of the datatype.
bool IsInRange(const Kind& kind, uint64_t value) {
  const auto bits = static_cast<unsigned>(8 * kind.width);
  if (kind.member == kUints) return bits == 32 || static_cast<uint32_t>(value) >> bits == 0;
  if (kind.member != kInts || bits == 32) return true;
  const auto number = static_cast<int32_t>(static_cast<uint32_t>(value));
  return number >= -(1 << (bits - 1)) && number < 1 << (bits - 1);
}

bool WriteVarints(const Kind& kind, std::string_view packed, char* to) {
  uint64_t value;
  while (!packed.empty()) {
    if (!ReadVarint(&packed, &value) || !IsInRange(kind, value)) return false;
    if (kind.member == kBools) value = value != 0 ? 1 : 0;
    for (size_t index = 0; index < kind.width; ++index) *to++ = static_cast<char>(value >> (8 * index));
  }
  return true;
}

char* WriteString(std::string_view text, char* to) {
  for (size_t index = 0; index < kLengthBytes; ++index) *to++ = static_cast<char>(text.size() >> (8 * index));
  if (!text.empty()) std::memcpy(to, text.data(), text.size());
  return to + text.size();
}

}  // namespace

bool MeasureContents(std::string_view datatype, std::string_view contents, uint64_t* byte_size) {
  const Kind* kind = FindKind(datatype);
  uint64_t size = 0;
  if (kind == nullptr) return false;
  const bool is_plain = ForEachMember(*kind, contents, [&](std::string_view bytes) {
    if (kind->member == kStrings) {
      size += kLengthBytes + bytes.size();
      return true;
    }
    size = IsOfFixedWidth(*kind) ? bytes.size() : CountVarints(bytes) * kind->width;
    return IsOfFixedWidth(*kind) ? size % kind->width == 0 : bytes.empty() || static_cast<unsigned char>(bytes.back()) < 0x80;
  });
  *byte_size = size;
  return is_plain;
}

bool WriteContents(std::string_view datatype, std::string_view contents, char* to) {
  const Kind& kind = *FindKind(datatype);
  return ForEachMember(kind, contents, [&](std::string_view bytes) {
    if (kind.member == kStrings) {
      to = WriteString(bytes, to);
      return true;
    }
    if (!IsOfFixedWidth(kind)) return WriteVarints(kind, bytes, to);
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    return true;
  });
}

}  // namespace pyruntime
