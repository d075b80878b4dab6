// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Reports each request's trace. Responses have no outputs, but parameters: "traced", and if so "id", "context",
// "context_now" (after it was set to "{}"), "model", "version", "request", "child", "parent" (the child's),
// "child_context", and "refused", the error when the trace is deleted. Reports two activities: "BEGIN" at 1000 ns, and
// "CHILD" at 2000 ns with the child.
#include <cstdint>
#include <string>

#include "common.h"

namespace {

using testing::Must;

using Trace = TRITONSERVER_InferenceTrace;

void Say(TRITONBACKEND_Response* response, const char* name, const char* text) {
  Must(TRITONBACKEND_ResponseSetStringParameter(response, name, text));
}

void Say(TRITONBACKEND_Response* response, const char* name, uint64_t number) {
  Must(TRITONBACKEND_ResponseSetIntParameter(response, name, static_cast<int64_t>(number)));
}

const char* ContextOf(Trace* trace) {
  const char* context = nullptr;
  Must(TRITONSERVER_InferenceTraceContext(trace, &context));
  return context;
}

void SayNames(TRITONBACKEND_Response* response, Trace* trace) {
  const char* model = nullptr;
  const char* request = nullptr;
  int64_t version = 0;
  Must(TRITONSERVER_InferenceTraceModelName(trace, &model));
  Must(TRITONSERVER_InferenceTraceModelVersion(trace, &version));
  Must(TRITONSERVER_InferenceTraceRequestId(trace, &request));
  Say(response, "model", model);
  Say(response, "version", static_cast<uint64_t>(version));
  Say(response, "request", request);
}

void SayChild(TRITONBACKEND_Response* response, Trace* trace) {
  Trace* child = nullptr;
  uint64_t id = 0;
  uint64_t parent = 0;
  Must(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  Must(TRITONSERVER_InferenceTraceId(child, &id));
  Must(TRITONSERVER_InferenceTraceParentId(child, &parent));
  Must(TRITONSERVER_InferenceTraceReportActivity(child, 2000, "CHILD"));
  Say(response, "child", id);
  Say(response, "parent", parent);
  Say(response, "child_context", ContextOf(child));
  Must(TRITONSERVER_InferenceTraceDelete(child));
}

TRITONSERVER_Error* Answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  Trace* trace = nullptr;
  uint64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestTrace(request, &trace));
  Must(TRITONBACKEND_ResponseSetBoolParameter(response, "traced", trace != nullptr));
  if (trace == nullptr) return nullptr;
  RETURN_IF_ERROR(TRITONSERVER_InferenceTraceReportActivity(trace, 1000, "BEGIN"));
  RETURN_IF_ERROR(TRITONSERVER_InferenceTraceId(trace, &id));
  Say(response, "id", id);
  Say(response, "context", ContextOf(trace));
  SayNames(response, trace);
  SayChild(response, trace);
  RETURN_IF_ERROR(TRITONSERVER_InferenceTraceSetContext(trace, "{}"));
  Say(response, "context_now", ContextOf(trace));
  const testing::Error refused(TRITONSERVER_InferenceTraceDelete(trace));
  Say(response, "refused", TRITONSERVER_ErrorMessage(refused.get()));
  return nullptr;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  testing::ExecuteEach(instance, requests, count, false, Answer);
  return nullptr;
}

}  // extern "C"
