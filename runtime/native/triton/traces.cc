// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "traces.h"

#include <cstdlib>
#include <utility>

#include "arguments.h"
#include "backend.h"
#include "error.h"
#include "host.h"
#include "python.h"

using Trace = TRITONSERVER_InferenceTrace;

namespace pyruntime {
namespace {

// An activity of a backend for a traced request.
class ActivityEvent : public Event {
 public:
  ActivityEvent(RequestStatePtr state, uint64_t timestamp_ns, std::string name)
      : state_(std::move(state)), timestamp_ns_(timestamp_ns), name_(std::move(name)) {}

  PyObject* ToPython() override {
    const char* activity = TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_TRACE_CUSTOM_ACTIVITY);
    return Py_BuildValue(
        "(iOKsN)", kActivity, state_->job(), static_cast<unsigned long long>(timestamp_ns_), activity,
        pyruntime::ToPython(name_));
  }

 private:
  RequestStatePtr state_;
  uint64_t timestamp_ns_;
  std::string name_;
};

void DeleteTrace(Trace* trace) { std::unique_ptr<Trace>{trace}; }

}  // namespace

Trace* TraceOf(TRITONBACKEND_Request* request) {
  if (request->trace_context.empty() || request->trace != nullptr) return request->trace.get();
  auto trace = std::make_unique<Trace>();
  trace->server_context = request->trace_context;
  // The context of a trace of the server alone is its number.
  if (trace->server_context.front() == '{') trace->context = trace->server_context;
  trace->id = Host::Get().NextTraceId();
  trace->model_name = request->state->model()->name;
  trace->model_version = static_cast<int64_t>(request->state->model()->version);
  trace->request_id = request->state->id();
  trace->request = request->state;
  request->trace = {trace.release(), &DeleteTrace};
  return request->trace.get();
}

}  // namespace pyruntime

TRITONSERVER_Error* TRITONSERVER_InferenceTraceDelete(Trace* trace) {
  if (trace != nullptr && !trace->is_child) {
    return pyruntime::InvalidArgument(__func__, "the trace belongs to its request");
  }
  pyruntime::DeleteTrace(trace);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceId(Trace* trace, uint64_t* id) {
  PYRUNTIME_GET(trace, id, trace->id);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceParentId(Trace* trace, uint64_t* parent_id) {
  PYRUNTIME_GET(trace, parent_id, trace->parent_id);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceModelName(Trace* trace, const char** model_name) {
  PYRUNTIME_GET(trace, model_name, trace->model_name.c_str());
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceModelVersion(Trace* trace, int64_t* model_version) {
  PYRUNTIME_GET(trace, model_version, trace->model_version);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceRequestId(Trace* trace, const char** request_id) {
  PYRUNTIME_GET(trace, request_id, trace->request_id.c_str());
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceSpawnChildTrace(Trace* trace, Trace** child_trace) {
  PYRUNTIME_REQUIRE(child_trace);
  *child_trace = nullptr;
  // A request that is not traced has none, and its calls have none either.
  if (trace == nullptr) return nullptr;
  PYRUNTIME_GUARD({
    auto child = std::make_unique<Trace>(*trace);
    child->id = pyruntime::Host::Get().NextTraceId();
    child->parent_id = trace->id;
    child->is_child = true;
    *child_trace = child.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceReportActivity(
    Trace* trace, uint64_t timestamp, const char* activity_name) {
  PYRUNTIME_REQUIRE(activity_name);
  if (trace == nullptr) return nullptr;
  PYRUNTIME_GUARD({
    auto state = trace->request.lock();
    if (state == nullptr) return nullptr;
    pyruntime::Host::Get().queue().Push(
        std::make_unique<pyruntime::ActivityEvent>(std::move(state), timestamp, activity_name));
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceSetContext(Trace* trace, const char* trace_context) {
  PYRUNTIME_REQUIRE(trace);
  PYRUNTIME_REQUIRE(trace_context);
  PYRUNTIME_GUARD({
    trace->context = trace_context;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceContext(Trace* trace, const char** trace_context) {
  PYRUNTIME_GET(trace, trace_context, trace->context.c_str());
}
