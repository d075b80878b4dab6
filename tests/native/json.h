// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Reads JSON strictly, as backends read configurations: a member that is not there, or is of another type, is an error.
#ifndef PYRUNTIME_TESTS_NATIVE_JSON_H_
#define PYRUNTIME_TESTS_NATIVE_JSON_H_

#include <cctype>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace testing {

class Json {
 public:
  static Json Parse(const std::string& text) {
    size_t at = 0;
    return Read(text, &at);
  }

  const Json& at(const std::string& name) const {
    const auto found = members_.find(name);
    if (found == members_.end()) throw std::out_of_range("attempt to access non-existing object member '" + name + "'");
    return found->second;
  }
  const std::vector<Json>& items() const { return Expect('['), items_; }
  const std::string& text() const { return Expect('"'), text_; }
  int64_t number() const { return Expect('0'), std::atoll(text_.c_str()); }
  bool flag() const { return Expect('t'), text_ == "true"; }

 private:
  void Expect(char kind) const {
    if (kind_ != kind) throw std::invalid_argument("attempt to access JSON of another type than '" + text_ + "' has");
  }

  static char Peek(const std::string& text, size_t* at) {
    while (*at < text.size() && (std::isspace(static_cast<unsigned char>(text[*at])) != 0 || text[*at] == ',' ||
                                 text[*at] == ':')) {
      ++*at;
    }
    if (*at == text.size()) throw std::invalid_argument("the JSON ends too early");
    return text[*at];
  }

  static std::string ReadText(const std::string& text, size_t* at) {
    std::string result;
    for (++*at; text.at(*at) != '"'; ++*at) {
      if (text[*at] == '\\') ++*at;
      result += text.at(*at);
    }
    ++*at;
    return result;
  }

  static Json Read(const std::string& text, size_t* at) {
    Json value;
    const char first = Peek(text, at);
    if (first == '{') {
      value.kind_ = first;
      for (++*at; Peek(text, at) != '}';) {
        const std::string name = ReadText(text, at);
        value.members_[name] = Read(text, at);
      }
      ++*at;
    } else if (first == '[') {
      value.kind_ = first;
      for (++*at; Peek(text, at) != ']';) value.items_.push_back(Read(text, at));
      ++*at;
    } else if (first == '"') {
      value.kind_ = first;
      value.text_ = ReadText(text, at);
    } else {
      value.kind_ = first == 't' || first == 'f' ? 't' : '0';
      const std::string ends = ",:]} \n";
      while (*at < text.size() && ends.find(text[*at]) == std::string::npos) value.text_ += text[(*at)++];
    }
    return value;
  }

  char kind_ = '0';
  std::string text_;
  std::vector<Json> items_;
  std::map<std::string, Json> members_;
};

}  // namespace testing

#endif  // PYRUNTIME_TESTS_NATIVE_JSON_H_
