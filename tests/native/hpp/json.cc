// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// pyruntime::Json for a test in Python: writes the value in a form of its own, or the error.

#include <pyruntime/json.hpp>

#include <cstddef>
#include <cstring>
#include <string>

namespace {

using pyruntime::Json;

void Write(const Json& value, std::string* out) {
  switch (value.type()) {
    case Json::Type::kNull:
      *out += "null";
      return;
    case Json::Type::kBool:
      *out += value.Bool() ? "true" : "false";
      return;
    case Json::Type::kNumber:
      try {
        *out += "int " + std::to_string(value.Int());
      } catch (const pyruntime::Error&) {
        *out += "double " + std::to_string(value.Double());
      }
      return;
    case Json::Type::kString:
      *out += "string " + std::to_string(value.String().size()) + " " + value.String();
      return;
    default:
      *out += value.type() == Json::Type::kArray ? "[" : "{";
      for (size_t i = 0; i < value.size(); ++i) {
        if (value.type() == Json::Type::kObject) {
          *out += value.keys()[i] + ": ";
          Write(value[value.keys()[i]], out);
        } else {
          Write(value[i], out);
        }
        *out += ";";
      }
      *out += value.type() == Json::Type::kArray ? "]" : "}";
  }
}

}  // namespace

// The number of bytes of the result, of which at most `room` are written.
extern "C" size_t ReadJson(const char* text, size_t size, char* out, size_t room) {
  std::string said;
  try {
    Write(Json::Parse({text, size}), &said);
  } catch (const pyruntime::Error& error) {
    said = error.what();
  }
  std::memcpy(out, said.data(), said.size() < room ? said.size() : room);
  return said.size();
}
