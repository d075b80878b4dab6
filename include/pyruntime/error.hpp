// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Errors. Inside a backend they are exceptions; the C API has error objects, and the two are exchanged here alone.

#pragma once

#include <triton/core/tritonserver.h>

#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace pyruntime {

// The reason of a failure. An Error that a model throws while it executes goes to the client; one that it throws while
// it is loaded goes to the operator of the server. Any other exception counts as an Error of code INTERNAL.
class Error : public std::runtime_error {
 public:
  Error(TRITONSERVER_Error_Code code, const std::string& message) : std::runtime_error(message), code_(code) {}

  TRITONSERVER_Error_Code code() const noexcept { return code_; }

 private:
  TRITONSERVER_Error_Code code_;
};

// An Error that says that a request, or a configuration, is wrong.
inline Error InvalidArgument(const std::string& message) { return {TRITONSERVER_ERROR_INVALID_ARG, message}; }

namespace detail {

struct ErrorDeleter {
  void operator()(TRITONSERVER_Error* error) const noexcept { TRITONSERVER_ErrorDelete(error); }
};
using ErrorHandle = std::unique_ptr<TRITONSERVER_Error, ErrorDeleter>;

inline ErrorHandle MakeHandle(const Error& error) {
  return ErrorHandle(TRITONSERVER_ErrorNew(error.code(), error.what()));
}

// The exception that is being handled, as an Error. To be called inside a catch block only.
inline Error CurrentError() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {TRITONSERVER_ERROR_UNAVAILABLE, "out of memory"};
  } catch (const std::exception& error) {
    return {TRITONSERVER_ERROR_INTERNAL, error.what()};
  } catch (...) {
    return {TRITONSERVER_ERROR_INTERNAL, "the backend threw something that is no std::exception"};
  }
}

// Calls a function for the C API: nullptr, or an error that the caller owns in place of what the function threw.
template <typename Function>
TRITONSERVER_Error* Guarded(Function&& function) noexcept {
  try {
    std::forward<Function>(function)();
    return nullptr;
  } catch (...) {
    return MakeHandle(CurrentError()).release();
  }
}

}  // namespace detail

// Throws what a function of the C API has returned, if that is an error.
inline void Check(TRITONSERVER_Error* returned) {
  const detail::ErrorHandle error(returned);
  if (error != nullptr) {
    throw Error(TRITONSERVER_ErrorCode(error.get()), TRITONSERVER_ErrorMessage(error.get()));
  }
}

}  // namespace pyruntime
