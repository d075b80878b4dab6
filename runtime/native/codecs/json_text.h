// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>

namespace pyruntime {

// Adds a text in JSON. False for one that is not printable ASCII, or would have to be escaped.
inline bool AddJsonText(std::string_view text, std::string* json) {
  for (const char each : text) {
    if (each < 0x20 || each > 0x7e || each == '"' || each == '\\') return false;
  }
  *json += '"';
  *json += text;
  *json += '"';
  return true;
}

}  // namespace pyruntime
