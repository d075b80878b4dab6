// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A reader of JSON, for what the C API says in it: the configuration of a model. It reads all of RFC 8259.

#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "error.hpp"

namespace pyruntime {

// A value of JSON. Reading a value as another type, or one that does not exist, throws Error.
class Json {
 public:
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };

  // Reads a document. Throws Error if it is none.
  static Json Parse(std::string_view text);

  Type type() const noexcept { return type_; }

  bool Bool() const { return Expect(Type::kBool, "a boolean").text_ == "true"; }
  const std::string& String() const { return Expect(Type::kString, "a string").text_; }

  int64_t Int() const {
    // Triton writes some of its 64-bit integers as strings.
    const std::string& text = type_ == Type::kString ? text_ : Expect(Type::kNumber, "an integer").text_;
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stopped, problem] = std::from_chars(text.data(), end, value);
    if (problem != std::errc() || stopped != end) {
      throw InvalidArgument("JSON: '" + text + "' is no 64-bit integer");
    }
    return value;
  }

  double Double() const {
    std::istringstream stream(Expect(Type::kNumber, "a number").text_);
    stream.imbue(std::locale::classic());
    double value = 0;
    stream >> value;
    return value;
  }

  // The elements of an array, or the values of an object in their order.
  size_t size() const noexcept { return values_.size(); }
  std::vector<Json>::const_iterator begin() const noexcept { return values_.begin(); }
  std::vector<Json>::const_iterator end() const noexcept { return values_.end(); }
  // The keys of an object, in the order of its values.
  const std::vector<std::string>& keys() const noexcept { return keys_; }

  const Json& operator[](size_t index) const {
    Expect(Type::kArray, "an array");
    if (index >= values_.size()) {
      throw InvalidArgument("JSON: there is no element " + std::to_string(index));
    }
    return values_[index];
  }

  const Json& operator[](std::string_view key) const {
    Expect(Type::kObject, "an object");
    if (const Json* found = Find(key)) {
      return *found;
    }
    throw InvalidArgument("JSON: there is no member '" + std::string(key) + "'");
  }

  // A member of an object; nullptr if it has none of that key, or is no object.
  const Json* Find(std::string_view key) const noexcept {
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i] == key) {
        return &values_[i];
      }
    }
    return nullptr;
  }

 private:
  class Reader;

  const Json& Expect(Type type, const char* what) const {
    if (type_ != type) {
      throw InvalidArgument(std::string("JSON: a value is not ") + what);
    }
    return *this;
  }

  Type type_ = Type::kNull;
  // A string's contents, or a number or boolean as it is written.
  std::string text_;
  std::vector<std::string> keys_;
  std::vector<Json> values_;
};

class Json::Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json ReadDocument() {
    Json document = ReadValue(0);
    SkipSpace();
    if (at_ != text_.size()) {
      Fail("something follows the document");
    }
    return document;
  }

 private:
  // Configurations are ten levels deep; the stack must not be the limit.
  static constexpr int kDepthMax = 100;

  [[noreturn]] void Fail(const char* why) const {
    throw InvalidArgument("JSON: " + std::string(why) + ", at byte " + std::to_string(at_));
  }

  char Peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool Take(char wanted) noexcept {
    const bool found = at_ < text_.size() && text_[at_] == wanted;
    at_ += found;
    return found;
  }

  void SkipSpace() noexcept {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }

  Json ReadValue(int depth) {
    if (depth > kDepthMax) {
      Fail("too deep");
    }
    SkipSpace();
    Json value;
    if (Take('{')) {
      value.type_ = Type::kObject;
      ReadMembers(&value, depth);
    } else if (Take('[')) {
      value.type_ = Type::kArray;
      ReadElements(&value, depth);
    } else if (Take('"')) {
      value.type_ = Type::kString;
      value.text_ = ReadString();
    } else if (Peek() == '-' || IsDigit()) {
      value.type_ = Type::kNumber;
      value.text_ = ReadNumber();
    } else {
      ReadWord(&value);
    }
    return value;
  }

  void ReadMembers(Json* object, int depth) {
    SkipSpace();
    if (Take('}')) {
      return;
    }
    do {
      SkipSpace();
      if (!Take('"')) {
        Fail("a key is missing");
      }
      object->keys_.push_back(ReadString());
      SkipSpace();
      if (!Take(':')) {
        Fail("a colon is missing");
      }
      object->values_.push_back(ReadValue(depth + 1));
      SkipSpace();
    } while (Take(','));
    if (!Take('}')) {
      Fail("an object does not end");
    }
  }

  void ReadElements(Json* array, int depth) {
    SkipSpace();
    if (Take(']')) {
      return;
    }
    do {
      array->values_.push_back(ReadValue(depth + 1));
      SkipSpace();
    } while (Take(','));
    if (!Take(']')) {
      Fail("an array does not end");
    }
  }

  void ReadWord(Json* value) {
    for (const std::string_view word : {"null", "true", "false"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        value->type_ = word == "null" ? Type::kNull : Type::kBool;
        value->text_ = word;
        return;
      }
    }
    Fail("a value is missing");
  }

  bool IsDigit() const noexcept { return Peek() >= '0' && Peek() <= '9'; }

  void SkipDigits() {
    if (!IsDigit()) {
      Fail("a digit is missing");
    }
    while (IsDigit()) {
      ++at_;
    }
  }

  std::string ReadNumber() {
    const size_t start = at_;
    Take('-');
    if (!Take('0')) {
      SkipDigits();
    }
    if (Take('.')) {
      SkipDigits();
    }
    if (Take('e') || Take('E')) {
      if (!Take('+')) {
        Take('-');
      }
      SkipDigits();
    }
    return std::string(text_.substr(start, at_ - start));
  }

  // What follows an opening quote, up to the closing one.
  std::string ReadString() {
    std::string found;
    while (!Take('"')) {
      if (at_ == text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20) {
        Fail("a string does not end");
      }
      const char next = text_[at_++];
      if (next == '\\') {
        ReadEscape(&found);
      } else {
        found += next;
      }
    }
    return found;
  }

  void ReadEscape(std::string* found) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const size_t which = Peek() == '\0' ? std::string_view::npos : kLetters.find(Peek());
    if (which != std::string_view::npos) {
      ++at_;
      *found += kMeanings[which];
    } else if (Take('u')) {
      AppendUtf8(ReadCodePoint(), found);
    } else {
      Fail("an escape is unknown");
    }
  }

  uint32_t ReadCodePoint() {
    const uint32_t first = ReadHex();
    if (first < 0xD800 || first > 0xDFFF) {
      return first;
    }
    // What lies beyond 16 bits is written as a pair.
    if (first > 0xDBFF || !Take('\\') || !Take('u')) {
      Fail("half of a surrogate pair is missing");
    }
    const uint32_t second = ReadHex();
    if (second < 0xDC00 || second > 0xDFFF) {
      Fail("half of a surrogate pair is missing");
    }
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  uint32_t ReadHex() {
    uint32_t value = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [stopped, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 4 || problem != std::errc() || stopped != digits.data() + 4) {
      Fail("four hexadecimal digits are missing");
    }
    at_ += 4;
    return value;
  }

  static void AppendUtf8(uint32_t code, std::string* found) {
    if (code < 0x80) {
      *found += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *found += static_cast<char>(((0xFF00 >> (more + 1)) & 0xFF) | (code >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) {
      *found += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

inline Json Json::Parse(std::string_view text) { return Reader(text).ReadDocument(); }

}  // namespace pyruntime
