// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "error.h"

#include <utility>

namespace pyruntime {

TRITONSERVER_Error* NewError(TRITONSERVER_Error_Code code, std::string message) {
  return ErrorPtr(new TRITONSERVER_Error{code, std::move(message)}).release();
}

TRITONSERVER_Error* InvalidArgument(const char* function, const std::string& what) {
  return NewError(TRITONSERVER_ERROR_INVALID_ARG, std::string(function) + ": " + what);
}

Failure TakeFailure(TRITONSERVER_Error* error) {
  ErrorPtr owned(error);
  if (owned == nullptr) return {};
  return {owned->code, std::move(owned->message)};
}

TRITONSERVER_Error_Code CodeOf(int code) {
  return code > TRITONSERVER_ERROR_CANCELLED ? TRITONSERVER_ERROR_UNAVAILABLE
                                             : static_cast<TRITONSERVER_Error_Code>(code);
}

TRITONSERVER_Error* ToError(std::optional<Failure> failure) {
  return failure ? NewError(failure->code, std::move(failure->message)) : nullptr;
}

}  // namespace pyruntime

using pyruntime::ErrorPtr;

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* msg) {
  // Python has only these codes.
  const bool known = code >= TRITONSERVER_ERROR_UNKNOWN && code <= TRITONSERVER_ERROR_CANCELLED;
  return pyruntime::NewError(known ? code : TRITONSERVER_ERROR_UNKNOWN, msg == nullptr ? "" : msg);
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) { ErrorPtr{error}; }

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* error) {
  return error == nullptr ? TRITONSERVER_ERROR_UNKNOWN : error->code;
}

const char* TRITONSERVER_ErrorCodeString(TRITONSERVER_Error* error) {
  switch (TRITONSERVER_ErrorCode(error)) {
    case TRITONSERVER_ERROR_UNKNOWN: return "Unknown";
    case TRITONSERVER_ERROR_INTERNAL: return "Internal";
    case TRITONSERVER_ERROR_NOT_FOUND: return "Not found";
    case TRITONSERVER_ERROR_INVALID_ARG: return "Invalid argument";
    case TRITONSERVER_ERROR_UNAVAILABLE: return "Unavailable";
    case TRITONSERVER_ERROR_UNSUPPORTED: return "Unsupported";
    case TRITONSERVER_ERROR_ALREADY_EXISTS: return "Already exists";
    case TRITONSERVER_ERROR_CANCELLED: return "Cancelled";
  }
  return "<invalid code>";
}

const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) {
  return error == nullptr ? "" : error->message.c_str();
}
