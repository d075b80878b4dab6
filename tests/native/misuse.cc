// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Breaks the rules for backends. Model: INPUT0 INT32 [1], OUTPUT0 INT32 [1], which is 1, no batching.
//
// Parameter MISUSE is the action for each request (see misuses below; "" is proper use). The server's error is logged
// as `misuse <name>: <message>`, or `no error`, and is parameter "outcome" of the response, if there is one.
//
// Parameters AT and DO: an action at one of the entry points, "execute", "model_initialize", "model_finalize",
// "instance_initialize", "instance_finalize", "instance_ready": "error", "throw_exception", "throw_int", "abort",
// "segfault", "exit", "leave" (changes the folder of the process), "fork" (a process that does nothing until it is
// ended), "bad_json" (a message that is not JSON), "set_config" (proper only in model_initialize). At "initialize",
// "finalize" and "attribute", which have no model, the settings of the same names on the command line count:
// --backend-config=<backend>,AT=initialize.
//
// Compiled with NO_EXECUTE it has no entry point to execute; with API_MINOR=<n> it wants that version of the interface.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common.h"

#ifndef API_MINOR
#define API_MINOR TRITONBACKEND_API_VERSION_MINOR
#endif

namespace {

using testing::Error;
using testing::Fail;
using testing::Must;

const std::vector<int64_t> kShape{1};
const int32_t kOne = 1;
constexpr uint32_t kFinal = TRITONSERVER_RESPONSE_COMPLETE_FINAL;
constexpr uint32_t kAll = TRITONSERVER_REQUEST_RELEASE_ALL;

// The server's error as text; the error is deleted.
std::string Outcome(const char* misuse, TRITONSERVER_Error* said) {
  const Error error(said);
  const std::string outcome =
      error == nullptr ? "no error"
                       : std::string(TRITONSERVER_ErrorCodeString(said)) + ": " + TRITONSERVER_ErrorMessage(said);
  testing::Log(TRITONSERVER_LOG_INFO, std::string("misuse ") + misuse + ": " + outcome);
  return outcome;
}

TRITONBACKEND_Response* NewResponse(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = nullptr;
  Must(TRITONBACKEND_ResponseNew(&response, request));
  return response;
}

TRITONSERVER_Error* WriteOne(TRITONBACKEND_Response* response) {
  return testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_INT32, kShape, &kOne, sizeof(kOne));
}

// Sends a proper response, with an outcome if there is one.
void Respond(TRITONBACKEND_Request* request, const std::string& outcome = "") {
  TRITONBACKEND_Response* response = NewResponse(request);
  Must(WriteOne(response));
  if (!outcome.empty()) Must(TRITONBACKEND_ResponseSetStringParameter(response, "outcome", outcome.c_str()));
  Must(TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
}

void Release(TRITONBACKEND_Request* request) { Must(TRITONBACKEND_RequestRelease(request, kAll)); }

void RespondAndRelease(TRITONBACKEND_Request* request, const std::string& outcome = "") {
  Respond(request, outcome);
  Release(request);
}

TRITONSERVER_Error* AddOutput(TRITONBACKEND_Response* response, TRITONBACKEND_Output** output,
                              const char* name = "OUTPUT0", TRITONSERVER_DataType datatype = TRITONSERVER_TYPE_INT32,
                              const std::vector<int64_t>& shape = kShape) {
  return TRITONBACKEND_ResponseOutput(response, output, name, datatype, shape.data(),
                                      static_cast<uint32_t>(shape.size()));
}

TRITONSERVER_Error* Allocate(TRITONBACKEND_Output* output, uint64_t size, void** buffer) {
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  return TRITONBACKEND_OutputBuffer(output, buffer, size, &type, &type_id);
}

// ---- Requests and responses ----------------------------------------------------------------------------------------

void Proper(TRITONBACKEND_Request* request) { RespondAndRelease(request); }

void ReleaseTwice(TRITONBACKEND_Request* request) {
  RespondAndRelease(request);
  Outcome("release_twice", TRITONBACKEND_RequestRelease(request, kAll));
}

void ReleaseNull(TRITONBACKEND_Request* request) {
  RespondAndRelease(request, Outcome("release_null", TRITONBACKEND_RequestRelease(nullptr, kAll)));
}

void ReleaseWithoutFlags(TRITONBACKEND_Request* request) {
  Respond(request);
  const Error error(TRITONBACKEND_RequestRelease(request, 0));
  if (error != nullptr) Release(request);
}

void RespondAfterFinal(TRITONBACKEND_Request* request) {
  Respond(request);
  TRITONBACKEND_Response* response = nullptr;
  if (TRITONSERVER_Error* error = TRITONBACKEND_ResponseNew(&response, request)) {
    Outcome("respond_after_final", error);
  } else {
    Must(WriteOne(response));
    Outcome("respond_after_final", TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
  }
  Release(request);
}

void SendNull(TRITONBACKEND_Request* request) {
  RespondAndRelease(request, Outcome("send_null", TRITONBACKEND_ResponseSend(nullptr, kFinal, nullptr)));
}

void FinalTwice(TRITONBACKEND_Request* request) {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  RespondAndRelease(request);
  Outcome("final_twice", TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
}

void NeverRespond(TRITONBACKEND_Request* request) { Release(request); }

void NeverRelease(TRITONBACKEND_Request* request) { Respond(request); }

void Forget(TRITONBACKEND_Request*) {}

// Responses that were deleted do not count as sent.
void DeleteResponse(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = NewResponse(request);
  Must(WriteOne(response));
  const std::string outcome = Outcome("delete_response", TRITONBACKEND_ResponseDelete(response));
  RespondAndRelease(request, outcome);
}

// Without the final flag a response is not the last one, even if the model sends no more.
void NeverFinal(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = NewResponse(request);
  Must(WriteOne(response));
  Outcome("never_final", TRITONBACKEND_ResponseSend(response, 0, nullptr));
  Release(request);
}

// Ten threads send a response each (OUTPUT0 is the thread's number), then the final flag follows: proper for a
// decoupled model.
void TenThreads(TRITONBACKEND_Request* request) {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  Release(request);
  std::vector<std::thread> threads;
  for (int32_t number = 0; number < 10; ++number) {
    threads.emplace_back([factory, number] {
      TRITONBACKEND_Response* response = nullptr;
      Must(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
      Must(testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_INT32, kShape, &number, sizeof(number)));
      Outcome("ten_threads", TRITONBACKEND_ResponseSend(response, 0, nullptr));
    });
  }
  for (std::thread& thread : threads) thread.join();
  Outcome("ten_threads", TRITONBACKEND_ResponseFactorySendFlags(factory, kFinal));
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
}

// ---- Inputs and outputs --------------------------------------------------------------------------------------------

void UnknownInput(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input = nullptr;
  RespondAndRelease(request, Outcome("unknown_input", TRITONBACKEND_RequestInput(request, "NONE", &input)));
}

void InputOutOfRange(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input = nullptr;
  RespondAndRelease(request, Outcome("input_out_of_range", TRITONBACKEND_RequestInputByIndex(request, 99, &input)));
}

void BufferOutOfRange(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input = nullptr;
  const void* buffer = nullptr;
  uint64_t size = 0;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  Must(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRITONSERVER_Error* error = TRITONBACKEND_InputBuffer(input, 99, &buffer, &size, &type, &type_id);
  RespondAndRelease(request, Outcome("buffer_out_of_range", error));
}

void ParameterOutOfRange(TRITONBACKEND_Request* request) {
  const char* key = nullptr;
  TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_STRING;
  const void* value = nullptr;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestParameter(request, 99, &key, &type, &value);
  RespondAndRelease(request, Outcome("parameter_out_of_range", error));
}

// Each of these sends a response with the error of its output, if any.
using Fill = TRITONSERVER_Error* (*)(TRITONBACKEND_Response*);

template <Fill fill>
void RespondWith(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = NewResponse(request);
  const std::string outcome = Outcome("output", fill(response));
  Must(TRITONBACKEND_ResponseSetStringParameter(response, "outcome", outcome.c_str()));
  Outcome("send", TRITONBACKEND_ResponseSend(response, kFinal, nullptr));
  Release(request);
}

TRITONSERVER_Error* BufferTwice(TRITONBACKEND_Response* response) {
  TRITONBACKEND_Output* output = nullptr;
  void* buffer = nullptr;
  RETURN_IF_ERROR(AddOutput(response, &output));
  RETURN_IF_ERROR(Allocate(output, sizeof(kOne), &buffer));
  *static_cast<int32_t*>(buffer) = kOne;
  return Allocate(output, sizeof(kOne), &buffer);
}

TRITONSERVER_Error* NoBuffer(TRITONBACKEND_Response* response) {
  TRITONBACKEND_Output* output = nullptr;
  return AddOutput(response, &output);
}

TRITONSERVER_Error* HugeBuffer(TRITONBACKEND_Response* response) {
  TRITONBACKEND_Output* output = nullptr;
  void* buffer = nullptr;
  RETURN_IF_ERROR(AddOutput(response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, {int64_t{1} << 58}));
  return Allocate(output, uint64_t{1} << 60, &buffer);
}

TRITONSERVER_Error* SmallBuffer(TRITONBACKEND_Response* response) {
  const std::vector<int64_t> shape{4};
  return testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, &kOne, sizeof(kOne));
}

TRITONSERVER_Error* WrongType(TRITONBACKEND_Response* response) {
  return testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_FP32, kShape, &kOne, sizeof(kOne));
}

TRITONSERVER_Error* WrongBytes(TRITONBACKEND_Response* response) {
  return testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_BYTES, kShape, &kOne, sizeof(kOne));
}

TRITONSERVER_Error* NegativeShape(TRITONBACKEND_Response* response) {
  return testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_INT32, {-1}, &kOne, sizeof(kOne));
}

TRITONSERVER_Error* OutputTwice(TRITONBACKEND_Response* response) {
  RETURN_IF_ERROR(WriteOne(response));
  return WriteOne(response);
}

TRITONSERVER_Error* UnknownOutput(TRITONBACKEND_Response* response) {
  return testing::WriteOutput(response, "NONE", TRITONSERVER_TYPE_INT32, kShape, &kOne, sizeof(kOne));
}

TRITONSERVER_Error* NoOutput(TRITONBACKEND_Response*) { return nullptr; }

// Names and texts that are not UTF-8, and an output that the model does not have.
TRITONSERVER_Error* NameOfNoText(TRITONBACKEND_Response* response) {
  RETURN_IF_ERROR(TRITONBACKEND_ResponseSetStringParameter(response, "text", "\xff\xfe"));
  return testing::WriteOutput(response, "\xff", TRITONSERVER_TYPE_INT32, kShape, &kOne, sizeof(kOne));
}

// ---- Which is which ------------------------------------------------------------------------------------------------

using Misuse = void (*)(TRITONBACKEND_Request*);

Misuse Find(const std::string& name) {
  static const std::map<std::string, Misuse> misuses = {
      {"", Proper},
      {"release_twice", ReleaseTwice},
      {"release_null", ReleaseNull},
      {"release_without_flags", ReleaseWithoutFlags},
      {"respond_after_final", RespondAfterFinal},
      {"send_null", SendNull},
      {"final_twice", FinalTwice},
      {"never_respond", NeverRespond},
      {"never_release", NeverRelease},
      {"never_final", NeverFinal},
      {"forget", Forget},
      // Execute itself then returns an error.
      {"error_after_release", Proper},
      {"error_after_response", NeverRelease},
      {"delete_response", DeleteResponse},
      {"ten_threads", TenThreads},
      {"unknown_input", UnknownInput},
      {"input_out_of_range", InputOutOfRange},
      {"buffer_out_of_range", BufferOutOfRange},
      {"parameter_out_of_range", ParameterOutOfRange},
      {"buffer_twice", RespondWith<BufferTwice>},
      {"no_buffer", RespondWith<NoBuffer>},
      {"huge_buffer", RespondWith<HugeBuffer>},
      {"small_buffer", RespondWith<SmallBuffer>},
      {"wrong_type", RespondWith<WrongType>},
      {"wrong_bytes", RespondWith<WrongBytes>},
      {"negative_shape", RespondWith<NegativeShape>},
      {"output_twice", RespondWith<OutputTwice>},
      {"unknown_output", RespondWith<UnknownOutput>},
      {"no_output", RespondWith<NoOutput>},
      {"name_of_no_text", RespondWith<NameOfNoText>},
  };
  const auto found = misuses.find(name);
  return found == misuses.end() ? nullptr : found->second;
}

void Fork() {
  if (fork() != 0) return;
  while (true) pause();
}

// Performs an action at an entry point; returns the error, if that is the action.
TRITONSERVER_Error* Do(const std::string& what, const std::string& at) {
  if (what == "error") return Fail("failed at " + at, TRITONSERVER_ERROR_UNAVAILABLE);
  if (what == "throw_exception") throw std::runtime_error("thrown at " + at);
  if (what == "throw_int") throw 42;
  if (what == "abort") std::abort();
  if (what == "segfault") std::raise(SIGSEGV);
  if (what == "exit") std::_Exit(3);
  if (what == "leave" && chdir("/") != 0) return Fail("cannot leave", TRITONSERVER_ERROR_INTERNAL);
  if (what == "fork") Fork();
  if (what == "bad_json") {
    TRITONSERVER_Message* message = nullptr;
    return TRITONSERVER_MessageNewFromSerializedJson(&message, "{", 1);
  }
  return nullptr;
}

TRITONSERVER_Error* SetConfig(TRITONBACKEND_Model* model) {
  const std::string json = "{\"max_batch_size\": 0}";
  TRITONSERVER_Message* message = nullptr;
  Must(TRITONSERVER_MessageNewFromSerializedJson(&message, json.data(), json.size()));
  TRITONSERVER_Error* error = TRITONBACKEND_ModelSetConfig(model, 1, message);
  Must(TRITONSERVER_MessageDelete(message));
  return error;
}

TRITONSERVER_Error* At(const std::string& entry_point, TRITONBACKEND_Model* model) {
  const testing::Config config(model);
  const std::string what = config.Parameter("DO", "");
  if (config.Parameter("AT", "") != entry_point) return nullptr;
  return what == "set_config" ? SetConfig(model) : Do(what, entry_point);
}

TRITONSERVER_Error* At(const std::string& entry_point, TRITONBACKEND_Backend* backend) {
  return testing::Setting(backend, "AT") == entry_point ? Do(testing::Setting(backend, "DO"), entry_point) : nullptr;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  uint32_t major = 0;
  uint32_t minor = 0;
  Must(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < API_MINOR) {
    return Fail("triton backend API version does not support this backend", TRITONSERVER_ERROR_UNSUPPORTED);
  }
  return At("initialize", backend);
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) { return At("finalize", backend); }

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend* backend,
                                                      TRITONBACKEND_BackendAttribute*) {
  return At("attribute", backend);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const std::string misuse = testing::Config(model).Parameter("MISUSE", "");
  if (Find(misuse) == nullptr) return Fail("there is no misuse '" + misuse + "'");
  return At("model_initialize", model);
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) { return At("model_finalize", model); }

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return At("instance_initialize", testing::ModelOf(instance));
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return At("instance_finalize", testing::ModelOf(instance));
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  return At("instance_ready", testing::ModelOf(instance));
}

#ifndef NO_EXECUTE
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Model* model = testing::ModelOf(instance);
  const std::string misuse = testing::Config(model).Parameter("MISUSE", "");
  RETURN_IF_ERROR(At("execute", model));
  for (uint32_t index = 0; index < count; ++index) Find(misuse)(requests[index]);
  return misuse.rfind("error_after", 0) == 0 ? Fail("failed after all") : nullptr;
}
#endif

}  // extern "C"
