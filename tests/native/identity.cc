// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Gives every input back, of whatever type and shape, as the output whose name has OUTPUT for INPUT.
//
// Only outputs that are asked for are written. The parameters of a request become those of its response. Parameter
// EXECUTE_DELAY_MS: how long Execute takes.
#include <chrono>
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

TRITONSERVER_Error* Answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  uint32_t count = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Input* input = nullptr;
    testing::Tensor tensor;
    RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    RETURN_IF_ERROR(testing::ReadInput(input, &tensor));
    const std::string output = OutputOf(tensor.name);
    if (IsRequested(request, output)) RETURN_IF_ERROR(testing::WriteOutput(response, output.c_str(), tensor));
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
