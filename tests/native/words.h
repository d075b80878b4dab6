// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// The words of the steps that a test asks native code for, and what it says of an error.
#ifndef PYRUNTIME_TESTS_NATIVE_WORDS_H_
#define PYRUNTIME_TESTS_NATIVE_WORDS_H_

#include <sstream>
#include <string>

#include "common.h"

namespace testing {

using Words = std::istringstream;

// The code and the message of an error.
inline std::string Say(TRITONSERVER_Error* error) {
  const Error owned(error);
  if (error == nullptr) return "ok";
  return std::string(TRITONSERVER_ErrorCodeString(error)) + ": " + TRITONSERVER_ErrorMessage(error);
}

template <class Value>
Value Next(Words& words) {
  Value value{};
  words >> value;
  return value;
}

inline std::string Word(Words& words) { return Next<std::string>(words); }

inline std::string Rest(Words& words) {
  std::string text;
  std::getline(words >> std::ws, text);
  return text;
}

}  // namespace testing

#endif  // PYRUNTIME_TESTS_NATIVE_WORDS_H_
