// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Runs models of ONNX Runtime, by its C API alone: <version>/<default_model_filename>, with FP32 tensors.
//
// It completes the configuration of a model whose first dimensions are free, reads it again at once, and takes the
// names of inputs and outputs from what it reads there.
//
// The API is a table of functions, in which only new ones are appended. Objects are pointers that nobody looks into.
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"
#include "json.h"

extern "C" {

struct OrtApiBase {
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

const OrtApiBase* OrtGetApiBase();

}  // extern "C"

namespace {

using testing::Error;
using testing::Fail;
using testing::Json;
using testing::Must;
using testing::StateOf;
using testing::Tensor;

// Places in the table of version 1.
enum Function : size_t {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSession = 7,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetIntraOpNumThreads = 24,
  kSessionGetInputCount = 30,
  kSessionGetOutputCount = 31,
  kSessionGetInputTypeInfo = 33,
  kSessionGetOutputTypeInfo = 34,
  kSessionGetInputName = 36,
  kSessionGetOutputName = 37,
  kCreateTensorWithDataAsOrtValue = 49,
  kGetTensorMutableData = 51,
  kCastTypeInfoToTensorInfo = 55,
  kGetTensorElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kCreateCpuMemoryInfo = 69,
  kAllocatorFree = 76,
  kGetAllocatorWithDefaultOptions = 78,
  kReleaseStatus = 93,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseTypeInfo = 98,
  kReleaseTensorTypeAndShapeInfo = 99,
  kReleaseSessionOptions = 100,
};

constexpr uint32_t kApiVersion = 1;
constexpr int kFloat = 1;           // ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
constexpr int kLogWarnings = 2;     // ORT_LOGGING_LEVEL_WARNING
constexpr int kArenaAllocator = 1;  // OrtArenaAllocator
constexpr int kDefaultMemory = 0;   // OrtMemTypeDefault
constexpr int kMaxBatchSize = 4;

template <class Result, class... Arguments>
Result CallAt(Function function, Arguments... arguments) {
  static const auto* const table = static_cast<void* const*>(OrtGetApiBase()->GetApi(kApiVersion));
  return reinterpret_cast<Result (*)(Arguments...)>(table[function])(arguments...);
}

// Calls a function that returns a status. Throws its message.
template <class... Arguments>
void Ort(Function function, Arguments... arguments) {
  void* const status = CallAt<void*>(function, arguments...);
  if (status == nullptr) return;
  const std::string message = CallAt<const char*, const void*>(kGetErrorMessage, status);
  CallAt<void>(kReleaseStatus, status);
  throw std::runtime_error(message);
}

// Calls a function that makes something, and stores it at its last argument.
template <class Made = void*, class... Arguments>
Made Make(Function function, Arguments... arguments) {
  Made made{};
  Ort(function, arguments..., &made);
  return made;
}

std::vector<int64_t> ShapeOf(const void* info) {
  std::vector<int64_t> shape(Make<size_t>(kGetDimensionsCount, info));
  Ort(kGetDimensions, info, shape.data(), shape.size());
  return shape;
}

std::string Join(const std::vector<int64_t>& numbers, size_t first) {
  std::string text;
  for (size_t index = first; index < numbers.size(); ++index) {
    text += (index == first ? "" : ",") + std::to_string(numbers[index]);
  }
  return text;
}

class Session {
 public:
  explicit Session(const std::string& path) {
    static void* const environment = Make(kCreateEnv, kLogWarnings, "onnx");
    void* const options = Make(kCreateSessionOptions);
    Ort(kSetIntraOpNumThreads, options, 1);
    session_ = Make(kCreateSession, static_cast<const void*>(environment), path.c_str(),
                    static_cast<const void*>(options));
    CallAt<void>(kReleaseSessionOptions, options);
  }
  ~Session() { CallAt<void>(kReleaseSession, session_); }

  // The inputs or outputs of the model as the configuration has them; the first dimension is that of the batch.
  std::string Describe(Function count, Function type, Function name) const {
    const void* const session = session_;
    std::string text;
    for (size_t index = 0; index < Make<size_t>(count, session); ++index) {
      void* const info = Make(type, session, index);
      const void* const tensor = Make<const void*>(kCastTypeInfoToTensorInfo, static_cast<const void*>(info));
      const std::vector<int64_t> shape = ShapeOf(tensor);
      if (Make<int>(kGetTensorElementType, tensor) != kFloat || shape.empty() || shape[0] != -1) {
        throw std::runtime_error("the model has a tensor that is not of FP32, or has no free first dimension");
      }
      CallAt<void>(kReleaseTypeInfo, info);
      void* const allocator = Make(kGetAllocatorWithDefaultOptions);
      char* const found = Make<char*>(name, session, index, allocator);
      text += std::string(index == 0 ? "" : ",") + R"({"name":")" + found + R"(","data_type":"TYPE_FP32","dims":[)" +
              Join(shape, 1) + "]}";
      Ort(kAllocatorFree, allocator, static_cast<void*>(found));
    }
    return text;
  }

  std::string Completion() const {
    return R"({"max_batch_size":)" + std::to_string(kMaxBatchSize) + R"(,"input":[)" +
           Describe(kSessionGetInputCount, kSessionGetInputTypeInfo, kSessionGetInputName) + R"(],"output":[)" +
           Describe(kSessionGetOutputCount, kSessionGetOutputTypeInfo, kSessionGetOutputName) +
           R"(],"dynamic_batching":{}})";
  }

  // Runs the model; the outputs are in the order of their names.
  std::vector<Tensor> Run(std::vector<Tensor>* inputs, const std::vector<std::string>& outputs) const {
    static void* const memory = Make(kCreateCpuMemoryInfo, kArenaAllocator, kDefaultMemory);
    std::vector<const char*> input_names;
    std::vector<const char*> output_names;
    std::vector<const void*> values;
    for (Tensor& input : *inputs) {
      input_names.push_back(input.name.c_str());
      values.push_back(Make(
          kCreateTensorWithDataAsOrtValue, static_cast<const void*>(memory), static_cast<void*>(input.contents.data()),
          input.contents.size(), static_cast<const int64_t*>(input.shape.data()), input.shape.size(), kFloat));
    }
    for (const std::string& output : outputs) output_names.push_back(output.c_str());
    std::vector<void*> results(outputs.size());
    Ort(kRun, session_, static_cast<const void*>(nullptr), input_names.data(), values.data(), values.size(),
        output_names.data(), output_names.size(), results.data());
    for (const void* value : values) CallAt<void>(kReleaseValue, const_cast<void*>(value));
    std::vector<Tensor> made;
    for (void* result : results) made.push_back(Read(result));
    return made;
  }

 private:
  // The contents of a value, which is released.
  static Tensor Read(void* value) {
    Tensor tensor;
    tensor.datatype = TRITONSERVER_TYPE_FP32;
    void* const info = Make(kGetTensorTypeAndShape, static_cast<const void*>(value));
    tensor.shape = ShapeOf(info);
    CallAt<void>(kReleaseTensorTypeAndShapeInfo, info);
    size_t size = sizeof(float);
    for (const int64_t dim : tensor.shape) size *= static_cast<size_t>(dim);
    const char* const start = static_cast<const char*>(Make(kGetTensorMutableData, value));
    tensor.contents.assign(start, start + size);
    CallAt<void>(kReleaseValue, value);
    return tensor;
  }

  void* session_;
};

struct Model {
  std::unique_ptr<Session> session;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
};

Json ConfigOf(TRITONBACKEND_Model* model) { return Json::Parse(testing::Config(model).json()); }

TRITONSERVER_Error* Complete(TRITONBACKEND_Model* model, const Session& session) {
  bool wanted = false;
  RETURN_IF_ERROR(TRITONBACKEND_ModelAutoCompleteConfig(model, &wanted));
  if (!wanted) return nullptr;
  const std::string json = session.Completion();
  TRITONSERVER_Message* message = nullptr;
  RETURN_IF_ERROR(TRITONSERVER_MessageNewFromSerializedJson(&message, json.data(), json.size()));
  TRITONSERVER_Error* error = TRITONBACKEND_ModelSetConfig(model, 1, message);
  Must(TRITONSERVER_MessageDelete(message));
  return error;
}

// Every member that this reads must be there, whether the backend has set it or not.
void Learn(const Json& config, Model* state) {
  for (const Json& input : config.at("input").items()) {
    if (input.at("optional").flag() || input.at("is_shape_tensor").flag() || input.at("allow_ragged_batch").flag()) {
      throw std::runtime_error("an input has something that this backend does not support");
    }
    state->inputs.push_back(input.at("name").text());
  }
  for (const Json& output : config.at("output").items()) state->outputs.push_back(output.at("name").text());
  if (!config.at("batch_input").items().empty() || !config.at("batch_output").items().empty()) {
    throw std::runtime_error("this backend makes no batch inputs");
  }
  (void)config.at("optimization").at("input_pinned_memory").at("enable").flag();
  (void)config.at("instance_group").items().at(0).at("count").number();
}

TRITONSERVER_Error* Answer(const Model& model, TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  std::vector<Tensor> inputs(model.inputs.size());
  for (size_t index = 0; index < inputs.size(); ++index) {
    RETURN_IF_ERROR(testing::ReadInput(request, model.inputs[index].c_str(), &inputs[index]));
  }
  try {
    const std::vector<Tensor> outputs = model.session->Run(&inputs, model.outputs);
    for (size_t index = 0; index < outputs.size(); ++index) {
      RETURN_IF_ERROR(testing::WriteOutput(response, model.outputs[index].c_str(), outputs[index]));
    }
  } catch (const std::exception& exc) {
    return Fail(exc.what(), TRITONSERVER_ERROR_INTERNAL);
  }
  return nullptr;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONBACKEND_ArtifactType type;
  const char* location = nullptr;
  uint64_t version = 0;
  RETURN_IF_ERROR(TRITONBACKEND_ModelRepository(model, &type, &location));
  RETURN_IF_ERROR(TRITONBACKEND_ModelVersion(model, &version));
  try {
    auto state = std::make_unique<Model>();
    const std::string filename = ConfigOf(model).at("default_model_filename").text();
    state->session =
        std::make_unique<Session>(std::string(location) + "/" + std::to_string(version) + "/" + filename);
    RETURN_IF_ERROR(Complete(model, *state->session));
    Learn(ConfigOf(model), state.get());
    RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, state.get()));
    state.release();
    return nullptr;
  } catch (const std::exception& exc) {
    return Fail(exc.what(), TRITONSERVER_ERROR_INTERNAL);
  }
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  std::unique_ptr<Model> state(StateOf<Model>(model));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  const Model& model = *StateOf<Model>(testing::ModelOf(instance));
  testing::ExecuteEach(instance, requests, count, true,
                       [&model](TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
                         return Answer(model, request, response);
                       });
  return nullptr;
}

}  // extern "C"
