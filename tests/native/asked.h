// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A request that server_steps.cc makes, with notes of all callbacks.
#ifndef PYRUNTIME_TESTS_NATIVE_ASKED_H_
#define PYRUNTIME_TESTS_NATIVE_ASKED_H_

#include <condition_variable>
#include <list>
#include <mutex>
#include <utility>

#include "common.h"
#include "words.h"

namespace {

using testing::Next;
using testing::Rest;
using testing::Say;
using testing::Word;
using testing::Words;

// One request, and its outcome.
struct Asked {
  explicit Asked(TRITONSERVER_Server* server) : server(server) {}
  ~Asked() {
    if (request != nullptr) testing::Must(TRITONSERVER_InferenceRequestDelete(request));
    if (allocator != nullptr) testing::Must(TRITONSERVER_ResponseAllocatorDelete(allocator));
  }

  void Note(const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    log.push_back(line);
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return final && released; });
  }
  const std::vector<float>& Values(Words& words) {
    std::vector<float>& values = data.emplace_back();
    for (float value = 0; words >> value;) values.push_back(value);
    return values;
  }

  TRITONSERVER_Server* const server;
  TRITONSERVER_InferenceRequest* request = nullptr;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  std::list<std::vector<float>> data;
  std::string model;
  std::string refused;
  std::string elsewhere;
  std::string nested;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> log;
  bool final = false;
  bool released = false;
};

std::vector<std::string> Run(TRITONSERVER_Server* server, const std::string& script);

TRITONSERVER_Error* Allocate(
    TRITONSERVER_ResponseAllocator*, const char* name, size_t size, TRITONSERVER_MemoryType, int64_t, void* userp,
    void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* type, int64_t* type_id) {
  auto* asked = static_cast<Asked*>(userp);
  asked->Note(std::string("allocate ") + name + " " + std::to_string(size));
  if (asked->refused == name) return testing::Fail("no room", TRITONSERVER_ERROR_UNAVAILABLE);
  *buffer = std::malloc(size);
  *buffer_userp = userp;
  *type = asked->elsewhere == name ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU;
  *type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* Free(
    TRITONSERVER_ResponseAllocator*, void* buffer, void* buffer_userp, size_t size, TRITONSERVER_MemoryType, int64_t) {
  static_cast<Asked*>(buffer_userp)->Note("free " + std::to_string(size));
  std::free(buffer);
  return nullptr;
}

TRITONSERVER_Error* Start(TRITONSERVER_ResponseAllocator*, void* userp) {
  static_cast<Asked*>(userp)->Note("start");
  return nullptr;
}

void NoteOutput(Asked* asked, TRITONSERVER_InferenceResponse* response, uint32_t index) {
  const char* name = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint64_t dims = 0;
  const void* base = nullptr;
  size_t size = 0;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_GPU;
  int64_t type_id = 0;
  void* userp = nullptr;
  testing::Must(TRITONSERVER_InferenceResponseOutput(
      response, index, &name, &datatype, &shape, &dims, &base, &size, &type, &type_id, &userp));
  std::ostringstream line;
  line << "output " << name << " " << TRITONSERVER_DataTypeString(datatype) << " [";
  for (uint64_t dim = 0; dim < dims; ++dim) line << (dim != 0 ? "," : "") << shape[dim];
  std::vector<float> values(size / sizeof(float));
  if (size != 0) std::memcpy(values.data(), base, size);
  line << "]";
  for (const float value : values) line << " " << value;
  asked->Note(line.str() + (userp == asked ? "" : " of a stranger"));
}

void NoteParameter(Asked* asked, TRITONSERVER_InferenceResponse* response, uint32_t index) {
  const char* name = nullptr;
  TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
  const void* value = nullptr;
  testing::Must(TRITONSERVER_InferenceResponseParameter(response, index, &name, &type, &value));
  std::ostringstream line;
  line << "parameter " << name << " " << TRITONSERVER_ParameterTypeString(type) << " ";
  if (type == TRITONSERVER_PARAMETER_STRING) line << static_cast<const char*>(value);
  if (type == TRITONSERVER_PARAMETER_INT) line << *static_cast<const int64_t*>(value);
  if (type == TRITONSERVER_PARAMETER_BOOL) line << *static_cast<const bool*>(value);
  if (type == TRITONSERVER_PARAMETER_DOUBLE) line << *static_cast<const double*>(value);
  asked->Note(line.str());
}

void NoteResponse(Asked* asked, TRITONSERVER_InferenceResponse* response, uint32_t flags) {
  if (response == nullptr) {
    asked->Note("no response, flags " + std::to_string(flags));
    return;
  }
  const char* name = nullptr;
  const char* id = nullptr;
  int64_t version = 0;
  uint32_t outputs = 0;
  uint32_t parameters = 0;
  testing::Must(TRITONSERVER_InferenceResponseModel(response, &name, &version));
  testing::Must(TRITONSERVER_InferenceResponseId(response, &id));
  testing::Must(TRITONSERVER_InferenceResponseOutputCount(response, &outputs));
  testing::Must(TRITONSERVER_InferenceResponseParameterCount(response, &parameters));
  std::ostringstream line;
  line << "response of " << name << " " << version << " to '" << id << "', flags " << flags << ", ";
  asked->Note(line.str() + Say(TRITONSERVER_InferenceResponseError(response)));
  for (uint32_t index = 0; index < outputs; ++index) NoteOutput(asked, response, index);
  for (uint32_t index = 0; index < parameters; ++index) NoteParameter(asked, response, index);
  testing::Must(TRITONSERVER_InferenceResponseDelete(response));
}

void Complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
  auto* asked = static_cast<Asked*>(userp);
  NoteResponse(asked, response, flags);
  const std::string nested = std::exchange(asked->nested, "");
  if (!nested.empty()) {
    const std::string script = "new " + nested + " -1\ninput IN 1 1\ndata IN 7\ncallbacks\ninfer\n";
    for (const std::string& line : Run(asked->server, script)) asked->Note("nested " + line);
  }
  const std::lock_guard<std::mutex> lock(asked->mutex);
  asked->final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
  asked->changed.notify_all();
}

void Released(TRITONSERVER_InferenceRequest*, const uint32_t flags, void* userp) {
  auto* asked = static_cast<Asked*>(userp);
  const std::lock_guard<std::mutex> lock(asked->mutex);
  asked->log.push_back("released, flags " + std::to_string(flags));
  asked->released = true;
  asked->changed.notify_all();
}

std::string Describe(TRITONSERVER_InferenceRequest* request) {
  const char* id = "";
  const char* text = "";
  uint32_t flags = 0;
  uint64_t priority = 0;
  uint64_t timeout = 0;
  uint64_t number = 0;
  testing::Must(TRITONSERVER_InferenceRequestId(request, &id));
  testing::Must(TRITONSERVER_InferenceRequestFlags(request, &flags));
  testing::Must(TRITONSERVER_InferenceRequestPriorityUInt64(request, &priority));
  testing::Must(TRITONSERVER_InferenceRequestTimeoutMicroseconds(request, &timeout));
  std::ostringstream line;
  line << "id '" << id << "' flags " << flags << " priority " << priority << " timeout " << timeout;
  line << " number " << Say(TRITONSERVER_InferenceRequestCorrelationId(request, &number)) << " " << number;
  line << " text " << Say(TRITONSERVER_InferenceRequestCorrelationIdString(request, &text)) << " " << text;
  return line.str();
}

std::string SetCallbacks(Asked* asked, bool with_release) {
  if (with_release) testing::Must(TRITONSERVER_InferenceRequestSetReleaseCallback(asked->request, Released, asked));
  if (asked->allocator == nullptr) {
    testing::Must(TRITONSERVER_ResponseAllocatorNew(&asked->allocator, Allocate, Free, Start));
  }
  return Say(TRITONSERVER_InferenceRequestSetResponseCallback(
      asked->request, asked->allocator, asked, Complete, asked));
}

std::string Infer(Asked* asked, bool wait) {
  asked->final = asked->released = false;
  const std::string result = Say(TRITONSERVER_ServerInferAsync(asked->server, asked->request, nullptr));
  if (wait && result == "ok") asked->Wait();
  return result;
}

}  // namespace

#endif  // PYRUNTIME_TESTS_NATIVE_ASKED_H_
