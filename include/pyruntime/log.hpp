// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The server's log.

#pragma once

#include <triton/core/tritonserver.h>

#include <string>

#include "error.hpp"

namespace pyruntime {

// Writes a line into the server's log. It bears the place of the call, which nobody needs to pass.
inline void Log(TRITONSERVER_LogLevel level, const std::string& message, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) noexcept {
  // There is nowhere to report that a report has failed.
  const detail::ErrorHandle ignored(TRITONSERVER_LogMessage(level, file, line, message.c_str()));
}

inline void LogInfo(const std::string& message, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) noexcept {
  Log(TRITONSERVER_LOG_INFO, message, file, line);
}

inline void LogWarn(const std::string& message, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) noexcept {
  Log(TRITONSERVER_LOG_WARN, message, file, line);
}

inline void LogError(const std::string& message, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) noexcept {
  Log(TRITONSERVER_LOG_ERROR, message, file, line);
}

inline void LogVerbose(const std::string& message, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) noexcept {
  Log(TRITONSERVER_LOG_VERBOSE, message, file, line);
}

namespace detail {

// Takes what a function of the C API has returned where nothing may be thrown: an error goes into the log.
inline void LogIfError(TRITONSERVER_Error* returned) noexcept {
  const ErrorHandle error(returned);
  if (error != nullptr) {
    const ErrorHandle ignored(
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error.get())));
  }
}

}  // namespace detail

}  // namespace pyruntime
