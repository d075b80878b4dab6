// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The server as native code sees it: one object, whose calls Python answers on its event loop.
//
// A native thread that calls a function of the server waits for Python. It must not be Python's own thread, which would
// wait for itself: there such a call fails.

#pragma once

#include <Python.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "callbacks.h"
#include "error.h"
#include "queue.h"
#include "request.h"
#include "triton/core/tritonserver.h"

namespace pyruntime {

// An answer of Python: nothing, a fact, flags, a text (JSON, or metrics), or memory of a GPU.
using Answer = std::variant<std::monostate, bool, int64_t, std::string, GpuBlock>;

// A call of native code to the server: shared by the thread that waits for the answer, if any, and by the Python object
// that gives it.
class ServerCall {
 public:
  explicit ServerCall(std::string method) : method_(std::move(method)) {}
  virtual ~ServerCall() = default;

  const std::string& method() const { return method_; }
  // A new tuple; null with a Python exception set. With the GIL, while the call is open.
  virtual PyObject* Arguments() = 0;

  // Any thread; only the first of these calls counts.
  void Finish(Answer answer);
  void Fail(Failure failure);

  enum class State { kOpen, kAnswered, kFailed };
  State state();

  // Python has deleted the call, so threads that still wait for it must be released.
  virtual void Abandon();

  // Waits for one of them. Without the GIL.
  std::optional<Failure> Wait(Answer* answer);

 private:
  void End(std::variant<Answer, Failure> outcome);

  const std::string method_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<std::variant<Answer, Failure>> outcome_;
};

using ServerCallPtr = std::shared_ptr<ServerCall>;

// A query that has a name and plain values.
class Query : public ServerCall {
 public:
  using Files = std::vector<std::pair<std::string, std::string>>;
  using Argument = std::variant<std::string, int64_t, bool, Files>;

  Query(std::string method, std::vector<Argument> arguments)
      : ServerCall(std::move(method)), arguments_(std::move(arguments)) {}
  PyObject* Arguments() override;

 private:
  const std::vector<Argument> arguments_;
};

// The origin of calls on this thread: a model that initialises, or an instance that executes. Callers of backends
// declare one around each call. Calls to the server meanwhile have this origin; calls on the backend's own threads have
// none.
class CallerScope {
 public:
  // `request` is the first one of the batch that is executed, null if there is none.
  CallerScope(const std::string& model, RequestStatePtr request);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

  const std::string& model() const { return model_; }
  const RequestStatePtr& request() const { return request_; }

  // The innermost one of this thread; null if there is none.
  static const CallerScope* Now();

 private:
  const std::string& model_;
  const RequestStatePtr request_;
  const CallerScope* const outer_;
};

// The name of the model that is being initialised or finalised on this thread; "" if there is none.
std::string LoadingModel();

// Makes the Python object of a call; null with a Python exception set. With the GIL.
PyObject* NewCall(const ServerCallPtr& call);

}  // namespace pyruntime

struct TRITONSERVER_Server {
  // The only server. Made at its first use and never destroyed, like the Host.
  static TRITONSERVER_Server& Get();

  // Passes a call to Python and waits until it is answered.
  std::optional<pyruntime::Failure> Ask(const pyruntime::ServerCallPtr& call, pyruntime::Answer* answer);

  // Passes a call to Python without waiting.
  void Tell(const pyruntime::ServerCallPtr& call);

  // Whether this is Python's thread, which would wait for itself if it waited for an answer.
  bool IsPythonThread() const;

  // The number of a new call.
  int64_t NextCall() { return ++last_call_; }

  // Whether calls are answered. If not, all waiting calls fail now, and later ones at once. With the GIL, so that no
  // call fails while its arguments are read.
  void Accept(bool accepting);

  pyruntime::CallbackPool& callbacks() { return callbacks_; }

  // Python's type for calls, and the thread that takes events; set with the GIL.
  PyTypeObject* call_type = nullptr;
  std::atomic<std::thread::id> python_thread{};

 private:
  pyruntime::CallbackPool callbacks_;
  std::atomic<int64_t> last_call_{0};
  std::mutex mutex_;
  bool accepting_ = true;
  std::unordered_set<pyruntime::ServerCallPtr> waiting_;
};
