// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Log messages of backends go through the queue of events into the server's log.

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "arguments.h"
#include "error.h"
#include "host.h"
#include "python.h"
#include "queue.h"

namespace pyruntime {
namespace {

// The numbers of the levels in an event: see _triton.pyi. They are also the bits of Host::log_levels.
constexpr int kError = 0;
constexpr int kWarning = 1;
constexpr int kInfo = 2;
constexpr int kVerbose = 3;
constexpr int kNone = -1;

int LevelOf(TRITONSERVER_LogLevel level) {
  switch (level) {
    case TRITONSERVER_LOG_INFO: return kInfo;
    case TRITONSERVER_LOG_WARN: return kWarning;
    case TRITONSERVER_LOG_ERROR: return kError;
    case TRITONSERVER_LOG_VERBOSE: return kVerbose;
  }
  return kNone;
}

bool IsEnabled(int level) {
  const Host& host = Host::Get();
  if (level == kVerbose) return host.log_verbose > 0;
  return level != kNone && (host.log_levels >> level & 1) != 0;
}

class LogEvent : public Event {
 public:
  // The most messages that wait for Python, so that a backend that logs faster than the event loop writes does not fill
  // the memory. Further messages are only counted.
  static constexpr unsigned kWaitingMax = 10'000;

  LogEvent(int level, std::string file, int line, std::string message, unsigned lost)
      : level_(level), file_(std::move(file)), line_(line), message_(std::move(message)), lost_(lost) {
    ++Host::Get().log_waiting;
  }

  ~LogEvent() override { --Host::Get().log_waiting; }

  PyObject* ToPython() override {
    if (lost_ != 0) message_ += "\n" + std::to_string(lost_) + " messages before this one were too many to be kept";
    return Py_BuildValue(
        "(iiNiN)", kLog, level_, pyruntime::ToPython(file_), line_, pyruntime::ToPython(message_));
  }

 private:
  int level_;
  std::string file_;
  int line_;
  std::string message_;
  unsigned lost_;
};

void Log(int level, const char* path, int line, const char* message) {
  Host& host = Host::Get();
  if (host.log_waiting >= LogEvent::kWaitingMax) {
    ++host.log_lost;
    return;
  }
  // Compilers write the path of the source file as they were given it; its name is what Triton writes.
  const char* slash = std::strrchr(path, '/');
  host.queue().Push(
      std::make_unique<LogEvent>(level, slash == nullptr ? path : slash + 1, line, message, host.log_lost.exchange(0)));
}

}  // namespace
}  // namespace pyruntime

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level) {
  return pyruntime::IsEnabled(pyruntime::LevelOf(level));
}

TRITONSERVER_Error* TRITONSERVER_LogMessage(
    TRITONSERVER_LogLevel level, const char* filename, const int line, const char* msg) {
  const int wanted = pyruntime::LevelOf(level);
  PYRUNTIME_GUARD({
    if (wanted == pyruntime::kNone) {
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INVALID_ARG, "unknown logging level '" + std::to_string(static_cast<int>(level)) + "'");
    }
    PYRUNTIME_REQUIRE(filename);
    PYRUNTIME_REQUIRE(msg);
    if (pyruntime::IsEnabled(wanted)) pyruntime::Log(wanted, filename, line, msg);
    return nullptr;
  });
}
