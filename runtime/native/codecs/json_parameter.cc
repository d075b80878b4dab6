// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "json_parameter.h"

#include "json_number.h"
#include "json_text.h"

namespace pyruntime {

bool ReadJsonParameter(Scanner* scanner, std::string* json) {
  const char first = scanner->Next();
  if (first == '"') {
    std::string_view text;
    return scanner->String(&text) && AddJsonText(text, json);
  }
  if (first == 't' || first == 'f') {
    bool flag;
    if (!scanner->Boolean(&flag)) return false;
    *json += flag ? "true" : "false";
    return true;
  }
  JsonNumber number;
  if (!scanner->Number(&number)) return false;
  if (!number.is_integer) return AddJsonDouble(number.real, json);
  if (number.magnitude >> 63 != 0) return false;
  if (number.is_negative && number.magnitude != 0) *json += '-';
  *json += std::to_string(number.magnitude);
  return true;
}

}  // namespace pyruntime
