// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// The ID of a batch's first request selects one of the functions below; their findings become the parameters of the
// response to the last request.
#include <cstdint>
#include <cstring>
#include <string>

#include "report.h"

namespace {

using testing::FactoryOf;
using testing::Must;
using testing::Release;
using testing::Report;
using testing::Requests;
using testing::ResponseOf;
using testing::ShapeText;
using testing::Told;
using testing::kAll;
using testing::kFinal;
using testing::kReschedule;

void ReportParameters(TRITONBACKEND_Request* request, Report* report) {
  uint32_t count = 0;
  Must(TRITONBACKEND_RequestParameterCount(request, &count));
  report->Number("parameters", count);
  for (uint32_t index = 0; index < count; ++index) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    const void* value = nullptr;
    Must(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    const std::string name = std::string("parameter ") + key;
    if (type == TRITONSERVER_PARAMETER_STRING) report->Text(name, static_cast<const char*>(value));
    if (type == TRITONSERVER_PARAMETER_INT) report->Number(name, *static_cast<const int64_t*>(value));
    if (type == TRITONSERVER_PARAMETER_BOOL) report->Flag(name, *static_cast<const bool*>(value));
    if (type == TRITONSERVER_PARAMETER_DOUBLE) report->Float(name, *static_cast<const double*>(value));
  }
}

// Reports the properties of an input, and whether the functions with host policies return the same.
void ReportInput(TRITONBACKEND_Input* input, const std::string& prefix, Report* report) {
  const char* names[2] = {};
  TRITONSERVER_DataType datatypes[2] = {};
  const int64_t* shapes[2] = {};
  uint32_t dims[2] = {};
  uint64_t sizes[2] = {};
  uint32_t counts[2] = {};
  Must(TRITONBACKEND_InputProperties(input, &names[0], &datatypes[0], &shapes[0], &dims[0], &sizes[0], &counts[0]));
  Must(TRITONBACKEND_InputPropertiesForHostPolicy(
      input, "cpu", &names[1], &datatypes[1], &shapes[1], &dims[1], &sizes[1], &counts[1]));
  const void* buffers[3] = {};
  uint64_t bytes[2] = {};
  TRITONSERVER_MemoryType types[2] = {TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_GPU};
  int64_t ids[2] = {7, 7};
  Must(TRITONBACKEND_InputBuffer(input, 0, &buffers[0], &bytes[0], &types[0], &ids[0]));
  Must(TRITONBACKEND_InputBufferForHostPolicy(input, "cpu", 0, &buffers[1], &bytes[1], &types[1], &ids[1]));
  TRITONSERVER_BufferAttributes* attributes = nullptr;
  size_t attribute_bytes = 0;
  TRITONSERVER_MemoryType attribute_type = TRITONSERVER_MEMORY_GPU;
  int64_t attribute_id = 7;
  Must(TRITONBACKEND_InputBufferAttributes(input, 0, &buffers[2], &attributes));
  Must(TRITONSERVER_BufferAttributesByteSize(attributes, &attribute_bytes));
  Must(TRITONSERVER_BufferAttributesMemoryType(attributes, &attribute_type));
  Must(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &attribute_id));
  report->Text(prefix + " name", names[0]);
  report->Text(prefix + " datatype", TRITONSERVER_DataTypeString(datatypes[0]));
  report->Text(prefix + " shape", ShapeText(shapes[0], dims[0]));
  report->Number(prefix + " bytes", static_cast<int64_t>(sizes[0]));
  report->Number(prefix + " buffers", counts[0]);
  report->Text(prefix + " memory", std::string(TRITONSERVER_MemoryTypeString(types[0])) + " " + std::to_string(ids[0]));
  const bool same = std::strcmp(names[0], names[1]) == 0 && datatypes[0] == datatypes[1] && shapes[0] == shapes[1] &&
                    dims[0] == dims[1] && sizes[0] == sizes[1] && counts[0] == counts[1] && buffers[0] == buffers[1] &&
                    buffers[0] == buffers[2] && bytes[0] == bytes[1] && bytes[0] == attribute_bytes &&
                    bytes[0] == sizes[0] && types[0] == types[1] && ids[0] == ids[1] && types[0] == attribute_type &&
                    ids[0] == attribute_id;
  report->Flag(prefix + " same", same);
}

// Reports all properties of a request.
void Describe(const Requests& requests) {
  TRITONBACKEND_Request* request = requests.back();
  Report report(request);
  const char* id = nullptr;
  uint64_t correlation_id = 0;
  const char* correlation_text = nullptr;
  uint32_t flags = 0;
  uint64_t timeout = 0;
  bool is_cancelled = true;
  Must(TRITONBACKEND_RequestId(request, &id));
  Must(TRITONBACKEND_RequestFlags(request, &flags));
  Must(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout));
  Must(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  report.Text("id", id);
  const std::string number = Told(TRITONBACKEND_RequestCorrelationId(request, &correlation_id));
  const std::string text = Told(TRITONBACKEND_RequestCorrelationIdString(request, &correlation_text));
  report.Text("correlation id", number.empty() ? std::to_string(correlation_id) : number);
  report.Text("correlation text", text.empty() ? correlation_text : text);
  report.Number("flags", flags);
  report.Number("timeout", static_cast<int64_t>(timeout));
  report.Flag("cancelled", is_cancelled);
  ReportParameters(request, &report);
  uint32_t inputs = 0;
  Must(TRITONBACKEND_RequestInputCount(request, &inputs));
  for (uint32_t index = 0; index < inputs; ++index) {
    const char* name = nullptr;
    TRITONBACKEND_Input* by_name = nullptr;
    TRITONBACKEND_Input* by_index = nullptr;
    Must(TRITONBACKEND_RequestInputName(request, index, &name));
    Must(TRITONBACKEND_RequestInput(request, name, &by_name));
    Must(TRITONBACKEND_RequestInputByIndex(request, index, &by_index));
    report.Flag("input " + std::to_string(index) + " found", by_name == by_index);
    ReportInput(by_index, "input " + std::to_string(index), &report);
  }
  uint32_t outputs = 0;
  std::string names;
  Must(TRITONBACKEND_RequestOutputCount(request, &outputs));
  for (uint32_t index = 0; index < outputs; ++index) {
    const char* name = nullptr;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
    int64_t type_id = 7;
    Must(TRITONBACKEND_RequestOutputName(request, index, &name));
    Must(TRITONBACKEND_RequestOutputBufferProperties(request, name, nullptr, &type, &type_id));
    names += std::string(name) + ":" + TRITONSERVER_MemoryTypeString(type) + std::to_string(type_id) + " ";
  }
  report.Text("outputs", names);
  report.Send();
  Release(request);
}

// Asks for things that do not exist.
void Unknown(const Requests& requests) {
  TRITONBACKEND_Request* request = requests.back();
  Report report(request);
  const char* name = "left";
  const void* value = "left";
  TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
  TRITONBACKEND_Input* input = nullptr;
  report.Text("input", Told(TRITONBACKEND_RequestInput(request, "NO", &input)));
  report.Text("input by index", Told(TRITONBACKEND_RequestInputByIndex(request, 9, &input)));
  report.Text("input name", Told(TRITONBACKEND_RequestInputName(request, 9, &name)));
  report.Flag("input is null", input == nullptr && name == nullptr);
  report.Text("output name", Told(TRITONBACKEND_RequestOutputName(request, 9, &name)));
  report.Text("parameter", Told(TRITONBACKEND_RequestParameter(request, 9, &name, &type, &value)));
  report.Flag("parameter is null", name == nullptr && value == nullptr);
  Must(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  uint64_t bytes = 7;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  report.Text("buffer", Told(TRITONBACKEND_InputBuffer(input, 9, &value, &bytes, &memory, &memory_id)));
  report.Flag("buffer is null", value == nullptr && bytes == 0);
  report.Send();
  Release(request);
}

// Answers only the last request.
void Lost(const Requests& requests) {
  Report report(requests.back());
  TRITONBACKEND_Response* unsent = ResponseOf(requests.front());
  for (size_t index = 0; index + 1 < requests.size(); ++index) Release(requests[index]);
  Must(TRITONBACKEND_ResponseDelete(unsent));
  report.Send();
  Release(requests.back());
}

// Releases with unknown flags, and with those that have the request executed again.
void Flags(const Requests& requests) {
  Report report(requests.back());
  report.Text("none", Told(TRITONBACKEND_RequestRelease(requests.back(), 0)));
  report.Text("unknown", Told(TRITONBACKEND_RequestRelease(requests.back(), 5)));
  const uint32_t flags[] = {kReschedule, kReschedule | kAll};
  for (size_t index = 0; index < 2; ++index) {
    const std::string told = Told(TRITONBACKEND_RequestRelease(requests[index], flags[index]));
    report.Text("again " + std::to_string(index), told);
    if (told.empty()) continue;
    Must(TRITONBACKEND_ResponseSend(ResponseOf(requests[index]), kFinal, nullptr));  // still ours
    Release(requests[index]);
  }
  report.Send();
  Release(requests.back());
}

// States: two of them; one is written twice, the other has buffers of two sizes before it is.
void States(const Requests& requests) {
  TRITONBACKEND_Request* request = requests.back();
  Report report(request);
  TRITONBACKEND_State* sum = nullptr;
  TRITONBACKEND_State* text = nullptr;
  void* buffer = nullptr;
  void* other = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t type_id = 7;
  const int64_t shape[] = {1, 2};
  report.Text("no datatype",
              Told(TRITONBACKEND_StateNew(&sum, request, "SUM", TRITONSERVER_TYPE_INVALID, nullptr, 0)));
  Must(TRITONBACKEND_StateNew(&sum, request, "SUM", TRITONSERVER_TYPE_INT32, shape, 2));
  Must(TRITONBACKEND_StateNew(&text, request, "TEXT", TRITONSERVER_TYPE_BYTES, nullptr, 0));
  Must(TRITONBACKEND_StateBuffer(sum, &buffer, 8, &type, &type_id));
  report.Flag("in the CPU's memory", type == TRITONSERVER_MEMORY_CPU && type_id == 0);
  Must(TRITONBACKEND_StateBuffer(sum, &other, 8, &type, &type_id));
  report.Flag("the same", buffer == other);
  std::memcpy(buffer, "first...", 8);
  Must(TRITONBACKEND_StateUpdate(sum));
  Must(TRITONBACKEND_StateUpdate(sum));
  Must(TRITONBACKEND_StateBuffer(sum, &other, 8, &type, &type_id));
  report.Flag("another", buffer != other);
  std::memcpy(other, "second..", 8);
  Must(TRITONBACKEND_StateUpdate(sum));
  Must(TRITONBACKEND_StateBuffer(text, &buffer, 100, &type, &type_id));
  Must(TRITONBACKEND_StateBuffer(text, &buffer, 3, &type, &type_id));
  std::memcpy(buffer, "abc", 3);
  TRITONSERVER_BufferAttributes* attributes = nullptr;
  size_t bytes = 0;
  Must(TRITONBACKEND_StateBufferAttributes(text, &attributes));
  Must(TRITONSERVER_BufferAttributesByteSize(attributes, &bytes));
  report.Number("bytes", static_cast<int64_t>(bytes));
  Must(TRITONBACKEND_StateUpdate(text));
  const int64_t any[] = {1, 7};
  const int64_t other_dims[] = {2, 2};
  const int64_t negative[] = {1, -1};
  const int64_t huge[] = {1, int64_t{1} << 62};
  TRITONBACKEND_State* none = nullptr;
  report.Text("no name", Told(TRITONBACKEND_StateNew(&none, request, "NO", TRITONSERVER_TYPE_INT32, shape, 2)));
  report.Text("other type", Told(TRITONBACKEND_StateNew(&none, request, "SUM", TRITONSERVER_TYPE_FP32, shape, 2)));
  report.Text("other dims", Told(TRITONBACKEND_StateNew(&none, request, "SUM", TRITONSERVER_TYPE_INT32, other_dims, 2)));
  report.Text("fewer dims", Told(TRITONBACKEND_StateNew(&none, request, "SUM", TRITONSERVER_TYPE_INT32, shape, 1)));
  report.Text("negative dim", Told(TRITONBACKEND_StateNew(&none, request, "SUM", TRITONSERVER_TYPE_INT32, negative, 2)));
  report.Flag("none", none == nullptr);
  Must(TRITONBACKEND_StateNew(&sum, request, "SUM", TRITONSERVER_TYPE_INT32, huge, 2));
  Must(TRITONBACKEND_StateBuffer(sum, &buffer, 0, &type, &type_id));
  report.Text("no size", Told(TRITONBACKEND_StateUpdate(sum)));
  Must(TRITONBACKEND_StateNew(&sum, request, "SUM", TRITONSERVER_TYPE_INT32, any, 2));
  Must(TRITONBACKEND_StateBuffer(sum, &buffer, 8, &type, &type_id));
  report.Text("other size", Told(TRITONBACKEND_StateUpdate(sum)));
  report.Text("too much", Told(TRITONBACKEND_StateBuffer(text, &buffer, UINT64_MAX, &type, &type_id)));
  report.Send();
  Release(request);
}

// States of a model that has none.
void NoStates(const Requests& requests) {
  Report report(requests.back());
  TRITONBACKEND_State* state = nullptr;
  report.Text("state",
              Told(TRITONBACKEND_StateNew(&state, requests.back(), "SUM", TRITONSERVER_TYPE_INT32, nullptr, 0)));
  report.Send();
  Release(requests.back());
}

// Waits until the first request is cancelled, as seen by the request and by a factory.
void Cancelled(const Requests& requests) {
  TRITONBACKEND_ResponseFactory* factory = FactoryOf(requests.front());
  bool is_cancelled = false;
  while (!is_cancelled) Must(TRITONBACKEND_RequestIsCancelled(requests.front(), &is_cancelled));
  Must(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
  Report report(requests.back());
  report.Flag("cancelled", is_cancelled);
  Must(TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
  if (requests.size() > 1) report.Send();
  for (TRITONBACKEND_Request* request : requests) Release(request);
}

// Allocates memory besides that of tensors.
void Memory(const Requests& requests, TRITONBACKEND_MemoryManager* manager) {
  Report report(requests.back());
  void* buffer = nullptr;
  Must(TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, TRITONSERVER_MEMORY_CPU, 0, 1000));
  std::memset(buffer, 1, 1000);
  Must(TRITONBACKEND_MemoryManagerFree(manager, buffer, TRITONSERVER_MEMORY_CPU, 0));
  report.Text("gpu", Told(TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, TRITONSERVER_MEMORY_GPU, 0, 8)));
  report.Text(
      "pinned", Told(TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, TRITONSERVER_MEMORY_CPU_PINNED, 0, 8)));
  report.Text(
      "too much", Told(TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, TRITONSERVER_MEMORY_CPU, 0, UINT64_MAX)));
  report.Text("free", Told(TRITONBACKEND_MemoryManagerFree(manager, nullptr, TRITONSERVER_MEMORY_GPU, 0)));
  report.Send();
  Release(requests.back());
}

TRITONBACKEND_MemoryManager* ManagerOf(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Backend* backend = nullptr;
  TRITONBACKEND_MemoryManager* manager = nullptr;
  Must(TRITONBACKEND_ModelBackend(testing::ModelOf(instance), &backend));
  Must(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  return manager;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  static const testing::Functions functions = {
      {"describe", Describe},
      {"unknown", Unknown},
      {"cancelled", Cancelled},
      {"flags", Flags},
      {"states", States},
      {"no states", NoStates},
      {"lost", Lost},
  };
  const char* id = nullptr;
  Must(TRITONBACKEND_RequestId(requests[0], &id));
  if (std::strcmp(id, "fail") == 0) {
    Release(requests[0]);
    return testing::Fail("cannot", TRITONSERVER_ERROR_UNAVAILABLE);
  }
  if (std::strcmp(id, "memory") == 0) {
    Memory(Requests(requests, requests + count), ManagerOf(instance));
    return nullptr;
  }
  testing::Dispatch(functions, requests, count, Describe);
  return nullptr;
}

}  // extern "C"
