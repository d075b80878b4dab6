// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Calls every function of the model of requests and responses with null in the place of each pointer.
#include <cstdint>
#include <map>
#include <string>

#include "report.h"

namespace {

using testing::AddOutput;
using testing::FactoryOf;
using testing::Must;
using testing::Release;
using testing::Report;
using testing::Requests;
using testing::Told;
using testing::kAll;
using testing::kFinal;

// Passes null for each pointer; reports the functions that do not return INVALID_ARG.
void Nulls(const Requests& requests) {
  TRITONBACKEND_Request* request = requests.back();
  Report report(request);
  TRITONBACKEND_ResponseFactory* factory = FactoryOf(request);
  TRITONBACKEND_Response* response = report.response();
  TRITONBACKEND_Output* output = AddOutput(response, "OUT", TRITONSERVER_TYPE_BOOL, {1});
  TRITONBACKEND_Input* input = nullptr;
  Must(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  const char* name = nullptr;
  const void* read = nullptr;
  void* written = nullptr;
  uint64_t bytes = 0;
  uint32_t count = 0;
  bool flag = false;
  const int64_t* shape = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_BOOL;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  TRITONSERVER_ParameterType kind = TRITONSERVER_PARAMETER_STRING;
  TRITONSERVER_BufferAttributes* attributes = nullptr;
  TRITONBACKEND_State* state = nullptr;
  const std::multimap<std::string, TRITONSERVER_Error*> outcomes = {
      {"RequestId", TRITONBACKEND_RequestId(nullptr, &name)},
      {"RequestId", TRITONBACKEND_RequestId(request, nullptr)},
      {"RequestCorrelationId", TRITONBACKEND_RequestCorrelationId(nullptr, &bytes)},
      {"RequestCorrelationId", TRITONBACKEND_RequestCorrelationId(request, nullptr)},
      {"RequestCorrelationIdString", TRITONBACKEND_RequestCorrelationIdString(nullptr, &name)},
      {"RequestCorrelationIdString", TRITONBACKEND_RequestCorrelationIdString(request, nullptr)},
      {"RequestFlags", TRITONBACKEND_RequestFlags(nullptr, &count)},
      {"RequestFlags", TRITONBACKEND_RequestFlags(request, nullptr)},
      {"RequestParameterCount", TRITONBACKEND_RequestParameterCount(nullptr, &count)},
      {"RequestParameterCount", TRITONBACKEND_RequestParameterCount(request, nullptr)},
      {"RequestParameter", TRITONBACKEND_RequestParameter(nullptr, 0, &name, &kind, &read)},
      {"RequestParameter", TRITONBACKEND_RequestParameter(request, 0, nullptr, &kind, &read)},
      {"RequestParameter", TRITONBACKEND_RequestParameter(request, 0, &name, nullptr, &read)},
      {"RequestParameter", TRITONBACKEND_RequestParameter(request, 0, &name, &kind, nullptr)},
      {"RequestInputCount", TRITONBACKEND_RequestInputCount(nullptr, &count)},
      {"RequestInputCount", TRITONBACKEND_RequestInputCount(request, nullptr)},
      {"RequestInputName", TRITONBACKEND_RequestInputName(nullptr, 0, &name)},
      {"RequestInputName", TRITONBACKEND_RequestInputName(request, 0, nullptr)},
      {"RequestInput", TRITONBACKEND_RequestInput(nullptr, "IN", &input)},
      {"RequestInput", TRITONBACKEND_RequestInput(request, nullptr, &input)},
      {"RequestInput", TRITONBACKEND_RequestInput(request, "IN", nullptr)},
      {"RequestInputByIndex", TRITONBACKEND_RequestInputByIndex(nullptr, 0, &input)},
      {"RequestInputByIndex", TRITONBACKEND_RequestInputByIndex(request, 0, nullptr)},
      {"RequestOutputCount", TRITONBACKEND_RequestOutputCount(nullptr, &count)},
      {"RequestOutputCount", TRITONBACKEND_RequestOutputCount(request, nullptr)},
      {"RequestOutputName", TRITONBACKEND_RequestOutputName(nullptr, 0, &name)},
      {"RequestOutputName", TRITONBACKEND_RequestOutputName(request, 0, nullptr)},
      {"RequestOutputBufferProperties",
       TRITONBACKEND_RequestOutputBufferProperties(nullptr, "OUT", &bytes, &type, &type_id)},
      {"RequestOutputBufferProperties",
       TRITONBACKEND_RequestOutputBufferProperties(request, nullptr, &bytes, &type, &type_id)},
      {"RequestOutputBufferProperties",
       TRITONBACKEND_RequestOutputBufferProperties(request, "OUT", &bytes, nullptr, &type_id)},
      {"RequestOutputBufferProperties",
       TRITONBACKEND_RequestOutputBufferProperties(request, "OUT", &bytes, &type, nullptr)},
      {"RequestIsCancelled", TRITONBACKEND_RequestIsCancelled(nullptr, &flag)},
      {"RequestIsCancelled", TRITONBACKEND_RequestIsCancelled(request, nullptr)},
      {"InferenceRequestTimeoutMicroseconds", TRITONBACKEND_InferenceRequestTimeoutMicroseconds(nullptr, &bytes)},
      {"InferenceRequestTimeoutMicroseconds", TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, nullptr)},
      {"RequestRelease", TRITONBACKEND_RequestRelease(nullptr, kAll)},
      {"InputProperties",
       TRITONBACKEND_InputProperties(nullptr, &name, &datatype, &shape, &count, &bytes, &count)},
      {"InputPropertiesForHostPolicy", TRITONBACKEND_InputPropertiesForHostPolicy(
                                           nullptr, nullptr, &name, &datatype, &shape, &count, &bytes, &count)},
      {"InputBuffer", TRITONBACKEND_InputBuffer(nullptr, 0, &read, &bytes, &type, &type_id)},
      {"InputBuffer", TRITONBACKEND_InputBuffer(input, 0, nullptr, &bytes, &type, &type_id)},
      {"InputBuffer", TRITONBACKEND_InputBuffer(input, 0, &read, nullptr, &type, &type_id)},
      {"InputBuffer", TRITONBACKEND_InputBuffer(input, 0, &read, &bytes, nullptr, &type_id)},
      {"InputBuffer", TRITONBACKEND_InputBuffer(input, 0, &read, &bytes, &type, nullptr)},
      {"InputBufferForHostPolicy",
       TRITONBACKEND_InputBufferForHostPolicy(nullptr, nullptr, 0, &read, &bytes, &type, &type_id)},
      {"InputBufferAttributes", TRITONBACKEND_InputBufferAttributes(nullptr, 0, &read, &attributes)},
      {"InputBufferAttributes", TRITONBACKEND_InputBufferAttributes(input, 0, nullptr, &attributes)},
      {"InputBufferAttributes", TRITONBACKEND_InputBufferAttributes(input, 0, &read, nullptr)},
      {"ResponseFactoryNew", TRITONBACKEND_ResponseFactoryNew(nullptr, request)},
      {"ResponseFactoryNew", TRITONBACKEND_ResponseFactoryNew(&factory, nullptr)},
      {"ResponseFactoryDelete", TRITONBACKEND_ResponseFactoryDelete(nullptr)},
      {"ResponseFactorySendFlags", TRITONBACKEND_ResponseFactorySendFlags(nullptr, kFinal)},
      {"ResponseFactoryIsCancelled", TRITONBACKEND_ResponseFactoryIsCancelled(nullptr, &flag)},
      {"ResponseFactoryIsCancelled", TRITONBACKEND_ResponseFactoryIsCancelled(factory, nullptr)},
      {"ResponseNew", TRITONBACKEND_ResponseNew(nullptr, request)},
      {"ResponseNew", TRITONBACKEND_ResponseNew(&response, nullptr)},
      {"ResponseNewFromFactory", TRITONBACKEND_ResponseNewFromFactory(nullptr, factory)},
      {"ResponseNewFromFactory", TRITONBACKEND_ResponseNewFromFactory(&response, nullptr)},
      {"ResponseDelete", TRITONBACKEND_ResponseDelete(nullptr)},
      {"ResponseSetStringParameter", TRITONBACKEND_ResponseSetStringParameter(nullptr, "name", "value")},
      {"ResponseSetStringParameter", TRITONBACKEND_ResponseSetStringParameter(response, nullptr, "value")},
      {"ResponseSetStringParameter", TRITONBACKEND_ResponseSetStringParameter(response, "name", nullptr)},
      {"ResponseSetIntParameter", TRITONBACKEND_ResponseSetIntParameter(nullptr, "name", 1)},
      {"ResponseSetIntParameter", TRITONBACKEND_ResponseSetIntParameter(response, nullptr, 1)},
      {"ResponseSetBoolParameter", TRITONBACKEND_ResponseSetBoolParameter(nullptr, "name", true)},
      {"ResponseSetBoolParameter", TRITONBACKEND_ResponseSetBoolParameter(response, nullptr, true)},
      {"ResponseSetDoubleParameter", TRITONBACKEND_ResponseSetDoubleParameter(nullptr, "name", 1)},
      {"ResponseSetDoubleParameter", TRITONBACKEND_ResponseSetDoubleParameter(response, nullptr, 1)},
      {"ResponseOutput", TRITONBACKEND_ResponseOutput(nullptr, &output, "OUT", datatype, nullptr, 0)},
      {"ResponseOutput", TRITONBACKEND_ResponseOutput(response, nullptr, "OUT", datatype, nullptr, 0)},
      {"ResponseOutput", TRITONBACKEND_ResponseOutput(response, &output, nullptr, datatype, nullptr, 0)},
      {"ResponseOutput", TRITONBACKEND_ResponseOutput(response, &output, "OUT", datatype, nullptr, 1)},
      {"ResponseSend", TRITONBACKEND_ResponseSend(nullptr, kFinal, nullptr)},
      {"InferenceResponseOutput",
       TRITONBACKEND_InferenceResponseOutput(nullptr, 0, &name, &datatype, &shape, &bytes)},
      {"InferenceResponseOutput",
       TRITONBACKEND_InferenceResponseOutput(response, 0, nullptr, &datatype, &shape, &bytes)},
      {"InferenceResponseOutputByName",
       TRITONBACKEND_InferenceResponseOutputByName(nullptr, "OUT", &datatype, &shape, &bytes)},
      {"InferenceResponseOutputByName",
       TRITONBACKEND_InferenceResponseOutputByName(response, nullptr, &datatype, &shape, &bytes)},
      {"OutputBuffer", TRITONBACKEND_OutputBuffer(nullptr, &written, 1, &type, &type_id)},
      {"OutputBuffer", TRITONBACKEND_OutputBuffer(output, nullptr, 1, &type, &type_id)},
      {"OutputBuffer", TRITONBACKEND_OutputBuffer(output, &written, 1, nullptr, &type_id)},
      {"OutputBuffer", TRITONBACKEND_OutputBuffer(output, &written, 1, &type, nullptr)},
      {"OutputBufferAttributes", TRITONBACKEND_OutputBufferAttributes(nullptr, &attributes)},
      {"OutputBufferAttributes", TRITONBACKEND_OutputBufferAttributes(output, nullptr)},
      {"StateNew", TRITONBACKEND_StateNew(nullptr, request, "STATE", datatype, nullptr, 0)},
      {"StateNew", TRITONBACKEND_StateNew(&state, nullptr, "STATE", datatype, nullptr, 0)},
      {"StateNew", TRITONBACKEND_StateNew(&state, request, nullptr, datatype, nullptr, 0)},
      {"StateNew", TRITONBACKEND_StateNew(&state, request, "STATE", datatype, nullptr, 1)},
      {"StateBuffer", TRITONBACKEND_StateBuffer(nullptr, &written, 1, &type, &type_id)},
      {"StateBufferAttributes", TRITONBACKEND_StateBufferAttributes(nullptr, &attributes)},
      {"StateUpdate", TRITONBACKEND_StateUpdate(nullptr)},
      {"MemoryManagerAllocate", TRITONBACKEND_MemoryManagerAllocate(nullptr, &written, type, 0, 1)},
      {"MemoryManagerFree", TRITONBACKEND_MemoryManagerFree(nullptr, written, type, 0)},
  };
  report.Number("calls", static_cast<int64_t>(outcomes.size()));
  for (const auto& [function, error] : outcomes) {
    const std::string told = Told(error);
    const std::string expected = "Invalid argument: TRITONBACKEND_" + function + ": ";
    if (told.compare(0, expected.size(), expected) != 0) report.Text(function, told);
  }
  Must(TRITONBACKEND_InputProperties(input, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr));
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
  report.Send();
  Release(request);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* /*instance*/,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  Nulls(Requests(requests, requests + count));
  return nullptr;
}

}  // extern "C"
