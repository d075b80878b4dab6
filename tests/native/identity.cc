// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Returns every input, of any type and shape, as the output whose name has OUTPUT for INPUT.
//
// Only requested outputs are written. The parameters of a request become those of its response. Parameter
// EXECUTE_DELAY_MS: the duration of Execute.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "common.h"

namespace {

using testing::StateOf;

struct Model {
  bool is_batched;
  std::chrono::milliseconds delay;
};

std::string OutputOf(std::string name) {
  const size_t start = name.find("INPUT");
  return start == std::string::npos ? name : name.replace(start, 5, "OUTPUT");
}

bool IsRequested(TRITONBACKEND_Request* request, const std::string& output) {
  uint32_t count = 0;
  testing::Must(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* name = nullptr;
    testing::Must(TRITONBACKEND_RequestOutputName(request, index, &name));
    if (output == name) return true;
  }
  return false;
}

TRITONSERVER_Error* CopyParameters(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  uint32_t count = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
    const void* value = nullptr;
    RETURN_IF_ERROR(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    RETURN_IF_ERROR(testing::SetParameter(response, key, type, value));
  }
  return nullptr;
}

// Copies from the server's buffers into the server's buffer, so that benchmarks measure the server and one copy.
TRITONSERVER_Error* Return(TRITONBACKEND_Request* request, TRITONBACKEND_Input* input,
                           TRITONBACKEND_Response* response) {
  const char* name = nullptr;
  TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INVALID;
  const int64_t* shape = nullptr;
  uint32_t dims = 0;
  uint64_t size = 0;
  uint32_t parts = 0;
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &size, &parts));
  const std::string as = OutputOf(name);
  if (!IsRequested(request, as)) return nullptr;
  TRITONBACKEND_Output* output = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, as.c_str(), datatype, shape, dims));
  void* buffer = nullptr;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, size, &memory, &id));
  if (memory == TRITONSERVER_MEMORY_GPU) return testing::Fail("the test backends know no memory of GPUs");
  uint64_t copied = 0;
  for (uint32_t index = 0; index < parts; ++index) {
    const void* part = nullptr;
    uint64_t bytes = 0;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, index, &part, &bytes, &memory, &id));
    if (memory == TRITONSERVER_MEMORY_GPU) return testing::Fail("the test backends know no memory of GPUs");
    if (bytes > size - copied) return testing::Fail("the buffers of an input are longer than the input");
    if (bytes > 0) std::memcpy(static_cast<char*>(buffer) + copied, part, bytes);
    copied += bytes;
  }
  return copied == size ? nullptr : testing::Fail("the buffers of an input are shorter than the input");
}

TRITONSERVER_Error* Answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  uint32_t count = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Input* input = nullptr;
    RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    RETURN_IF_ERROR(Return(request, input, response));
  }
  return CopyParameters(request, response);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const testing::Config config(model);
  const std::chrono::milliseconds delay(std::atoi(config.Parameter("EXECUTE_DELAY_MS", "0").c_str()));
  auto state = std::make_unique<Model>(Model{config.Number("max_batch_size") > 0, delay});
  RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, state.get()));
  state.release();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  std::unique_ptr<Model> state(StateOf<Model>(model));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  const Model* model = StateOf<Model>(testing::ModelOf(instance));
  std::this_thread::sleep_for(model->delay);
  testing::ExecuteEach(instance, requests, count, model->is_batched, Answer);
  return nullptr;
}

}  // extern "C"
