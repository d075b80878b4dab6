// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "json_text.h"

#include <cstdint>
#include <cstring>

namespace pyruntime {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101;
constexpr uint64_t kHighs = 0x8080808080808080;

// Whether some of eight bytes are not ASCII, control characters, quotes or backslashes. Where one is, bytes behind it
// may be found wrongly, which does not change the answer.
bool HasSpecial(uint64_t bytes) {
  const auto zero = [](uint64_t each) { return (each - kOnes) & ~each; };
  const uint64_t controls = (bytes - kOnes * 0x20) & ~bytes;
  return ((bytes | controls | zero(bytes ^ kOnes * '"') | zero(bytes ^ kOnes * '\\')) & kHighs) != 0;
}

bool IsSpecial(unsigned char each) { return each < 0x20 || each >= 0x80 || each == '"' || each == '\\'; }

// The length of the character that begins at `at`, which is not ASCII; 0 if it is not UTF-8.
size_t CharacterLength(const char* at, const char* end) {
  const auto byte = [&](size_t index) -> unsigned { return static_cast<unsigned char>(at[index]); };
  const unsigned first = byte(0);
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0 || static_cast<size_t>(end - at) < length) return 0;
  for (size_t index = 1; index < length; ++index) {
    if (byte(index) >> 6 != 2) return 0;
  }
  const unsigned second = byte(1);
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_surrogate = first == 0xed && second >= 0xa0;
  const bool is_too_large = first == 0xf4 && second >= 0x90;
  return is_overlong || is_surrogate || is_too_large ? 0 : length;
}

void AddCharacter(uint32_t code, std::string* text) {
  if (code < 0x80) {
    *text += static_cast<char>(code);
    return;
  }
  if (code < 0x800) {
    *text += static_cast<char>(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      *text += static_cast<char>(0xe0 | code >> 12);
    } else {
      *text += static_cast<char>(0xf0 | code >> 18);
      *text += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    }
    *text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
  }
  *text += static_cast<char>(0x80 | (code & 0x3f));
}

// Takes four hexadecimal digits.
bool ReadHex(const char** at, const char* end, uint32_t* code) {
  if (end - *at < 4) return false;
  *code = 0;
  for (int index = 0; index < 4; ++index) {
    const char each = *(*at)++;
    uint32_t digit;
    if (each >= '0' && each <= '9') digit = static_cast<uint32_t>(each - '0');
    else if (each >= 'a' && each <= 'f') digit = static_cast<uint32_t>(each - 'a' + 10);
    else if (each >= 'A' && each <= 'F') digit = static_cast<uint32_t>(each - 'A' + 10);
    else return false;
    *code = *code << 4 | digit;
  }
  return true;
}

// Takes what stands behind "\u": one character, or a surrogate pair.
bool ReadUnicode(const char** at, const char* end, std::string* text) {
  uint32_t code, low;
  if (!ReadHex(at, end, &code)) return false;
  if (code >> 10 == 0xd800 >> 10) {
    if (end - *at < 2 || (*at)[0] != '\\' || (*at)[1] != 'u') return false;
    *at += 2;
    if (!ReadHex(at, end, &low) || low >> 10 != 0xdc00 >> 10) return false;
    code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
  } else if (code >> 10 == 0xdc00 >> 10) {
    return false;
  }
  AddCharacter(code, text);
  return true;
}

constexpr char kEscapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";

// Takes what stands behind a backslash.
bool ReadEscape(const char** at, const char* end, std::string* text) {
  if (*at == end) return false;
  const char letter = *(*at)++;
  if (letter == 'u') return ReadUnicode(at, end, text);
  for (const char* each = kEscapes; *each != '\0'; each += 2) {
    if (*each == letter) {
      *text += each[1];
      return true;
    }
  }
  return false;
}

// Adds a control character, a quote or a backslash as orjson does. It may have become any other one: models write
// texts to memory that is theirs, too.
void AddEscape(char character, std::string* json) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char* each = kEscapes; *each != '\0'; each += 2) {
    if (each[1] == character) {
      *json += '\\';
      *json += each[0];
      return;
    }
  }
  *json += "\\u00";
  *json += kHex[character >> 4 & 0xf];
  *json += kHex[character & 0xf];
}

}  // namespace

const char* PlainEnd(const char* at, const char* end) {
  for (; end - at >= 8; at += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, at, sizeof bytes);
    if (HasSpecial(bytes)) break;
  }
  while (at < end && !IsSpecial(static_cast<unsigned char>(*at))) ++at;
  return at;
}

bool ReadJsonText(const char** at, const char* end, std::string* text) {
  for (;;) {
    const char* begin = *at;
    *at = PlainEnd(begin, end);
    while (*at < end && (**at & 0x80) != 0) {
      const size_t length = CharacterLength(*at, end);
      if (length == 0) return false;
      *at = PlainEnd(*at + length, end);
    }
    text->append(begin, *at);
    if (*at == end) return false;
    const char special = *(*at)++;
    if (special == '"') return true;
    if (special != '\\' || !ReadEscape(at, end, text)) return false;
  }
}

bool AddJsonText(std::string_view text, std::string* json) {
  const char* at = text.data();
  const char* end = at + text.size();
  *json += '"';
  while (at < end) {
    const char* stop = PlainEnd(at, end);
    json->append(at, stop);
    at = stop;
    if (at == end) break;
    if ((*at & 0x80) == 0) {
      AddEscape(*at++, json);
      continue;
    }
    const size_t length = CharacterLength(at, end);
    if (length == 0) return false;
    json->append(at, length);
    at += length;
  }
  *json += '"';
  return true;
}

}  // namespace pyruntime
