// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Errors of the C interface: a null pointer is success; the receiver of any other pointer owns it.

#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "triton/core/tritonserver.h"

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  std::string message;
};

namespace pyruntime {

using ErrorPtr = std::unique_ptr<TRITONSERVER_Error>;

// A new error, for a function of the C interface to return.
TRITONSERVER_Error* NewError(TRITONSERVER_Error_Code code, std::string message);

// The error for an argument that is not allowed, such as null: "NAME: WHAT".
TRITONSERVER_Error* InvalidArgument(const char* function, const std::string& what);

// Takes over an error that a backend returned: copies its value, and deletes it.
struct Failure {
  TRITONSERVER_Error_Code code = TRITONSERVER_ERROR_INTERNAL;
  std::string message;
};
Failure TakeFailure(TRITONSERVER_Error* error);

// The code of an error of this server. Triton has no code for an exceeded deadline.
TRITONSERVER_Error_Code CodeOf(int code);

// The reverse: a new error, or null if nothing has failed.
TRITONSERVER_Error* ToError(std::optional<Failure> failure);

}  // namespace pyruntime

// Runs the body of a function of the C interface, and converts exceptions, such as std::bad_alloc, to errors. Every
// function that allocates uses it.
#define PYRUNTIME_GUARD(...)                                                          \
  do {                                                                                \
    try __VA_ARGS__ catch (const std::exception& exc) {                               \
      return ::pyruntime::NewError(TRITONSERVER_ERROR_INTERNAL, exc.what());          \
    }                                                                                 \
  } while (false)
