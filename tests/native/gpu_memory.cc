// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A backend that uses pinned memory and memory of GPUs. Each line of input COMMAND (BYTES [1]) is a step, with words
// separated by blanks; output RESULT (BYTES [1]) has the results line by line. `steps` below are all steps; some make
// further outputs. It takes the driver that the process has loaded, as backends do that are linked against it.
#include <dlfcn.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "common.h"
#include "words.h"

namespace {

using testing::Must;
using testing::Next;
using testing::Say;
using testing::Words;

TRITONSERVER_MemoryType TypeOf(const std::string& name) {
  if (name == "gpu") return TRITONSERVER_MEMORY_GPU;
  return name == "pinned" ? TRITONSERVER_MEMORY_CPU_PINNED : TRITONSERVER_MEMORY_CPU;
}

std::string Kind(TRITONSERVER_MemoryType type, int64_t id) {
  return std::string(TRITONSERVER_MemoryTypeString(type)) + " " + std::to_string(id);
}

// A function of the driver.
template <class... Parameters>
int Cuda(const char* name, Parameters... parameters) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<int (*)(Parameters...)>(dlsym(driver, name))(parameters...);
}

// Has the context of a GPU for the life of the object.
class OnGpu {
 public:
  explicit OnGpu(int number) {
    int device = 0;
    void* context = nullptr;
    Cuda("cuInit", 0U);
    Cuda("cuDeviceGet", &device, number);
    Cuda("cuDevicePrimaryCtxRetain", &context, device);
    Cuda("cuCtxPushCurrent_v2", context);
  }
  ~OnGpu() {
    void* context = nullptr;
    Cuda("cuCtxPopCurrent_v2", &context);
  }
};

struct Block {
  void* memory = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
};

// What a request has asked for, and the response of the model that it calls.
struct Session {
  TRITONSERVER_Server* server = nullptr;
  TRITONBACKEND_MemoryManager* manager = nullptr;
  TRITONBACKEND_Request* request = nullptr;
  // The response to it.
  TRITONBACKEND_Response* answer = nullptr;
  std::vector<Block> blocks;
  // Where the outputs of the called model are to be.
  Block target;

  std::mutex mutex;
  std::condition_variable changed;
  TRITONSERVER_InferenceResponse* response = nullptr;
  bool is_released = false;
  bool is_described = false;
};

TRITONSERVER_Error* Allocate(
    TRITONSERVER_ResponseAllocator*, const char*, size_t, TRITONSERVER_MemoryType, int64_t, void* userp, void** buffer,
    void** buffer_userp, TRITONSERVER_MemoryType* type, int64_t* type_id) {
  const Block& target = static_cast<Session*>(userp)->target;
  *buffer = target.memory;
  *buffer_userp = nullptr;
  *type = target.type;
  *type_id = target.id;
  return nullptr;
}

TRITONSERVER_Error* Keep(
    TRITONSERVER_ResponseAllocator*, void*, void*, size_t, TRITONSERVER_MemoryType, int64_t) {
  return nullptr;
}

TRITONSERVER_Error* Describe(
    TRITONSERVER_ResponseAllocator*, const char*, TRITONSERVER_BufferAttributes* attributes, void* userp, void*) {
  auto* session = static_cast<Session*>(userp);
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  Must(TRITONSERVER_BufferAttributesMemoryType(attributes, &type));
  Must(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &id));
  session->is_described = type == session->target.type && id == session->target.id;
  return nullptr;
}

void Complete(TRITONSERVER_InferenceResponse* response, const uint32_t, void* userp) {
  auto* session = static_cast<Session*>(userp);
  const std::lock_guard<std::mutex> lock(session->mutex);
  if (response != nullptr) session->response = response;
}

void Released(TRITONSERVER_InferenceRequest*, const uint32_t, void* userp) {
  auto* session = static_cast<Session*>(userp);
  const std::lock_guard<std::mutex> lock(session->mutex);
  session->is_released = true;
  session->changed.notify_all();
}

// Calls a model with the values in one block as its input IN; its output OUT goes to another block.
std::string Call(Session* session, const std::string& model, size_t count, const Block& input, const Block& output) {
  TRITONSERVER_InferenceRequest* request = nullptr;
  TRITONSERVER_ResponseAllocator* allocator = nullptr;
  const auto shape = static_cast<int64_t>(count);
  session->target = output;
  session->response = nullptr;
  session->is_released = session->is_described = false;
  Must(TRITONSERVER_InferenceRequestNew(&request, session->server, model.c_str(), -1));
  Must(TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_FP32, &shape, 1));
  // In two pieces, one of them in main memory if there are several values.
  float first = 0;
  const size_t apart = count > 1 ? sizeof(float) : 0;
  if (apart != 0) {
    const OnGpu on(static_cast<int>(input.id));
    Cuda("cuMemcpyDtoH_v2", static_cast<void*>(&first), reinterpret_cast<uint64_t>(input.memory), sizeof(float));
    Must(TRITONSERVER_InferenceRequestAppendInputData(
        request, "IN", &first, sizeof(float), TRITONSERVER_MEMORY_CPU_PINNED, 0));
  }
  Must(TRITONSERVER_InferenceRequestAppendInputData(
      request, "IN", static_cast<char*>(input.memory) + apart, count * sizeof(float) - apart, input.type, input.id));
  Must(TRITONSERVER_ResponseAllocatorNew(&allocator, Allocate, Keep, nullptr));
  Must(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, Describe));
  Must(TRITONSERVER_InferenceRequestSetReleaseCallback(request, Released, session));
  Must(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, session, Complete, session));
  std::string result = Say(TRITONSERVER_ServerInferAsync(session->server, request, nullptr));
  if (result == "ok") {
    std::unique_lock<std::mutex> lock(session->mutex);
    session->changed.wait(lock, [session] { return session->is_released; });
    result = Say(TRITONSERVER_InferenceResponseError(session->response));
    if (result == "ok" && !session->is_described) result = "the output was not described as it is";
    Must(TRITONSERVER_InferenceResponseDelete(session->response));
  }
  Must(TRITONSERVER_InferenceRequestDelete(request));
  Must(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return result;
}

std::string InputKind(Session* session, const std::string& name, TRITONSERVER_MemoryType type, int64_t id) {
  TRITONBACKEND_Input* input = nullptr;
  const void* buffer = nullptr;
  uint64_t size = 0;
  Must(TRITONBACKEND_RequestInput(session->request, name.c_str(), &input));
  Must(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
  TRITONSERVER_BufferAttributes* attributes = nullptr;
  void* handle = session;
  Must(TRITONBACKEND_InputBufferAttributes(input, 0, &buffer, &attributes));
  Must(TRITONSERVER_BufferAttributesCudaIpcHandle(attributes, &handle));
  return std::to_string(size) + " bytes in " + Kind(type, id) + (handle == nullptr ? "" : " with a handle");
}

void Copy(const Block& target, const Block& source, size_t size) {
  if (target.type == TRITONSERVER_MEMORY_GPU) {
    const OnGpu on(static_cast<int>(target.id));
    const auto address = reinterpret_cast<uint64_t>(target.memory);
    if (Cuda("cuMemcpyHtoD_v2", address, static_cast<const void*>(source.memory), size) != 0) std::abort();
  } else if (source.type == TRITONSERVER_MEMORY_GPU) {
    const OnGpu on(static_cast<int>(source.id));
    const auto address = reinterpret_cast<uint64_t>(source.memory);
    if (Cuda("cuMemcpyDtoH_v2", target.memory, address, size) != 0) std::abort();
  } else {
    std::memcpy(target.memory, source.memory, size);
  }
}

// The values of an input, wherever it lies.
std::string InputValues(Session* session, const std::string& name) {
  TRITONBACKEND_Input* input = nullptr;
  const void* buffer = nullptr;
  uint64_t size = 0;
  Block block;
  Must(TRITONBACKEND_RequestInput(session->request, name.c_str(), &input));
  Must(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &block.type, &block.id));
  block.memory = const_cast<void*>(buffer);
  std::vector<float> values(size / sizeof(float));
  Copy(Block{values.data()}, block, size);
  std::ostringstream text;
  for (const float value : values) text << value << " ";
  return text.str();
}

// Adds an output with these values to a response, in memory that is asked for as `wanted` says, and says what it is.
std::string AddOutput(
    TRITONBACKEND_Response* response, const std::string& name, Block wanted, std::vector<float> values) {
  const auto shape = static_cast<int64_t>(values.size());
  TRITONBACKEND_Output* output = nullptr;
  Block block = wanted;
  Must(TRITONBACKEND_ResponseOutput(response, &output, name.c_str(), TRITONSERVER_TYPE_FP32, &shape, 1));
  Must(TRITONBACKEND_OutputBuffer(output, &block.memory, values.size() * sizeof(float), &block.type, &block.id));
  Copy(block, Block{values.data()}, values.size() * sizeof(float));
  TRITONSERVER_BufferAttributes* attributes = nullptr;
  Block described;
  size_t size = 0;
  Must(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  Must(TRITONSERVER_BufferAttributesMemoryType(attributes, &described.type));
  Must(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &described.id));
  Must(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
  const bool is_described =
      described.type == block.type && described.id == block.id && size == values.size() * sizeof(float);
  void* again = nullptr;
  const std::string refused = Say(TRITONBACKEND_OutputBuffer(output, &again, size, &wanted.type, &wanted.id));
  if (refused.find("Already exists") != 0) return "a second buffer: " + refused;
  return Kind(block.type, block.id) + (is_described ? "" : ", which is not what its attributes say");
}

using Step = std::function<std::string(Session*, Words&)>;
#define STEP [](Session * session [[maybe_unused]], Words & words [[maybe_unused]]) -> std::string

const std::map<std::string, Step> steps{
    // allocate TYPE GPU BYTES: the block gets the next number, from 0 on
    {"allocate", STEP {
       Block block;
       block.type = TypeOf(Next<std::string>(words));
       block.id = Next<int64_t>(words);
       TRITONSERVER_Error* error = TRITONBACKEND_MemoryManagerAllocate(
           session->manager, &block.memory, block.type, block.id, Next<uint64_t>(words));
       session->blocks.push_back(block);
       return Say(error);
     }},
    {"free", STEP {  // free NUMBER
       const Block& block = session->blocks.at(Next<size_t>(words));
       return Say(TRITONBACKEND_MemoryManagerFree(session->manager, block.memory, block.type, block.id));
     }},
    {"free_as", STEP {  // free_as TYPE GPU NUMBER
       const TRITONSERVER_MemoryType type = TypeOf(Next<std::string>(words));
       const auto id = Next<int64_t>(words);
       return Say(TRITONBACKEND_MemoryManagerFree(
           session->manager, session->blocks.at(Next<size_t>(words)).memory, type, id));
     }},
    {"touch", STEP {  // touch NUMBER BYTES, in main memory
       const Block& block = session->blocks.at(Next<size_t>(words));
       std::memset(block.memory, 1, Next<size_t>(words));
       return "ok";
     }},
    {"write", STEP {  // write NUMBER VALUES, on a GPU
       const Block& block = session->blocks.at(Next<size_t>(words));
       std::vector<float> values;
       for (float value = 0; words >> value;) values.push_back(value);
       const OnGpu on(static_cast<int>(block.id));
       return std::to_string(Cuda(
           "cuMemcpyHtoD_v2", reinterpret_cast<uint64_t>(block.memory), static_cast<const void*>(values.data()),
           values.size() * sizeof(float)));
     }},
    {"read", STEP {  // read NUMBER COUNT, on a GPU
       const Block& block = session->blocks.at(Next<size_t>(words));
       std::vector<float> values(Next<size_t>(words));
       const OnGpu on(static_cast<int>(block.id));
       Cuda("cuMemcpyDtoH_v2", static_cast<void*>(values.data()), reinterpret_cast<uint64_t>(block.memory),
            values.size() * sizeof(float));
       std::ostringstream text;
       for (const float value : values) text << value << " ";
       return text.str();
     }},
    {"call", STEP {  // call MODEL COUNT NUMBER NUMBER
       const auto model = Next<std::string>(words);
       const auto count = Next<size_t>(words);
       const Block input = session->blocks.at(Next<size_t>(words));
       const Block output = session->blocks.at(Next<size_t>(words));
       return Call(session, model, count, input, output);
     }},
    {"elsewhere", STEP {  // elsewhere NUMBER GPU: say that a block is on another GPU
       Block& block = session->blocks.at(Next<size_t>(words));
       block.id = Next<int64_t>(words);
       return "ok";
     }},
    {"input", STEP {  // input NAME TYPE GPU: which memory an input has for one that is preferred
       const auto name = Next<std::string>(words);
       const TRITONSERVER_MemoryType type = TypeOf(Next<std::string>(words));
       return InputKind(session, name, type, Next<int64_t>(words));
     }},
    {"values", STEP {  // values NAME: those of an input
       return InputValues(session, Next<std::string>(words));
     }},
    {"output", STEP {  // output NAME TYPE GPU VALUES: an output in memory that is preferred
       const auto name = Next<std::string>(words);
       Block wanted;
       wanted.type = TypeOf(Next<std::string>(words));
       wanted.id = Next<int64_t>(words);
       std::vector<float> values;
       for (float value = 0; words >> value;) values.push_back(value);
       return AddOutput(session->answer, name, wanted, std::move(values));
     }},
    {"discard", STEP {  // discard NAME GPU COUNT: the same on a GPU, for a response that is deleted
       const auto name = Next<std::string>(words);
       Block wanted{nullptr, TRITONSERVER_MEMORY_GPU, Next<int64_t>(words)};
       TRITONBACKEND_Response* response = nullptr;
       Must(TRITONBACKEND_ResponseNew(&response, session->request));
       std::string result = AddOutput(response, name, wanted, std::vector<float>(Next<size_t>(words)));
       Must(TRITONBACKEND_ResponseDelete(response));
       return result;
     }},
    {"contexts", STEP { return std::to_string(Cuda("fakeDepth")); }},
    {"blocks", STEP { return std::to_string(Cuda("fakeBlocks")); }},
};

// A text as BYTES of one element, in memory that is asked for as `type`, which the first line says.
TRITONSERVER_Error* Reply(TRITONBACKEND_Response* response, TRITONSERVER_MemoryType type, const std::string& text) {
  const int64_t one = 1;
  TRITONBACKEND_Output* output = nullptr;
  void* buffer = nullptr;
  int64_t id = 0;
  Must(TRITONBACKEND_ResponseOutput(response, &output, "RESULT", TRITONSERVER_TYPE_BYTES, &one, 1));
  const auto length = static_cast<uint32_t>(text.size());
  const TRITONSERVER_MemoryType wanted = type;
  Must(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof(length) + text.size(), &type, &id));
  if (type == TRITONSERVER_MEMORY_GPU) return testing::Fail("a text is on a GPU");
  std::memcpy(buffer, &length, sizeof(length));
  std::memcpy(static_cast<char*>(buffer) + sizeof(length), text.data(), text.size());
  const std::string found = Kind(wanted, 0) + " is " + Kind(type, id);
  return TRITONBACKEND_ResponseSetStringParameter(response, "output", found.c_str());
}

}  // namespace

extern "C" {

TRITONSERVER_DECLSPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Backend* backend = nullptr;
  Must(TRITONBACKEND_ModelBackend(testing::ModelOf(instance), &backend));
  const auto answer = [&](TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
    Session session;
    session.request = request;
    session.answer = response;
    Must(TRITONBACKEND_BackendMemoryManager(backend, &session.manager));
    Must(TRITONBACKEND_ModelServer(testing::ModelOf(instance), &session.server));
    testing::Tensor command;
    Must(testing::ReadInput(request, "COMMAND", &command));
    Words lines(std::string(command.contents.begin() + sizeof(uint32_t), command.contents.end()));
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      Words words(line);
      const auto verb = Next<std::string>(words);
      text += steps.at(verb)(&session, words) + "\n";
    }
    return Reply(response, TRITONSERVER_MEMORY_GPU, text);
  };
  testing::ExecuteEach(instance, requests, count, false, answer);
  return nullptr;
}

}  // extern "C"
