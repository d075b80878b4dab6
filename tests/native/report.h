// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Common code of backends that report their information as the parameters of a response.
#ifndef PYRUNTIME_TESTS_NATIVE_REPORT_H_
#define PYRUNTIME_TESTS_NATIVE_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common.h"

namespace testing {

using Requests = std::vector<TRITONBACKEND_Request*>;
constexpr uint32_t kFinal = TRITONSERVER_RESPONSE_COMPLETE_FINAL;
constexpr uint32_t kAll = TRITONSERVER_REQUEST_RELEASE_ALL;
constexpr uint32_t kReschedule = TRITONSERVER_REQUEST_RELEASE_RESCHEDULE;

// "" for success, else the code and the message.
inline std::string Told(TRITONSERVER_Error* error) {
  if (error == nullptr) return "";
  const Error owned(error);
  return std::string(TRITONSERVER_ErrorCodeString(error)) + ": " + TRITONSERVER_ErrorMessage(error);
}

// A report, in a response that is open from the beginning.
class Report {
 public:
  explicit Report(TRITONBACKEND_Request* request) { Must(TRITONBACKEND_ResponseNew(&response_, request)); }

  void Text(const std::string& name, const std::string& value) {
    Must(TRITONBACKEND_ResponseSetStringParameter(response_, name.c_str(), value.c_str()));
  }
  void Number(const std::string& name, int64_t value) {
    Must(TRITONBACKEND_ResponseSetIntParameter(response_, name.c_str(), value));
  }
  void Flag(const std::string& name, bool value) {
    Must(TRITONBACKEND_ResponseSetBoolParameter(response_, name.c_str(), value));
  }
  void Float(const std::string& name, double value) {
    Must(TRITONBACKEND_ResponseSetDoubleParameter(response_, name.c_str(), value));
  }
  void Send() { Must(TRITONBACKEND_ResponseSend(response_, kFinal, nullptr)); }

  TRITONBACKEND_Response* response() const { return response_; }

 private:
  TRITONBACKEND_Response* response_ = nullptr;
};

inline void Release(TRITONBACKEND_Request* request) { Must(TRITONBACKEND_RequestRelease(request, kAll)); }

inline TRITONBACKEND_ResponseFactory* FactoryOf(TRITONBACKEND_Request* request) {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  return factory;
}

inline TRITONBACKEND_Response* ResponseOf(TRITONBACKEND_ResponseFactory* factory) {
  TRITONBACKEND_Response* response = nullptr;
  Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
  return response;
}

inline TRITONBACKEND_Response* ResponseOf(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = nullptr;
  Must(TRITONBACKEND_ResponseNew(&response, request));
  return response;
}

inline TRITONBACKEND_Output* AddOutput(TRITONBACKEND_Response* response, const char* name,
                                       TRITONSERVER_DataType datatype, const std::vector<int64_t>& shape) {
  TRITONBACKEND_Output* output = nullptr;
  Must(TRITONBACKEND_ResponseOutput(
      response, &output, name, datatype, shape.data(), static_cast<uint32_t>(shape.size())));
  return output;
}

inline void WriteNumber(TRITONBACKEND_Response* response, int64_t number) {
  Must(WriteOutput(response, "OUT", TRITONSERVER_TYPE_INT64, {1}, &number, sizeof number));
}

inline std::string ShapeText(const int64_t* shape, uint64_t dims) {
  std::string text;
  for (uint64_t index = 0; index < dims; ++index) text += (index == 0 ? "" : ",") + std::to_string(shape[index]);
  return text;
}

// Performs the action that is the ID of the batch's first request; `otherwise` if it has none.
using Functions = std::map<std::string, void (*)(const Requests&)>;

inline void Dispatch(const Functions& functions, TRITONBACKEND_Request** requests, uint32_t count,
                     void (*otherwise)(const Requests&)) {
  const char* id = nullptr;
  Must(TRITONBACKEND_RequestId(requests[0], &id));
  const auto found = functions.find(id);
  (found == functions.end() ? otherwise : found->second)(Requests(requests, requests + count));
}

}  // namespace testing

#endif  // PYRUNTIME_TESTS_NATIVE_REPORT_H_
