// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The server as native code sees it: one object, whose questions Python answers on its event loop.
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

// What Python answers with: nothing, a fact, flags, or a text (JSON, or metrics).
using Answer = std::variant<std::monostate, bool, int64_t, std::string>;

// Something that native code wants of the server: shared by the thread that waits for the answer, if any, and by the
// Python object that gives it.
class ServerCall {
 public:
  explicit ServerCall(std::string method) : method_(std::move(method)) {}
  virtual ~ServerCall() = default;

  const std::string& method() const { return method_; }
  // A new tuple; null with a Python exception set. With the GIL, while the call is open.
  virtual PyObject* Arguments() = 0;

  // Any thread; what comes after the first of these is ignored.
  void Finish(Answer answer);
  void Fail(Failure failure);

  enum class State { kOpen, kAnswered, kFailed };
  State state();

  // Python has deleted the call, so threads that still wait for it must be released.
  virtual void Abandon();

  // Waits for either. Without the GIL.
  std::optional<Failure> Wait(Answer* answer);

 private:
  void End(std::variant<Answer, Failure> outcome);

  const std::string method_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<std::variant<Answer, Failure>> outcome_;
};

using ServerCallPtr = std::shared_ptr<ServerCall>;

// A question that is asked by name, with plain values.
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

// On whose behalf this thread calls a function of a backend: a model that initialises, or an instance that executes.
// Those who call backends have one around each call. What the backend asks of the server meanwhile is known to come
// from there; what its own threads ask is not.
class CallerScope {
 public:
  // `request` is the first one of the batch that is executed, null while none is.
  CallerScope(const std::string& model, RequestStatePtr request);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

  const std::string& model() const { return model_; }
  const RequestStatePtr& request() const { return request_; }

  // Of this thread; null outside of all.
  static const CallerScope* Now();

 private:
  const std::string& model_;
  const RequestStatePtr request_;
  const CallerScope* const outer_;
};

// The name of the model that this thread is initialising or finalising a part of; "" if it is not.
std::string LoadingModel();

// Makes a Python Call of it; null with a Python exception set. With the GIL.
PyObject* NewCall(const ServerCallPtr& call);

}  // namespace pyruntime

struct TRITONSERVER_Server {
  // The one that there is. Made at first use and never destroyed, as the Host.
  static TRITONSERVER_Server& Get();

  // Hands a call to Python and waits until it is answered.
  std::optional<pyruntime::Failure> Ask(const pyruntime::ServerCallPtr& call, pyruntime::Answer* answer);

  // Hands a call to Python. Nobody waits.
  void Tell(const pyruntime::ServerCallPtr& call);

  // Whether this thread would wait for itself if it waited for Python.
  bool IsPythonThread() const;

  // The number of a new call.
  int64_t NextCall() { return ++last_call_; }

  // Whether calls are answered. If not, those that wait fail now, and all others at once. With the GIL: so no call
  // fails whose arguments are being read.
  void Accept(bool accepting);

  pyruntime::CallbackPool& callbacks() { return callbacks_; }

  // Python's type, and the thread that takes its events; set with the GIL.
  PyTypeObject* call_type = nullptr;
  std::atomic<std::thread::id> python_thread{};

 private:
  pyruntime::CallbackPool callbacks_;
  std::atomic<int64_t> last_call_{0};
  std::mutex mutex_;
  bool accepting_ = true;
  std::unordered_set<pyruntime::ServerCallPtr> waiting_;
};
