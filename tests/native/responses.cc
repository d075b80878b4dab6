// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// The ID of a batch's first request selects one of the functions below; their findings become the parameters of the
// response to the last request.
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "report.h"

namespace {

using testing::AddOutput;
using testing::FactoryOf;
using testing::Must;
using testing::Release;
using testing::Report;
using testing::Requests;
using testing::ResponseOf;
using testing::ShapeText;
using testing::Told;
using testing::WriteNumber;
using testing::kFinal;

// Factories of released requests, which outlive an execution.
std::vector<TRITONBACKEND_ResponseFactory*> kept;

// Returns the inputs, under their names; requests GPU memory and reports the result.
void Echo(const Requests& requests) {
  for (TRITONBACKEND_Request* request : requests) {
    TRITONBACKEND_Response* response = ResponseOf(request);
    uint32_t inputs = 0;
    Must(TRITONBACKEND_RequestInputCount(request, &inputs));
    for (uint32_t index = 0; index < inputs; ++index) {
      TRITONBACKEND_Input* input = nullptr;
      testing::Tensor tensor;
      Must(TRITONBACKEND_RequestInputByIndex(request, index, &input));
      Must(testing::ReadInput(input, &tensor));
      TRITONBACKEND_Output* output = AddOutput(response, tensor.name.c_str(), tensor.datatype, tensor.shape);
      void* buffer = nullptr;
      TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
      int64_t type_id = 3;
      Must(TRITONBACKEND_OutputBuffer(output, &buffer, tensor.contents.size(), &type, &type_id));
      if (type != TRITONSERVER_MEMORY_CPU || type_id != 0) Must(testing::Fail("not the CPU's memory"));
      if (reinterpret_cast<uintptr_t>(buffer) % 64 != 0) Must(testing::Fail("not aligned"));
      if (!tensor.contents.empty()) std::memcpy(buffer, tensor.contents.data(), tensor.contents.size());
    }
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    Release(request);
  }
}

// Parameters of every type, and outputs: with no dimension, with a buffer that was never asked for, found again.
void Answer(const Requests& requests) {
  Report report(requests.back());
  TRITONBACKEND_Response* response = report.response();
  report.Text("text", "Grüße");
  report.Number("number", INT64_MIN);
  report.Flag("yes", true);
  report.Flag("no", false);
  report.Float("float", -0.5);
  const float one = 1;
  Must(testing::WriteOutput(response, "SCALAR", TRITONSERVER_TYPE_FP32, {}, &one, sizeof one));
  AddOutput(response, "UNWRITTEN", TRITONSERVER_TYPE_BYTES, {2, 3});
  TRITONBACKEND_Output* output = AddOutput(response, "EMPTY", TRITONSERVER_TYPE_BF16, {0, 4});
  void* buffer = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  Must(TRITONBACKEND_OutputBuffer(output, &buffer, 0, &type, &type_id));
  Must(TRITONBACKEND_OutputBuffer(output, &buffer, 0, &type, &type_id));
  TRITONBACKEND_Output* twice = AddOutput(response, "TWICE", TRITONSERVER_TYPE_INT8, {1});
  Must(TRITONBACKEND_OutputBuffer(twice, &buffer, 1, &type, &type_id));
  *static_cast<int8_t*>(buffer) = 2;
  report.Text("again", Told(TRITONBACKEND_OutputBuffer(twice, &buffer, 1, &type, &type_id)));
  TRITONSERVER_BufferAttributes* attributes = nullptr;
  size_t bytes = 7;
  Must(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  Must(TRITONSERVER_BufferAttributesByteSize(attributes, &bytes));
  report.Number("bytes", static_cast<int64_t>(bytes));
  TRITONBACKEND_Output* huge = AddOutput(response, "HUGE", TRITONSERVER_TYPE_UINT8, {-1});
  report.Text("too much", Told(TRITONBACKEND_OutputBuffer(huge, &buffer, UINT64_MAX - 3, &type, &type_id)));
  report.Text("no output",
              Told(TRITONBACKEND_ResponseOutput(response, &output, "NO", TRITONSERVER_TYPE_BOOL, nullptr, 0)));
  report.Text("no datatype",
              Told(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_INVALID, nullptr, 0)));
  const char* name = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint64_t dims = 0;
  Must(TRITONBACKEND_InferenceResponseOutput(response, 1, &name, &datatype, &shape, &dims));
  report.Text("output 1", std::string(name) + " " + TRITONSERVER_DataTypeString(datatype) + " " +
                              ShapeText(shape, dims));
  Must(TRITONBACKEND_InferenceResponseOutputByName(response, "EMPTY", &datatype, &shape, &dims));
  report.Text("output EMPTY", std::string(TRITONSERVER_DataTypeString(datatype)) + " " + ShapeText(shape, dims));
  report.Text("output 9", Told(TRITONBACKEND_InferenceResponseOutput(response, 9, &name, &datatype, &shape, &dims)));
  report.Text("output NO", Told(TRITONBACKEND_InferenceResponseOutputByName(response, "NO", &datatype, &shape, &dims)));
  report.Send();
  Release(requests.back());
}

// Asks for a buffer of as many bytes as IN says, and never fills it.
void Leave(const Requests& requests) {
  TRITONBACKEND_Request* request = requests.front();
  testing::Tensor in;
  Must(testing::ReadInput(request, "IN", &in));
  const uint64_t bytes = in.as<uint64_t>()[0];
  TRITONBACKEND_Response* response = ResponseOf(request);
  TRITONBACKEND_Output* output =
      AddOutput(response, "OUT", TRITONSERVER_TYPE_UINT8, {static_cast<int64_t>(bytes)});
  void* buffer = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU_PINNED;
  int64_t type_id = 0;
  Must(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &type, &type_id));
  Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
  Release(request);
}

// Requests memory of GPU 3 for each output, and of the host for one; and for an output of a response that it deletes.
void Gpu(const Requests& requests) {
  Report report(requests.back());
  TRITONBACKEND_Response* discarded = ResponseOf(requests.back());
  const auto ask = [&report](TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType datatype,
                             TRITONSERVER_MemoryType type, const char* told) {
    TRITONBACKEND_Output* output = AddOutput(response, name, datatype, {1});
    TRITONSERVER_BufferAttributes* attributes = nullptr;
    TRITONSERVER_MemoryType described = TRITONSERVER_MEMORY_CPU_PINNED;
    void* buffer = nullptr;
    int64_t id = 3;
    int64_t described_id = -1;
    Must(TRITONBACKEND_OutputBuffer(output, &buffer, 4, &type, &id));
    std::memcpy(buffer, told, 4);
    Must(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
    Must(TRITONSERVER_BufferAttributesMemoryType(attributes, &described));
    Must(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &described_id));
    if (described != type || described_id != id) Must(testing::Fail("not what the attributes say"));
    void* again = nullptr;
    report.Text(told, std::string(TRITONSERVER_MemoryTypeString(type)) + " " + std::to_string(id) + ", " +
                          Told(TRITONBACKEND_OutputBuffer(output, &again, 4, &type, &id)));
  };
  ask(discarded, "OUT", TRITONSERVER_TYPE_INT32, TRITONSERVER_MEMORY_GPU, "gone");
  Must(TRITONBACKEND_ResponseDelete(discarded));
  ask(report.response(), "OUT", TRITONSERVER_TYPE_INT32, TRITONSERVER_MEMORY_GPU, "here");
  ask(report.response(), "IN", TRITONSERVER_TYPE_INT32, TRITONSERVER_MEMORY_CPU, "host");
  ask(report.response(), "TEXT", TRITONSERVER_TYPE_BYTES, TRITONSERVER_MEMORY_GPU, "text");
  ask(report.response(), "SCALAR", TRITONSERVER_TYPE_INT32, TRITONSERVER_MEMORY_GPU, "else");
  report.Send();
  Release(requests.back());
}

// An error, with a response that has an output; the backend still owns the error afterwards.
void Error(const Requests& requests) {
  Report report(requests.back());
  TRITONBACKEND_Response* response = ResponseOf(requests.front());
  WriteNumber(response, 1);
  const testing::Error error(testing::Fail("not today", TRITONSERVER_ERROR_UNAVAILABLE));
  Must(TRITONBACKEND_ResponseSend(response, kFinal, error.get()));
  report.Text("still", TRITONSERVER_ErrorMessage(error.get()));
  report.Send();
  for (TRITONBACKEND_Request* request : requests) Release(request);
}

// Three responses and an end without one, all after the request was released.
void Factory(const Requests& requests) {
  TRITONBACKEND_ResponseFactory* factory = FactoryOf(requests.front());
  bool is_cancelled = true;
  Must(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &is_cancelled));
  Release(requests.front());
  for (int64_t number = 0; number < 3; ++number) {
    TRITONBACKEND_Response* response = ResponseOf(factory);
    WriteNumber(response, number);
    Must(TRITONBACKEND_ResponseSend(response, 0, nullptr));
  }
  Must(TRITONBACKEND_ResponseFactorySendFlags(factory, 0));
  Must(TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
}

// A hundred responses from each of ten threads, each thread with a factory of its own.
void Threads(const Requests& requests) {
  std::vector<std::thread> threads;
  TRITONBACKEND_ResponseFactory* last = FactoryOf(requests.front());
  for (int64_t thread = 0; thread < 10; ++thread) {
    TRITONBACKEND_ResponseFactory* factory = FactoryOf(requests.front());
    threads.emplace_back([factory, thread] {
      for (int64_t number = 0; number < 100; ++number) {
        TRITONBACKEND_Response* response = ResponseOf(factory);
        WriteNumber(response, thread * 100 + number);
        Must(TRITONBACKEND_ResponseSend(response, 0, nullptr));
      }
      Must(TRITONBACKEND_ResponseFactoryDelete(factory));
    });
  }
  Release(requests.front());
  for (std::thread& thread : threads) thread.join();
  Must(TRITONBACKEND_ResponseFactorySendFlags(last, kFinal));
  Must(TRITONBACKEND_ResponseFactoryDelete(last));
}

// Releases its requests and keeps factories of them; LetGo deletes these.
void Keep(const Requests& requests) {
  for (TRITONBACKEND_Request* request : requests) {
    kept.push_back(FactoryOf(request));
    Release(request);
  }
}

void LetGo(const Requests& requests) {
  for (TRITONBACKEND_ResponseFactory* factory : kept) Must(TRITONBACKEND_ResponseFactoryDelete(factory));
  kept.clear();
  Echo(requests);
}

// Sends after the final response.
void Late(const Requests& requests) {
  Report report(requests.back());
  TRITONBACKEND_ResponseFactory* factory = FactoryOf(requests.front());
  Must(TRITONBACKEND_ResponseSend(ResponseOf(factory), kFinal, nullptr));
  report.Text("response", Told(TRITONBACKEND_ResponseSend(ResponseOf(factory), 0, nullptr)));
  report.Text("final", Told(TRITONBACKEND_ResponseSend(ResponseOf(factory), kFinal, nullptr)));
  report.Text("flags", Told(TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal)));
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
  report.Send();
  for (TRITONBACKEND_Request* request : requests) Release(request);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* /*instance*/,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  static const testing::Functions functions = {
      {"answer", Answer},
      {"leave", Leave},
      {"gpu", Gpu},
      {"error", Error},
      {"factory", Factory},
      {"threads", Threads},
      {"late", Late},
      {"keep", Keep},
      {"let go", LetGo},
  };
  testing::Dispatch(functions, requests, count, Echo);
  return nullptr;
}

}  // extern "C"
