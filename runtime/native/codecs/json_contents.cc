// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "json_contents.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "json_number.h"
#include "json_text.h"

namespace pyruntime {
namespace {

// How deep lists of elements may nest here. No tensor has more dimensions.
constexpr size_t kNestingMax = 32;
// The length of a string, before its bytes.
constexpr size_t kPrefixBytes = 4;

// The types of elements. A FlagElement is a byte that is a Boolean in JSON, a TextElement is UTF-8 with its length before it.
struct FlagElement {};
struct TextElement {};

// Calls `use` with a value of the type of an element. False for datatypes without a form in JSON.
template <typename Use>
bool WithType(std::string_view datatype, Use use) {
  if (datatype == "FP32") return use(float());
  if (datatype == "BYTES") return use(TextElement());
  if (datatype == "INT64") return use(int64_t());
  if (datatype == "INT32") return use(int32_t());
  if (datatype == "FP64") return use(double());
  if (datatype == "BOOL") return use(FlagElement());
  if (datatype == "INT16") return use(int16_t());
  if (datatype == "INT8") return use(int8_t());
  if (datatype == "UINT64") return use(uint64_t());
  if (datatype == "UINT32") return use(uint32_t());
  if (datatype == "UINT16") return use(uint16_t());
  if (datatype == "UINT8") return use(uint8_t());
  return false;
}

// From JSON. The last argument only says which type it is.

template <typename Value>
bool AddBytes(Value value, std::string* contents) {
  contents->append(reinterpret_cast<const char*>(&value), sizeof value);
  return true;
}

template <typename Float>
std::enable_if_t<std::is_floating_point_v<Float>, bool> ReadOne(Scanner* scanner, std::string* contents, Float) {
  JsonNumber number;
  // Numbers that are too large for a float become infinity.
  return scanner->Number(&number) && AddBytes(static_cast<Float>(number.AsDouble()), contents);
}

template <typename Integer>
std::enable_if_t<std::is_integral_v<Integer>, bool> ReadOne(Scanner* scanner, std::string* contents, Integer) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<Integer>::max());
  constexpr uint64_t kSizeMax = std::is_signed_v<Integer> ? kMax + 1 : 0;  // of negative ones
  JsonNumber number;
  if (!scanner->Number(&number) || !number.is_integer) return false;
  if (number.magnitude > (number.is_negative ? kSizeMax : kMax)) return false;
  return AddBytes(static_cast<Integer>(number.is_negative ? 0 - number.magnitude : number.magnitude), contents);
}

bool ReadOne(Scanner* scanner, std::string* contents, FlagElement) {
  bool flag;
  return scanner->Boolean(&flag) && AddBytes(static_cast<char>(flag ? 1 : 0), contents);
}

bool ReadOne(Scanner* scanner, std::string* contents, TextElement) {
  const size_t begin = contents->size();
  contents->append(kPrefixBytes, '\0');
  if (!scanner->AddString(contents)) return false;
  const size_t size = contents->size() - begin - kPrefixBytes;
  if (size > std::numeric_limits<uint32_t>::max()) return false;
  for (size_t index = 0; index < kPrefixBytes; ++index) {
    (*contents)[begin + index] = static_cast<char>(size >> (8 * index));
  }
  return true;
}

// To JSON.

bool WriteOne(double value, std::string* json) {
  // The reference has another way to write some numbers if any number, or the sum of them, is not finite.
  return std::fabs(value) < 1e300 && AddJsonDouble(value, json);
}

bool WriteOne(float value, std::string* json) { return WriteOne(static_cast<double>(value), json); }

template <typename Integer>
std::enable_if_t<std::is_integral_v<Integer>, bool> WriteOne(Integer value, std::string* json) {
  char text[24];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  json->append(text, end);
  return error == std::errc();
}

// Writes `count` elements of one size.
template <typename Element>
bool WriteElements(std::string_view contents, int64_t count, std::string* json, Element) {
  uint64_t size;
  if (__builtin_mul_overflow(count, sizeof(Element), &size) || size != contents.size()) return false;
  for (size_t at = 0; at < contents.size(); at += sizeof(Element)) {
    if (at > 0) *json += ',';
    Element value;
    std::memcpy(&value, contents.data() + at, sizeof value);
    if (!WriteOne(value, json)) return false;
  }
  return true;
}

bool WriteElements(std::string_view contents, int64_t count, std::string* json, FlagElement) {
  if (static_cast<uint64_t>(count) != contents.size()) return false;
  for (size_t at = 0; at < contents.size(); ++at) {
    if (at > 0) *json += ',';
    *json += contents[at] != 0 ? "true" : "false";
  }
  return true;
}

bool WriteElements(std::string_view contents, int64_t count, std::string* json, TextElement) {
  for (; count > 0; --count) {
    if (contents.size() < kPrefixBytes) return false;
    size_t size = 0;
    for (size_t index = 0; index < kPrefixBytes; ++index) {
      size |= static_cast<size_t>(static_cast<unsigned char>(contents[index])) << (8 * index);
    }
    contents.remove_prefix(kPrefixBytes);
    if (contents.size() < size || !AddJsonText(contents.substr(0, size), json)) return false;
    contents.remove_prefix(size);
    if (count > 1) *json += ',';
  }
  return contents.empty();
}

}  // namespace

bool ReadContents(std::string_view datatype, Scanner* scanner, std::string* contents, int64_t* count) {
  *count = 0;
  return WithType(datatype, [&](auto type) {
    return scanner->Leaves(kNestingMax, [&] {
      ++*count;
      return ReadOne(scanner, contents, type);
    });
  });
}

bool ReadElement(std::string_view datatype, Scanner* scanner, std::string* contents) {
  return WithType(datatype, [&](auto type) { return ReadOne(scanner, contents, type); });
}

bool AddContents(std::string_view datatype, std::string_view contents, int64_t count, std::string* json) {
  return count >= 0 && WithType(datatype, [&](auto type) { return WriteElements(contents, count, json, type); });
}

}  // namespace pyruntime
