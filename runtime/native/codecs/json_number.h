// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Numbers in JSON, both ways.
//
// Most numbers need nothing but arithmetic that is exact. All others need the standard library to convert floating-point
// numbers: GCC's has been able to since version 11. Where it is not, they are left to the reference.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pyruntime {

// An integer from -2^63 to 2^64 - 1, or any other number as the double that is nearest. As orjson has it, "-0" is the
// integer 0, and integers beyond that range are doubles.
struct JsonNumber {
  bool is_integer;
  bool is_negative;
  uint64_t magnitude;  // of an integer
  double real;         // of any other number

  double AsDouble() const {
    if (!is_integer) return real;
    const auto value = static_cast<double>(magnitude);
    return is_negative && magnitude != 0 ? -value : value;
  }
};

// Takes a number from the beginning. False for what is none, and for those that are too large or too small for a double.
bool ReadJsonNumber(const char** at, const char* end, JsonNumber* number);

// Adds a number as orjson does. False for those that are not finite, and from 1e16 on, where releases of orjson differ.
bool AddJsonDouble(double value, std::string* json);

}  // namespace pyruntime
