// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "json_number.h"

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cmath>

namespace pyruntime {
namespace {

// Integers up to this are doubles, and so are powers of ten up to the one after it: one operation with two of these is
// rounded correctly, if it is one of doubles.
constexpr uint64_t kExactMax = uint64_t{1} << 53;
constexpr bool kIsExact = FLT_EVAL_METHOD == 0;
constexpr int kExactPower = 22;
constexpr double kPowers[kExactPower + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                             1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
// An exponent beyond this one may be any, as the number is.
constexpr int kExponentMax = 9999;
// From this on numbers are written with a positive exponent, and below this with a negative one.
constexpr double kLarge = 1e16;
constexpr int kSmallPlaces = -5;

bool StartsWithDigit(const char* at, const char* end) { return at < end && *at >= '0' && *at <= '9'; }

// The room for a number: 17 digits, five zeros before them, and a point, or an exponent.
constexpr size_t kNumberBytesMax = 48;

// The digits of a number without its point, unless they are too many.
struct Digits {
  uint64_t value = 0;
  bool overflows = false;

  void Take(char digit) {
    const auto each = static_cast<uint64_t>(digit - '0');
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) || __builtin_add_overflow(value, each, &value)) {
      overflows = true;
    }
  }
};

// The text of a number, which has been checked, as a double.
bool ConvertDouble(const char* begin, const char* end, double* value) {
#ifdef __cpp_lib_to_chars
  const auto [stop, error] = std::from_chars(begin, end, *value);
  return error == std::errc() && stop == end;
#else
  (void)begin, (void)end, (void)value;
  return false;
#endif
}

// Takes an exponent, behind its letter.
bool ReadExponent(const char** at, const char* end, int* exponent) {
  const bool is_negative = *at < end && **at == '-';
  if (*at < end && (**at == '-' || **at == '+')) ++*at;
  if (!StartsWithDigit(*at, end)) return false;
  int value = 0;
  for (; StartsWithDigit(*at, end); ++*at) {
    if (value <= kExponentMax) value = value * 10 + (**at - '0');
  }
  *exponent += is_negative ? -value : value;
  return true;
}

// Adds a number as orjson does that is written as a digit, perhaps a point and more of them, and an exponent of two or
// three digits.
void AddPlaces(const char* begin, const char* end, std::string* json) {
  const char* mark = end - (end[-4] == 'e' ? 4 : 5);
  int exponent = 0;
  for (const char* at = mark + 2; at < end; ++at) exponent = exponent * 10 + (*at - '0');
  if (mark[1] == '-') exponent = -exponent;
  const int places = exponent + 1;  // before the point
  const char* rest = begin + 2;
  const size_t more = mark > rest ? static_cast<size_t>(mark - rest) : 0;
  char made[kNumberBytesMax];
  char* at = made;
  if (places <= kSmallPlaces) {
    at = std::copy(begin, mark + 2, at);  // with the sign
    at = std::to_chars(at, made + sizeof made, -exponent).ptr;
  } else if (places <= 0) {
    *at++ = '0';
    *at++ = '.';
    at = std::fill_n(at, -places, '0');
    *at++ = *begin;
    at = std::copy_n(rest, more, at);
  } else {
    const auto before = static_cast<size_t>(exponent);
    *at++ = *begin;
    at = std::copy_n(rest, std::min(before, more), at);
    if (more < before) at = std::fill_n(at, before - more, '0');
    *at++ = '.';
    if (more > before) at = std::copy_n(rest + before, more - before, at);
    else *at++ = '0';
  }
  json->append(made, at);
}

}  // namespace

bool ReadJsonNumber(const char** at, const char* end, JsonNumber* number) {
  const char* const begin = *at;
  number->is_negative = *at < end && **at == '-';
  if (number->is_negative) ++*at;
  if (!StartsWithDigit(*at, end)) return false;
  Digits digits;
  if (**at == '0') {
    ++*at;
    if (StartsWithDigit(*at, end)) return false;
  }
  for (; StartsWithDigit(*at, end); ++*at) digits.Take(**at);
  const bool has_point = *at < end && **at == '.';
  int exponent = 0;
  if (has_point) {
    ++*at;
    if (!StartsWithDigit(*at, end)) return false;
    for (; StartsWithDigit(*at, end); ++*at, --exponent) digits.Take(**at);
  }
  const bool has_exponent = *at < end && (**at == 'e' || **at == 'E');
  if (has_exponent) {
    ++*at;
    if (!ReadExponent(at, end, &exponent)) return false;
  }
  number->magnitude = digits.value;
  number->is_integer = !has_point && !has_exponent && !digits.overflows &&
                       (!number->is_negative || digits.value <= uint64_t{1} << 63);
  if (number->is_integer) return true;
  if (!kIsExact || digits.overflows || digits.value > kExactMax || std::abs(exponent) > kExactPower) {
    return ConvertDouble(begin, *at, &number->real);
  }
  const auto value = static_cast<double>(digits.value);
  const double real = exponent < 0 ? value / kPowers[-exponent] : value * kPowers[exponent];
  number->real = number->is_negative ? -real : real;
  return true;
}

bool AddJsonDouble(double value, std::string* json) {
  if (std::signbit(value)) *json += '-';
  const double size = std::fabs(value);
  if (!(size < kLarge)) return false;
  char text[kNumberBytesMax];
  if (size < static_cast<double>(kExactMax) && size == std::floor(size)) {
    const auto [end, error] = std::to_chars(text, text + sizeof text, static_cast<uint64_t>(size));
    (void)error;  // there is room
    json->append(text, end);
    *json += ".0";
    return true;
  }
#ifdef __cpp_lib_to_chars
  const auto [end, error] = std::to_chars(text, text + sizeof text, size, std::chars_format::scientific);
  if (error != std::errc()) return false;
  AddPlaces(text, end, json);
  return true;
#else
  return false;
#endif
}

}  // namespace pyruntime
