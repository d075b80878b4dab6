// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Strings in JSON, both ways. Texts are UTF-8 without surrogates, as Python's strict codec has it.

#pragma once

#include <string>
#include <string_view>

namespace pyruntime {

// The first character of a string's contents that is not printable ASCII, or has a meaning of its own; or `end`.
const char* PlainEnd(const char* at, const char* end);

// Adds the text of a string whose contents begin at `at`, and sets that behind the closing quote. False for control
// characters, escapes that are none, half surrogate pairs, and what is not UTF-8.
bool ReadJsonText(const char** at, const char* end, std::string* text);

// Adds a text in JSON, with the escapes that orjson makes. False for one that is not UTF-8.
bool AddJsonText(std::string_view text, std::string* json);

}  // namespace pyruntime
