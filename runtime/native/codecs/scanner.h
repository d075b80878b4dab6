// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the JSON that clients of the inference protocol write, in one pass and without a tree.
//
// It accepts less than what the reference in Python takes: no numbers that are not finite, for instance. Each method
// returns false for all else, also for malformed JSON, and the whole document is then left to the reference, which words
// the errors.

#pragma once

#include <cstdint>
#include <cstring>
#include <forward_list>
#include <string>
#include <string_view>

#include "json_number.h"
#include "json_text.h"

namespace pyruntime {

class Scanner {
 public:
  // Texts that are not in the document as they are, because they have escapes, are put into `decoded`.
  Scanner(const char* begin, const char* end, std::forward_list<std::string>* decoded)
      : at_(begin), end_(end), decoded_(decoded) {}

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

  // A string, as UTF-8.
  bool String(std::string_view* text) {
    if (!Take('"')) return false;
    const char* stop = PlainEnd(at_, end_);
    if (stop < end_ && *stop == '"') {
      *text = {at_, static_cast<size_t>(stop - at_)};
      at_ = stop + 1;
      return true;
    }
    std::string& made = decoded_->emplace_front();
    if (!ReadJsonText(&at_, end_, &made)) return false;
    *text = made;
    return true;
  }

  // Adds the contents of a string, as UTF-8.
  bool AddString(std::string* text) { return Take('"') && ReadJsonText(&at_, end_, text); }

  // Any finite number.
  bool Number(JsonNumber* number) {
    Next();
    return ReadJsonNumber(&at_, end_, number);
  }

  // An integer from 0 to 2^63 - 1.
  bool Unsigned(uint64_t* value) {
    JsonNumber number;
    if (!Number(&number) || !number.is_integer || number.is_negative || number.magnitude >> 63 != 0) return false;
    *value = number.magnitude;
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

  // A list whose elements may be lists, and so on `depth_max` deep. `element()` reads each one that is no list.
  template <typename Element>
  bool Leaves(size_t depth_max, Element element) {
    size_t depth = 0;
    do {
      bool is_empty = false;
      while (Take('[')) {
        if (++depth > depth_max) return false;
        is_empty = Next() == ']';
      }
      if (depth == 0 || (!is_empty && !element())) return false;
      while (depth > 0 && Take(']')) --depth;
    } while (depth > 0 && Take(','));
    return depth == 0;
  }

  // Skips an object or a list up to the bracket that ends it, and nothing but that is checked.
  bool Skip(Scanner* skipped) {
    if (Next() != '[' && Next() != '{') return false;
    *skipped = *this;
    size_t depth = 0;
    for (; at_ < end_; ++at_) {
      if (*at_ == '"') {
        for (++at_; at_ < end_ && *at_ != '"'; ++at_) at_ += *at_ == '\\' && at_ + 1 < end_ ? 1 : 0;
        if (at_ == end_) return false;
      } else if (*at_ == '[' || *at_ == '{') {
        ++depth;
      } else if ((*at_ == ']' || *at_ == '}') && --depth == 0) {
        skipped->end_ = ++at_;
        return true;
      }
    }
    return false;
  }

 private:
  const char* at_;
  const char* end_;
  std::forward_list<std::string>* decoded_;
};

}  // namespace pyruntime
