// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Common code of the tests' backends. They use the public interface only, so each runs in Triton as well.
#ifndef PYRUNTIME_TESTS_NATIVE_COMMON_H_
#define PYRUNTIME_TESTS_NATIVE_COMMON_H_

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritonserver.h"

#define RETURN_IF_ERROR(call)                                \
  do {                                                       \
    if (TRITONSERVER_Error* returned = (call)) return returned; \
  } while (false)

namespace testing {

struct ErrorDelete {
  void operator()(TRITONSERVER_Error* error) const { TRITONSERVER_ErrorDelete(error); }
};
using Error = std::unique_ptr<TRITONSERVER_Error, ErrorDelete>;

inline TRITONSERVER_Error* Fail(const std::string& message,
                                TRITONSERVER_Error_Code code = TRITONSERVER_ERROR_INVALID_ARG) {
  return TRITONSERVER_ErrorNew(code, message.c_str());
}

// For calls that fail only by a fault of the server: ends the process, so that the test fails.
inline void Must(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
  std::abort();
}

inline void Log(TRITONSERVER_LogLevel level, const std::string& message) {
  Must(TRITONSERVER_LogMessage(level, __FILE__, __LINE__, message.c_str()));
}

inline uint64_t NowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// A model's configuration, in which each name that is read occurs once.
class Config {
 public:
  explicit Config(TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* message = nullptr;
    const char* base = nullptr;
    size_t size = 0;
    Must(TRITONBACKEND_ModelConfig(model, 1, &message));
    Must(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
    json_.assign(base, size);
    Must(TRITONSERVER_MessageDelete(message));
  }

  // The value of a parameter, or its default.
  std::string Parameter(const std::string& name, const std::string& otherwise) const {
    const size_t key = json_.find("\"" + name + "\"");
    if (key == std::string::npos) return otherwise;
    const size_t field = json_.find("\"string_value\"", key);
    const size_t start = json_.find('"', json_.find(':', field)) + 1;
    return json_.substr(start, json_.find('"', start) - start);
  }

  int64_t Number(const std::string& name) const {
    const size_t key = json_.find("\"" + name + "\"");
    return key == std::string::npos ? 0 : std::atoll(json_.c_str() + json_.find(':', key) + 1);
  }

  const std::string& json() const { return json_; }

 private:
  std::string json_;
};

// A setting of the command line, "" if it is not set: --backend-config=<backend>,<name>=<value>.
inline std::string Setting(TRITONBACKEND_Backend* backend, const std::string& name) {
  TRITONSERVER_Message* message = nullptr;
  const char* base = nullptr;
  size_t size = 0;
  Must(TRITONBACKEND_BackendConfig(backend, &message));
  Must(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  const std::string json(base, size);
  const size_t key = json.find("\"" + name + "\"");
  if (key == std::string::npos) return "";
  const size_t start = json.find('"', json.find(':', key)) + 1;
  return json.substr(start, json.find('"', start) - start);
}

inline TRITONBACKEND_Model* ModelOf(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model = nullptr;
  Must(TRITONBACKEND_ModelInstanceModel(instance, &model));
  return model;
}

// The state of a backend for an object of the server, as its own type. The entry points New and Delete it.
template <class State>
State* StateOf(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  Must(TRITONBACKEND_ModelState(model, &state));
  return static_cast<State*>(state);
}

template <class State>
State* StateOf(TRITONBACKEND_ModelInstance* instance) {
  void* state = nullptr;
  Must(TRITONBACKEND_ModelInstanceState(instance, &state));
  return static_cast<State*>(state);
}

struct Tensor {
  std::string name;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  std::vector<char> contents;

  template <class Element>
  const Element* as() const { return reinterpret_cast<const Element*>(contents.data()); }
  template <class Element>
  Element* as() { return reinterpret_cast<Element*>(contents.data()); }
  template <class Element>
  size_t count() const { return contents.size() / sizeof(Element); }
};

inline TRITONSERVER_Error* ReadInput(TRITONBACKEND_Input* input, Tensor* tensor) {
  const char* name = nullptr;
  const int64_t* shape = nullptr;
  uint32_t dims = 0;
  uint64_t size = 0;
  uint32_t buffers = 0;
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, &name, &tensor->datatype, &shape, &dims, &size, &buffers));
  tensor->name = name;
  tensor->shape.assign(shape, shape + dims);
  tensor->contents.clear();
  tensor->contents.reserve(size);
  for (uint32_t index = 0; index < buffers; ++index) {
    const void* buffer = nullptr;
    uint64_t bytes = 0;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, index, &buffer, &bytes, &type, &type_id));
    if (type == TRITONSERVER_MEMORY_GPU) return Fail("the test backends know no memory of GPUs");
    const char* start = static_cast<const char*>(buffer);
    tensor->contents.insert(tensor->contents.end(), start, start + bytes);
  }
  if (tensor->contents.size() != size) return Fail("the buffers of an input are not as long as the input");
  return nullptr;
}

inline TRITONSERVER_Error* ReadInput(TRITONBACKEND_Request* request, const char* name, Tensor* tensor) {
  TRITONBACKEND_Input* input = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, name, &input));
  return ReadInput(input, tensor);
}

inline TRITONSERVER_Error* WriteOutput(TRITONBACKEND_Response* response, const char* name,
                                       TRITONSERVER_DataType datatype, const std::vector<int64_t>& shape,
                                       const void* contents, size_t size) {
  TRITONBACKEND_Output* output = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, name, datatype, shape.data(),
                                               static_cast<uint32_t>(shape.size())));
  void* buffer = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &type_id));
  if (type == TRITONSERVER_MEMORY_GPU) return Fail("the test backends know no memory of GPUs");
  if (size > 0) std::memcpy(buffer, contents, size);
  return nullptr;
}

inline TRITONSERVER_Error* WriteOutput(TRITONBACKEND_Response* response, const char* name, const Tensor& tensor) {
  return WriteOutput(response, name, tensor.datatype, tensor.shape, tensor.contents.data(), tensor.contents.size());
}

// Sets a parameter of a response, in the form in which the server gives it.
inline TRITONSERVER_Error* SetParameter(TRITONBACKEND_Response* response, const char* name,
                                        TRITONSERVER_ParameterType type, const void* value) {
  switch (type) {
    case TRITONSERVER_PARAMETER_STRING:
      return TRITONBACKEND_ResponseSetStringParameter(response, name, static_cast<const char*>(value));
    case TRITONSERVER_PARAMETER_INT:
      return TRITONBACKEND_ResponseSetIntParameter(response, name, *static_cast<const int64_t*>(value));
    case TRITONSERVER_PARAMETER_BOOL:
      return TRITONBACKEND_ResponseSetBoolParameter(response, name, *static_cast<const bool*>(value));
    case TRITONSERVER_PARAMETER_DOUBLE:
      return TRITONBACKEND_ResponseSetDoubleParameter(response, name, *static_cast<const double*>(value));
    default:
      return Fail(std::string("parameter '") + name + "' is of an unexpected type");
  }
}

// The number of rows of a request; 1 for a model that does not batch.
inline uint64_t RowsOf(TRITONBACKEND_Request* request, bool is_batched) {
  TRITONBACKEND_Input* input = nullptr;
  const int64_t* shape = nullptr;
  if (!is_batched) return 1;
  Must(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  Must(TRITONBACKEND_InputProperties(input, nullptr, nullptr, &shape, nullptr, nullptr, nullptr));
  return static_cast<uint64_t>(shape[0]);
}

// Answers every request of a batch by itself: `answer` (TRITONSERVER_Error* (request, response)) fills in the response.
template <class Answer>
void ExecuteEach(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count,
                 bool is_batched, Answer answer) {
  const uint64_t start_ns = NowNs();
  uint64_t rows = 0;
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Request* request = requests[index];
    TRITONBACKEND_Response* response = nullptr;
    const uint64_t one_start_ns = NowNs();
    rows += RowsOf(request, is_batched);
    Must(TRITONBACKEND_ResponseNew(&response, request));
    const Error error(answer(request, response));
    const uint64_t one_end_ns = NowNs();
    Must(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error.get()));
    Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, error == nullptr, start_ns, one_start_ns,
                                                     one_end_ns, NowNs()));
    Must(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  const uint64_t end_ns = NowNs();
  Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, start_ns, start_ns, end_ns, end_ns));
}

}  // namespace testing

#endif  // PYRUNTIME_TESTS_NATIVE_COMMON_H_
