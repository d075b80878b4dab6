// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls from native code to Python, and the wait for their answers.

#include <utility>

#include "host.h"
#include "python.h"
#include "server.h"

namespace pyruntime {
namespace {

const char kExiting[] = "Server exiting";
const char kOnPythonThread[] = "the server cannot be asked by the thread that answers for it";
const char kAbandoned[] = "the server has not answered";

thread_local const CallerScope* t_caller = nullptr;

// The event of a call.
class CallEvent : public Event {
 public:
  explicit CallEvent(ServerCallPtr call) : call_(std::move(call)) {}

  // A call that is never drained, because Python has ended, is abandoned too.
  ~CallEvent() override {
    if (call_ != nullptr) call_->Abandon();
  }

  PyObject* ToPython() override {
    TRITONSERVER_Server::Get().python_thread = std::this_thread::get_id();
    // A call that failed meanwhile has no waiting thread, and no readable arguments.
    if (call_->state() != ServerCall::State::kOpen) return nullptr;
    Ref call(NewCall(call_));
    if (!call) return nullptr;
    call_ = nullptr;  // the Python object abandons it now
    Ref kind(PyLong_FromLong(kCall));
    return kind ? PyTuple_Pack(2, kind.get(), call.get()) : nullptr;
  }

 private:
  ServerCallPtr call_;
};

PyObject* FilesToPython(const Query::Files& files) {
  Ref result(PyDict_New());
  if (!result) return nullptr;
  for (const auto& [path, content] : files) {
    Ref key(ToPython(path));
    Ref value(PyBytes_FromStringAndSize(content.data(), static_cast<Py_ssize_t>(content.size())));
    if (!key || !value || PyDict_SetItem(result.get(), key.get(), value.get()) < 0) return nullptr;
  }
  return result.release();
}

PyObject* ArgumentToPython(const Query::Argument& argument) {
  if (const auto* text = std::get_if<std::string>(&argument)) return ToPython(*text);
  if (const auto* number = std::get_if<int64_t>(&argument)) return PyLong_FromLongLong(*number);
  if (const auto* fact = std::get_if<bool>(&argument)) return PyBool_FromLong(*fact);
  return FilesToPython(std::get<Query::Files>(argument));
}

}  // namespace

void ServerCall::Finish(Answer answer) { End(std::move(answer)); }

void ServerCall::Fail(Failure failure) { End(std::move(failure)); }

void ServerCall::Abandon() { Fail({TRITONSERVER_ERROR_INTERNAL, kAbandoned}); }

void ServerCall::End(std::variant<Answer, Failure> outcome) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (outcome_) return;
  outcome_ = std::move(outcome);
  ended_.notify_all();
}

ServerCall::State ServerCall::state() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!outcome_) return State::kOpen;
  return std::holds_alternative<Answer>(*outcome_) ? State::kAnswered : State::kFailed;
}

std::optional<Failure> ServerCall::Wait(Answer* answer) {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return outcome_.has_value(); });
  if (auto* failure = std::get_if<Failure>(&*outcome_)) return *failure;
  *answer = std::get<Answer>(*outcome_);
  return std::nullopt;
}

PyObject* Query::Arguments() {
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(arguments_.size())));
  if (!tuple) return nullptr;
  Py_ssize_t index = 0;
  for (const Argument& argument : arguments_) {
    PyObject* value = ArgumentToPython(argument);
    if (value == nullptr || PyTuple_SetItem(tuple.get(), index++, value) < 0) return nullptr;
  }
  return tuple.release();
}

CallerScope::CallerScope(const std::string& model, RequestStatePtr request)
    : model_(model), request_(std::move(request)), outer_(t_caller) {
  t_caller = this;
}

CallerScope::~CallerScope() { t_caller = outer_; }

const CallerScope* CallerScope::Now() { return t_caller; }

std::string LoadingModel() {
  const CallerScope* caller = CallerScope::Now();
  return caller != nullptr && caller->request() == nullptr ? caller->model() : std::string();
}

}  // namespace pyruntime

TRITONSERVER_Server& TRITONSERVER_Server::Get() {
  static TRITONSERVER_Server* const server = new TRITONSERVER_Server;
  return *server;
}

bool TRITONSERVER_Server::IsPythonThread() const {
  return pyruntime::HoldsGil::Now() || std::this_thread::get_id() == python_thread.load();
}

std::optional<pyruntime::Failure> TRITONSERVER_Server::Ask(
    const pyruntime::ServerCallPtr& call, pyruntime::Answer* answer) {
  using pyruntime::Failure;
  if (IsPythonThread()) return Failure{TRITONSERVER_ERROR_INTERNAL, pyruntime::kOnPythonThread};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!accepting_) return Failure{TRITONSERVER_ERROR_UNAVAILABLE, pyruntime::kExiting};
    waiting_.insert(call);
  }
  Tell(call);
  const std::optional<Failure> failure = call->Wait(answer);
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(call);
  return failure;
}

void TRITONSERVER_Server::Tell(const pyruntime::ServerCallPtr& call) {
  pyruntime::Host::Get().queue().Push(std::make_unique<pyruntime::CallEvent>(call));
}

void TRITONSERVER_Server::Accept(bool accepting) {
  std::unordered_set<pyruntime::ServerCallPtr> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    accepting_ = accepting;
    if (!accepting) waiting.swap(waiting_);
  }
  for (const pyruntime::ServerCallPtr& call : waiting) {
    call->Fail({TRITONSERVER_ERROR_UNAVAILABLE, pyruntime::kExiting});
  }
}
