// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Reports the state of a sequence, STATE_IN, as parameters of its response: "datatype", "shape", "contents" in
// hexadecimal. The ID of a request selects what it does with the state STATE_OUT:
//
//   read    nothing
//   add     gets a buffer for a state of this size, reports whether it is the input's ("same") and its "before", adds 1
//           to its first byte, and updates the state
//   touch   the same without an update
//   late    the same, but the update comes before the addition: for a state that shares the input's memory
//   grow    the same for a state of twice the size and a first dimension of twice the length; fills all of it with 7
//   after   the same as grow, but the response is sent before all of that
//   again   the same as grow, but releases the request to be executed again, without a response
#include <string>

#include "report.h"

namespace {

using testing::Must;

std::string Hex(const char* data, size_t size) {
  std::string text;
  for (size_t index = 0; index < size; ++index) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(data[index]);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

struct Input {
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  std::vector<int64_t> shape;
  const char* data = nullptr;
  uint64_t size = 0;

  explicit Input(TRITONBACKEND_Input* input) {
    const int64_t* dims = nullptr;
    uint32_t count = 0;
    const void* buffer = nullptr;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0;
    Must(TRITONBACKEND_InputProperties(input, nullptr, &datatype, &dims, &count, &size, nullptr));
    shape.assign(dims, dims + count);
    Must(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &type_id));
    data = static_cast<const char*>(buffer);
  }
};

void Write(TRITONBACKEND_Request* request, const Input& input, const std::string& action, testing::Report* report) {
  const bool grows = action == "grow" || action == "after" || action == "again";
  std::vector<int64_t> shape = input.shape;
  if (grows) shape[0] *= 2;
  const uint64_t size = input.size * (grows ? 2 : 1);
  TRITONBACKEND_State* state = nullptr;
  void* buffer = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  Must(TRITONBACKEND_StateNew(
      &state, request, "STATE_OUT", input.datatype, shape.data(), static_cast<uint32_t>(shape.size())));
  Must(TRITONBACKEND_StateBuffer(state, &buffer, size, &type, &type_id));
  char* data = static_cast<char*>(buffer);
  if (report != nullptr) {
    report->Flag("same", data == input.data);
    if (!grows) report->Text("before", Hex(data, input.size));
  }
  if (action == "late") Must(TRITONBACKEND_StateUpdate(state));
  if (grows) {
    std::memset(data, 7, size);
  } else {
    ++data[0];
  }
  if (action == "add" || grows) Must(TRITONBACKEND_StateUpdate(state));
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* /*instance*/,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    const char* id = nullptr;
    Must(TRITONBACKEND_RequestId(requests[index], &id));
    const std::string action(id);
    testing::Report report(requests[index]);
    TRITONBACKEND_Input* state = nullptr;
    if (const testing::Error error(TRITONBACKEND_RequestInput(requests[index], "STATE_IN", &state)); error != nullptr) {
      Must(TRITONBACKEND_ResponseSend(report.response(), testing::kFinal, error.get()));
      testing::Release(requests[index]);
      continue;
    }
    const Input input(state);
    report.Text("datatype", TRITONSERVER_DataTypeString(input.datatype));
    report.Text("shape", testing::ShapeText(input.shape.data(), input.shape.size()));
    report.Text("contents", Hex(input.data, input.size));
    if (action == "again") {
      Write(requests[index], input, action, nullptr);
      Must(TRITONBACKEND_ResponseDelete(report.response()));
      Must(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_RESCHEDULE));
      continue;
    }
    if (action != "read" && action != "after") Write(requests[index], input, action, &report);
    report.Send();
    if (action == "after") Write(requests[index], input, action, nullptr);
    testing::Release(requests[index]);
  }
  return nullptr;
}

}  // extern "C"
