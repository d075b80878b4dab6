// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A backend that calls the server. Each line of input COMMAND is a step, with words separated by blanks; output RESULT
// has the results line by line. `request_steps` and `server_steps` below are all steps. The tensors of called models
// are FP32.
#include <algorithm>
#include <functional>
#include <map>

#include "asked.h"

namespace {

using RequestStep = std::function<std::string(Asked*, TRITONSERVER_InferenceRequest*, Words&)>;
#define REQUEST_STEP [](Asked * asked [[maybe_unused]], TRITONSERVER_InferenceRequest * request [[maybe_unused]], \
                        Words & words [[maybe_unused]]) -> std::string

const std::map<std::string, RequestStep> request_steps{
    {"id", REQUEST_STEP { return Say(TRITONSERVER_InferenceRequestSetId(request, Word(words).c_str())); }},
    {"flags", REQUEST_STEP { return Say(TRITONSERVER_InferenceRequestSetFlags(request, Next<uint32_t>(words))); }},
    {"number", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestSetCorrelationId(request, Next<uint64_t>(words)));
     }},
    {"text", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, Word(words).c_str()));
     }},
    {"priority", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, Next<uint64_t>(words)));
     }},
    {"timeout", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, Next<uint64_t>(words)));
     }},
    {"string", REQUEST_STEP {
       const std::string key = Word(words);
       return Say(TRITONSERVER_InferenceRequestSetStringParameter(request, key.c_str(), Word(words).c_str()));
     }},
    {"int", REQUEST_STEP {
       const std::string key = Word(words);
       return Say(TRITONSERVER_InferenceRequestSetIntParameter(request, key.c_str(), Next<int64_t>(words)));
     }},
    {"bool", REQUEST_STEP {
       const std::string key = Word(words);
       return Say(TRITONSERVER_InferenceRequestSetBoolParameter(request, key.c_str(), Next<bool>(words)));
     }},
    {"double", REQUEST_STEP {
       const std::string key = Word(words);
       return Say(TRITONSERVER_InferenceRequestSetDoubleParameter(request, key.c_str(), Next<double>(words)));
     }},
    {"input", REQUEST_STEP {
       const std::string name = Word(words);
       std::vector<int64_t> shape;
       for (int64_t dim = 0; words >> dim;) shape.push_back(dim);
       return Say(TRITONSERVER_InferenceRequestAddInput(
           request, name.c_str(), TRITONSERVER_TYPE_FP32, shape.data(), shape.size()));
     }},
    {"raw", REQUEST_STEP { return Say(TRITONSERVER_InferenceRequestAddRawInput(request, Word(words).c_str())); }},
    {"remove_input", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestRemoveInput(request, Word(words).c_str()));
     }},
    {"remove_inputs", REQUEST_STEP { return Say(TRITONSERVER_InferenceRequestRemoveAllInputs(request)); }},
    {"data", REQUEST_STEP {
       const std::string name = Word(words);
       const std::vector<float>& values = asked->Values(words);
       return Say(TRITONSERVER_InferenceRequestAppendInputData(
           request, name.c_str(), values.data(), values.size() * sizeof(float), TRITONSERVER_MEMORY_CPU, 0));
     }},
    {"gpu", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestAppendInputData(
           request, Word(words).c_str(), asked, 4, TRITONSERVER_MEMORY_GPU, 0));
     }},
    {"attributes", REQUEST_STEP {
       const std::string name = Word(words);
       const std::vector<float>& values = asked->Values(words);
       TRITONSERVER_BufferAttributes* attributes = nullptr;
       testing::Must(TRITONSERVER_BufferAttributesNew(&attributes));
       testing::Must(TRITONSERVER_BufferAttributesSetByteSize(attributes, values.size() * sizeof(float)));
       testing::Must(TRITONSERVER_BufferAttributesSetMemoryType(attributes, TRITONSERVER_MEMORY_CPU_PINNED));
       const std::string result = Say(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
           request, name.c_str(), values.data(), attributes));
       testing::Must(TRITONSERVER_BufferAttributesDelete(attributes));
       return result;
     }},
    {"policy", REQUEST_STEP {
       const std::string name = Word(words);
       const std::string policy = Word(words);
       const std::vector<float>& values = asked->Values(words);
       return Say(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
           request, name.c_str(), values.data(), values.size() * sizeof(float), TRITONSERVER_MEMORY_CPU, 0,
           policy.c_str()));
     }},
    {"remove_data", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestRemoveAllInputData(request, Word(words).c_str()));
     }},
    {"output", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestAddRequestedOutput(request, Word(words).c_str()));
     }},
    {"remove_output", REQUEST_STEP {
       return Say(TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, Word(words).c_str()));
     }},
    {"remove_outputs", REQUEST_STEP { return Say(TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request)); }},
    {"describe", REQUEST_STEP { return Describe(request); }},
    {"callbacks", REQUEST_STEP { return SetCallbacks(asked, true); }},
    {"response_callback", REQUEST_STEP { return SetCallbacks(asked, false); }},
    // The allocator has no room for an output, or places it on a GPU; the first response waits for a request to a
    // model.
    {"refuse", REQUEST_STEP { return asked->refused = Word(words), "ok"; }},
    {"elsewhere", REQUEST_STEP { return asked->elsewhere = Word(words), "ok"; }},
    {"nested", REQUEST_STEP { return asked->nested = Word(words), "ok"; }},
    {"infer", REQUEST_STEP { return Infer(asked, true); }},
    {"send", REQUEST_STEP { return Infer(asked, false); }},
    {"delete", REQUEST_STEP { return Say(TRITONSERVER_InferenceRequestDelete(request)); }},
    {"cancel", REQUEST_STEP { return Say(TRITONSERVER_InferenceRequestCancel(request)); }},
    {"cancelled", REQUEST_STEP {
       bool yes = false;
       const std::string result = Say(TRITONSERVER_InferenceRequestIsCancelled(request, &yes));
       return result == "ok" ? (yes ? "true" : "false") : result;
     }},
};

std::string Message(TRITONSERVER_Error* error, TRITONSERVER_Message* message) {
  if (error != nullptr) return Say(error);
  const char* base = nullptr;
  size_t size = 0;
  testing::Must(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  const std::string text(base, size);
  testing::Must(TRITONSERVER_MessageDelete(message));
  return text;
}

std::string Fact(TRITONSERVER_Error* error, bool fact) {
  return error != nullptr ? Say(error) : fact ? "true" : "false";
}

std::string Flags(TRITONSERVER_Error* error, uint32_t flags) {
  return error != nullptr ? Say(error) : std::to_string(flags);
}

std::string Load(TRITONSERVER_Server* server, const std::string& model, TRITONSERVER_Parameter* parameter) {
  const TRITONSERVER_Parameter* parameters[] = {parameter};
  const std::string result = Say(TRITONSERVER_ServerLoadModelWithParameters(server, model.c_str(), parameters, 1));
  TRITONSERVER_ParameterDelete(parameter);
  return result;
}

std::string Metrics(TRITONSERVER_Server* server) {
  TRITONSERVER_Metrics* metrics = nullptr;
  if (TRITONSERVER_Error* error = TRITONSERVER_ServerMetrics(server, &metrics)) return Say(error);
  const char* base = nullptr;
  size_t size = 0;
  testing::Must(TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &base, &size));
  const std::string text(base, size);
  testing::Must(TRITONSERVER_MetricsDelete(metrics));
  return text.substr(0, text.find('\n'));
}

using ServerStep = std::function<std::string(TRITONSERVER_Server*, Words&)>;
#define SERVER_STEP [](TRITONSERVER_Server * server, Words & words [[maybe_unused]]) -> std::string

const std::map<std::string, ServerStep> server_steps{
    {"live", SERVER_STEP {
       bool yes = false;
       TRITONSERVER_Error* error = TRITONSERVER_ServerIsLive(server, &yes);
       return Fact(error, yes);
     }},
    {"ready", SERVER_STEP {
       bool yes = false;
       TRITONSERVER_Error* error = TRITONSERVER_ServerIsReady(server, &yes);
       return Fact(error, yes);
     }},
    {"model_ready", SERVER_STEP {
       bool yes = false;
       TRITONSERVER_Error* error = TRITONSERVER_ServerModelIsReady(server, Word(words).c_str(), -1, &yes);
       return Fact(error, yes);
     }},
    {"batch", SERVER_STEP {
       uint32_t flags = 0;
       void* nothing = server;
       TRITONSERVER_Error* error =
           TRITONSERVER_ServerModelBatchProperties(server, Word(words).c_str(), -1, &flags, &nothing);
       return Flags(error, flags);
     }},
    {"transaction", SERVER_STEP {
       uint32_t flags = 0;
       void* nothing = server;
       TRITONSERVER_Error* error =
           TRITONSERVER_ServerModelTransactionProperties(server, Word(words).c_str(), -1, &flags, &nothing);
       return Flags(error, flags);
     }},
    {"metadata", SERVER_STEP {
       TRITONSERVER_Message* message = nullptr;
       TRITONSERVER_Error* error = TRITONSERVER_ServerMetadata(server, &message);
       return Message(error, message);
     }},
    {"model_metadata", SERVER_STEP {
       TRITONSERVER_Message* message = nullptr;
       TRITONSERVER_Error* error = TRITONSERVER_ServerModelMetadata(server, Word(words).c_str(), -1, &message);
       return Message(error, message);
     }},
    {"config", SERVER_STEP {
       TRITONSERVER_Message* message = nullptr;
       const std::string model = Word(words);
       TRITONSERVER_Error* error =
           TRITONSERVER_ServerModelConfig(server, model.c_str(), -1, Next<uint32_t>(words), &message);
       return Message(error, message);
     }},
    {"statistics", SERVER_STEP {
       TRITONSERVER_Message* message = nullptr;
       TRITONSERVER_Error* error = TRITONSERVER_ServerModelStatistics(server, Word(words).c_str(), -1, &message);
       return Message(error, message);
     }},
    {"index", SERVER_STEP {
       TRITONSERVER_Message* message = nullptr;
       TRITONSERVER_Error* error = TRITONSERVER_ServerModelIndex(server, Next<uint32_t>(words), &message);
       return Message(error, message);
     }},
    {"metrics", SERVER_STEP { return Metrics(server); }},
    {"load", SERVER_STEP { return Say(TRITONSERVER_ServerLoadModel(server, Word(words).c_str())); }},
    {"load_config", SERVER_STEP {
       const std::string model = Word(words);
       const std::string json = Rest(words);
       return Load(server, model, TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, json.c_str()));
     }},
    {"load_file", SERVER_STEP {
       const std::string model = Word(words);
       const std::string name = Word(words);
       const std::string text = Rest(words);
       return Load(server, model, TRITONSERVER_ParameterBytesNew(name.c_str(), text.data(), text.size()));
     }},
    {"load_number", SERVER_STEP {
       const int64_t number = 5;
       return Load(server, Word(words), TRITONSERVER_ParameterNew("number", TRITONSERVER_PARAMETER_INT, &number));
     }},
    {"unload", SERVER_STEP { return Say(TRITONSERVER_ServerUnloadModel(server, Word(words).c_str())); }},
    {"unload_all", SERVER_STEP {
       return Say(TRITONSERVER_ServerUnloadModelAndDependents(server, Word(words).c_str()));
     }},
    {"register", SERVER_STEP {
       return Say(TRITONSERVER_ServerRegisterModelRepository(server, Word(words).c_str(), nullptr, 0));
     }},
    {"unregister", SERVER_STEP {
       return Say(TRITONSERVER_ServerUnregisterModelRepository(server, Word(words).c_str()));
     }},
};

std::string Step(TRITONSERVER_Server* server, std::vector<std::unique_ptr<Asked>>& all, const std::string& line) {
  Words words(line);
  const std::string verb = Word(words);
  if (const auto step = server_steps.find(verb); step != server_steps.end()) return step->second(server, words);
  if (verb == "new") {
    Asked* asked = all.emplace_back(std::make_unique<Asked>(server)).get();
    const std::string model = Word(words);
    return Say(TRITONSERVER_InferenceRequestNew(&asked->request, server, model.c_str(), Next<int64_t>(words)));
  }
  if (verb == "wait") {  // for all requests that were sent
    for (const std::unique_ptr<Asked>& asked : all) asked->Wait();
    return "ok";
  }
  return request_steps.at(verb)(all.back().get(), all.back()->request, words);
}

std::vector<std::string> Run(TRITONSERVER_Server* server, const std::string& script) {
  std::vector<std::string> results;
  std::vector<std::unique_ptr<Asked>> all;
  Words lines(script);
  for (std::string line; std::getline(lines, line);) {
    const std::string verb = line.substr(0, line.find(' '));
    results.push_back(verb + ": " + Step(server, all, line));
    if (verb != "infer" && verb != "wait") continue;
    for (const std::unique_ptr<Asked>& asked : all) {
      const std::lock_guard<std::mutex> lock(asked->mutex);
      results.insert(results.end(), asked->log.begin(), asked->log.end());
      asked->log.clear();
    }
  }
  return results;
}

// A text as BYTES of one element.
std::string Packed(const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

}  // namespace

extern "C" {

// Logs the results of the steps in the parameter INITIALIZE, which are separated by semicolons.
TRITONSERVER_DECLSPEC TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Server* server = nullptr;
  testing::Must(TRITONBACKEND_ModelServer(model, &server));
  std::string script = testing::Config(model).Parameter("INITIALIZE", "");
  std::replace(script.begin(), script.end(), ';', '\n');
  for (const std::string& line : Run(server, script)) testing::Log(TRITONSERVER_LOG_INFO, line);
  return nullptr;
}

// Ready if this thread may call the server.
TRITONSERVER_DECLSPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_Server* server = nullptr;
  bool live = false;
  testing::Must(TRITONBACKEND_ModelServer(testing::ModelOf(instance), &server));
  return TRITONSERVER_ServerIsLive(server, &live);
}

TRITONSERVER_DECLSPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONSERVER_Server* server = nullptr;
  testing::Must(TRITONBACKEND_ModelServer(testing::ModelOf(instance), &server));
  const auto answer = [server](TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
    testing::Tensor command;
    testing::Must(testing::ReadInput(request, "COMMAND", &command));
    const std::string script(command.contents.begin() + sizeof(uint32_t), command.contents.end());
    std::string text;
    for (const std::string& line : Run(server, script)) text += line + "\n";
    const std::string packed = Packed(text);
    return testing::WriteOutput(response, "RESULT", TRITONSERVER_TYPE_BYTES, {1}, packed.data(), packed.size());
  };
  testing::ExecuteEach(instance, requests, count, false, answer);
  return nullptr;
}

}  // extern "C"
