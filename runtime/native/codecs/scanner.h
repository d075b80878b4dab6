// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the JSON that clients of the inference protocol write, in one pass and without a tree.
//
// It accepts less than JSON: strings of printable ASCII without escapes, integers from 0 to 2^63 - 1, true and false.
// Each method returns false for all else, also for malformed JSON, and the whole document is then left to the reference
// in Python, which words the errors.

#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace pyruntime {

class Scanner {
 public:
  Scanner(const char* begin, const char* end) : at_(begin), end_(end) {}

  // The next character that is no white space; 0 at the end.
  char Next() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
    return at_ < end_ ? *at_ : '\0';
  }

  bool Take(char wanted) {
    if (Next() != wanted) return false;
    ++at_;
    return true;
  }

  bool AtEnd() { return Next() == '\0' && at_ == end_; }

  bool String(std::string_view* text) {
    if (!Take('"')) return false;
    const char* begin = at_;
    for (; at_ < end_; ++at_) {
      const unsigned char each = static_cast<unsigned char>(*at_);
      if (each == '"') {
        *text = {begin, static_cast<size_t>(at_ - begin)};
        ++at_;
        return true;
      }
      if (each == '\\' || each < 0x20 || each > 0x7e) return false;
    }
    return false;
  }

  bool Unsigned(uint64_t* value) {
    const char first = Next();
    if (first < '0' || first > '9') return false;
    uint64_t sum = 0;
    const char* begin = at_;
    for (; at_ < end_ && *at_ >= '0' && *at_ <= '9'; ++at_) {
      if (at_ - begin == 18) return false;  // 18 digits are below 2^63
      sum = sum * 10 + static_cast<uint64_t>(*at_ - '0');
    }
    if (first == '0' && at_ - begin > 1) return false;
    // A fraction or an exponent makes another kind of number of it.
    if (at_ < end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E')) return false;
    *value = sum;
    return true;
  }

  bool Boolean(bool* value) {
    *value = Next() == 't';
    const std::string_view word = *value ? "true" : "false";
    if (static_cast<size_t>(end_ - at_) < word.size() || std::memcmp(at_, word.data(), word.size()) != 0) return false;
    at_ += word.size();
    return true;
  }

  // An object. `member(name)` reads the value of each of its members.
  template <typename Member>
  bool Members(Member member) {
    if (!Take('{')) return false;
    if (Take('}')) return true;
    do {
      std::string_view name;
      if (!String(&name) || !Take(':') || !member(name)) return false;
    } while (Take(','));
    return Take('}');
  }

  // A list. `element()` reads each of its elements.
  template <typename Element>
  bool Elements(Element element) {
    if (!Take('[')) return false;
    if (Take(']')) return true;
    do {
      if (!element()) return false;
    } while (Take(','));
    return Take(']');
  }

 private:
  const char* at_;
  const char* end_;
};

}  // namespace pyruntime
