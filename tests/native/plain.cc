// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// The first byte of a request's input IN (UINT8) selects an action; most of them return IN as OUT. So requests with
// equal heads are answered in different ways. Postponed work is done by the request with kGo, on a thread of its own.
// At kFence, and after the answer of kWait, Execute waits for PlainLetGo; PlainAwaitFence waits until it does.
// PlainNotes returns the second bytes of the requests with kNote, in the order of their execution.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "report.h"

namespace {

using testing::Error;
using testing::Fail;
using testing::Must;
using testing::NowNs;
using testing::Release;
using testing::ResponseOf;
using testing::Tensor;
using testing::WriteOutput;
using testing::kFinal;

enum Action : uint8_t {
  kEcho = 0,
  kNoStatistics = 1,
  kFailedStatistics = 2,
  kErrorResponse = 3,
  kExecuteFails = 4,
  kReleaseLater = 5,
  kAllLater = 6,
  kRespondLater = 7,
  kGo = 8,
  kOtherName = 9,
  kOtherDatatype = 10,
  kOtherShape = 11,
  kShorter = 12,
  kParameter = 13,
  kTwoOutputs = 14,
  kNoOutput = 15,
  kTwoReports = 16,
  kLost = 17,
  kOtherThread = 18,
  kWait = 19,
  kUntilCancelled = 20,
  kTell = 21,
  kThrow = 22,
  kFence = 23,
  kNote = 24,
  kKeepFactory = 25,
};

std::mutex mutex;
std::condition_variable changed;
bool let_go = false;
bool is_at_fence = false;
bool is_seen = false;
// Postponed work.
std::vector<std::function<void()>> later;
// The second bytes of requests with kNote.
std::vector<uint8_t> notes;

// Waits for PlainLetGo. When PlainAwaitFence returns, all earlier work is done.
void StandAtFence() {
  std::unique_lock lock(mutex);
  is_at_fence = true;
  changed.notify_all();
  changed.wait(lock, [] { return let_go; });
  let_go = is_at_fence = is_seen = false;
}

void Report(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, bool success) {
  Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, success, 1, 2, 3, 4));
}

void ReportBatch(TRITONBACKEND_ModelInstance* instance) {
  Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, 1, 2, 3, 4));
}

// All properties of a request that a backend can read, except the addresses of its inputs.
std::string Tell(TRITONBACKEND_Request* request) {
  std::ostringstream told;
  const char* text = nullptr;
  uint64_t number = 0;
  uint32_t count = 0;
  Must(TRITONBACKEND_RequestId(request, &text));
  told << "id " << text;
  if (const Error error(TRITONBACKEND_RequestCorrelationId(request, &number)); error == nullptr) {
    told << "\ncorrelation " << number;
  } else {
    Must(TRITONBACKEND_RequestCorrelationIdString(request, &text));
    told << "\ncorrelation " << text;
  }
  Must(TRITONBACKEND_RequestFlags(request, &count));
  Must(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &number));
  told << "\nflags " << count << "\ntimeout " << number;
  Must(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    Must(TRITONBACKEND_RequestOutputName(request, index, &text));
    told << "\noutput " << text;
  }
  Must(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    const void* value = nullptr;
    Must(TRITONBACKEND_RequestParameter(request, index, &text, &type, &value));
    told << "\nparameter " << text << " " << type << " ";
    if (type == TRITONSERVER_PARAMETER_STRING) told << static_cast<const char*>(value);
    if (type == TRITONSERVER_PARAMETER_INT) told << *static_cast<const int64_t*>(value);
    if (type == TRITONSERVER_PARAMETER_DOUBLE) told << *static_cast<const double*>(value);
    if (type == TRITONSERVER_PARAMETER_BOOL) told << *static_cast<const bool*>(value);
  }
  Must(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Input* input = nullptr;
    Tensor tensor;
    const void* buffer = nullptr;
    TRITONSERVER_BufferAttributes* attributes = nullptr;
    size_t size = 0;
    Must(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    Must(testing::ReadInput(input, &tensor));
    Must(TRITONBACKEND_InputBufferAttributes(input, 0, &buffer, &attributes));
    Must(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
    told << "\ninput " << tensor.name << " " << tensor.datatype << " "
         << testing::ShapeText(tensor.shape.data(), tensor.shape.size()) << " " << size << " "
         << std::string(tensor.contents.begin(), tensor.contents.end());
  }
  return told.str();
}

// Whether the contents of the first input that has any are aligned.
bool IsAligned(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input = nullptr;
  const void* buffer = nullptr;
  uint64_t size = 0;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  Must(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  Must(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &type_id));
  return reinterpret_cast<uintptr_t>(buffer) % 64 == 0;
}

void Fill(TRITONBACKEND_Response* response, const Tensor& in, uint8_t action) {
  const size_t size = in.contents.size();
  const char* contents = in.contents.data();
  if (action == kNoOutput) return;
  if (action == kOtherName) {
    Must(WriteOutput(response, "OUT2", in.datatype, in.shape, contents, size));
  } else if (action == kOtherDatatype) {
    Must(WriteOutput(response, "OUT", TRITONSERVER_TYPE_INT8, in.shape, contents, size));
  } else if (action == kOtherShape) {
    Must(WriteOutput(response, "OUT", in.datatype, {1, static_cast<int64_t>(size)}, contents, size));
  } else if (action == kShorter) {
    Must(WriteOutput(response, "OUT", in.datatype, {static_cast<int64_t>(size) - 1}, contents, size - 1));
  } else {
    Must(WriteOutput(response, "OUT", in));
  }
  if (action == kTwoOutputs) Must(WriteOutput(response, "OUT2", in));
  if (action == kParameter) Must(TRITONBACKEND_ResponseSetIntParameter(response, "number", 5));
}

void Respond(TRITONBACKEND_Response* response, const Tensor& in, uint8_t action) {
  Fill(response, in, action);
  const Error error(action == kErrorResponse ? Fail("as the request says") : nullptr);
  Must(TRITONBACKEND_ResponseSend(response, kFinal, error.get()));
}

void DoLater(std::function<void()> what) {
  const std::lock_guard lock(mutex);
  later.push_back(std::move(what));
}

void Go() {
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(mutex);
    due.swap(later);
  }
  std::thread([&due] {
    for (const auto& what : due) what();
  }).join();
}

void Note(uint8_t what) {
  const std::lock_guard lock(mutex);
  notes.push_back(what);
}

void WaitUntilCancelled(TRITONBACKEND_Request* request) {
  bool is_cancelled = false;
  while (!is_cancelled) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Must(TRITONBACKEND_RequestIsCancelled(request, &is_cancelled));
  }
}

TRITONSERVER_Error* Do(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
  Tensor in;
  Must(testing::ReadInput(request, "IN", &in));
  const uint8_t action = in.contents.empty() ? uint8_t{kEcho} : in.as<uint8_t>()[0];
  if (action == kExecuteFails) return Fail("Execute fails");
  if (action == kThrow) throw 42;
  if (action == kGo) Go();
  if (action == kUntilCancelled) WaitUntilCancelled(request);
  if (action == kFence) StandAtFence();
  if (action == kNote) Note(in.as<uint8_t>()[1]);
  if (action == kLost) {
    Release(request);
    return nullptr;
  }
  if (action != kNoStatistics) Report(instance, request, action != kFailedStatistics && action != kErrorResponse);
  if (action == kTell) {
    const std::string told = Tell(request) + "\naligned " + std::to_string(IsAligned(request));
    TRITONBACKEND_Response* response = ResponseOf(request);
    const std::vector<int64_t> shape{static_cast<int64_t>(told.size())};
    Must(WriteOutput(response, "OUT", TRITONSERVER_TYPE_UINT8, shape, told.data(), told.size()));
    Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
    Release(request);
    return nullptr;
  }
  const auto respond = [request, in, action] { Respond(ResponseOf(request), in, action); };
  const auto both = [request, respond] {
    respond();
    Release(request);
  };
  if (action == kKeepFactory) {
    TRITONBACKEND_ResponseFactory* factory = testing::FactoryOf(request);
    DoLater([factory] { Must(TRITONBACKEND_ResponseFactoryDelete(factory)); });
  }
  if (action == kAllLater) {
    DoLater(both);
  } else if (action == kReleaseLater) {
    respond();
    DoLater([request] { Release(request); });
  } else if (action == kRespondLater) {
    TRITONBACKEND_Response* response = ResponseOf(request);
    Release(request);
    DoLater([response, in, action] { Respond(response, in, action); });
  } else if (action == kOtherThread) {
    std::thread(both).join();
  } else {
    both();
  }
  if (action == kTwoReports) ReportBatch(instance);
  ReportBatch(instance);
  if (action == kWait) StandAtFence();
  return nullptr;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void PlainAwaitFence() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return is_at_fence && !is_seen; });
  is_seen = true;
}

// No effect if nothing waits.
__attribute__((visibility("default"))) void PlainLetGo() {
  const std::lock_guard lock(mutex);
  let_go = is_at_fence;
  changed.notify_all();
}

// The number of notes since the last call, of which as many are written as there is room for.
__attribute__((visibility("default"))) size_t PlainNotes(uint8_t* told, size_t room) {
  const std::lock_guard lock(mutex);
  const size_t count = notes.size();
  std::copy_n(notes.begin(), std::min(room, count), told);
  notes.clear();
  return count;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) RETURN_IF_ERROR(Do(instance, requests[index]));
  return nullptr;
}

}  // extern "C"
