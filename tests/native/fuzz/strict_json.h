// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Whether a text is JSON to the letter (RFC 8259), without white space and without what need not be escaped of control
// characters. It shares nothing with the readers and writers that it judges.
#ifndef PYRUNTIME_TESTS_NATIVE_FUZZ_STRICT_JSON_H_
#define PYRUNTIME_TESTS_NATIVE_FUZZ_STRICT_JSON_H_

#include <cstring>
#include <string_view>

namespace fuzz {

class StrictJson {
 public:
  static bool IsObject(std::string_view text) {
    StrictJson json(text);
    return !text.empty() && text[0] == '{' && json.Value() && json.rest_.empty();
  }

 private:
  explicit StrictJson(std::string_view text) : rest_(text) {}

  bool Value() {
    if (rest_.empty()) return false;
    switch (rest_[0]) {
      case '{':
        return List('{', '}', [this] { return String() && Take(":") && Value(); });
      case '[':
        return List('[', ']', [this] { return Value(); });
      case '"':
        return String();
      case 't':
        return Take("true");
      case 'f':
        return Take("false");
      case 'n':
        return Take("null");
      default:
        return Number();
    }
  }

  template <typename Item>
  bool List(char first, char last, Item item) {
    if (!TakeOne(first)) return false;
    if (TakeOne(last)) return true;
    do {
      if (!item()) return false;
    } while (TakeOne(','));
    return TakeOne(last);
  }

  bool String() {
    if (!TakeOne('"')) return false;
    while (!rest_.empty() && rest_[0] != '"') {
      const auto each = static_cast<unsigned char>(rest_[0]);
      if (each < 0x20) return false;
      if (each >= 0x80 ? !Character() : each == '\\' ? !Escape() : !TakeOne(rest_[0])) return false;
    }
    return TakeOne('"');
  }

  bool Escape() {
    rest_.remove_prefix(1);
    if (!TakeOne('u')) return TakeAny("\"\\/bfnrt");
    for (int digit = 0; digit < 4; ++digit) {
      if (!TakeAny("0123456789abcdefABCDEF")) return false;
    }
    return true;
  }

  // A character of UTF-8 that is not ASCII: in as few bytes as can be, and no surrogate.
  bool Character() {
    const auto first = static_cast<unsigned char>(rest_[0]);
    const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (first < 0xc0 || first > 0xf7 || rest_.size() < length) return false;
    uint32_t code = first & (0x7f >> length);
    for (size_t index = 1; index < length; ++index) {
      const auto each = static_cast<unsigned char>(rest_[index]);
      if ((each & 0xc0) != 0x80) return false;
      code = code << 6 | (each & 0x3f);
    }
    rest_.remove_prefix(length);
    return code >= kLeast[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  }

  bool Number() {
    TakeOne('-');
    if (!TakeOne('0') && !Digits()) return false;
    if (TakeOne('.') && !Digits()) return false;
    if (!TakeAny("eE")) return true;
    TakeAny("+-");
    return Digits();
  }

  bool Digits() {
    if (!TakeAny("0123456789")) return false;
    while (TakeAny("0123456789")) continue;
    return true;
  }

  bool TakeAny(const char* wanted) {
    if (rest_.empty() || rest_[0] == '\0' || std::strchr(wanted, rest_[0]) == nullptr) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool TakeOne(char wanted) {
    if (rest_.empty() || rest_[0] != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool Take(std::string_view word) {
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::string_view rest_;
};

}  // namespace fuzz

#endif  // PYRUNTIME_TESTS_NATIVE_FUZZ_STRICT_JSON_H_
