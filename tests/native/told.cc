// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Answers with the information that its backend gets: INPUT0 (BYTES [1], as on the wire) is a question, OUTPUT0 (BYTES
// [1]) the answer, and unknown questions are errors. Questions: "config", "backend_config", "host_policy", "location",
// "instance" (its name, kind and device), "together" (the largest number of instances that were initialized at a time),
// "completed" (the configuration that it read at once after it had set one).
//
// Parameter TOGETHER: an instance waits in its initialization until so many do. A model with a file complete.json is
// completed with its contents, if the server allows that. Settings of the command line: GROUP, the number of instances
// on the CPU for models without instance groups; PARALLEL, "true" if instances may be initialized at a time.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "common.h"

namespace {

using testing::Fail;
using testing::ModelOf;
using testing::Must;
using testing::StateOf;
using testing::Tensor;

// A limit, not a measure: a server that initializes one instance after the other fails a model that waits for two.
constexpr std::chrono::seconds kPatience{20};

std::string TextOf(TRITONSERVER_Message* message) {
  const char* base = nullptr;
  size_t size = 0;
  Must(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  return std::string(base, size);
}

std::string BackendConfig(TRITONBACKEND_Backend* backend) {
  TRITONSERVER_Message* message = nullptr;
  Must(TRITONBACKEND_BackendConfig(backend, &message));
  return TextOf(message);
}

// The value of a setting of the command line, "" without one.
std::string Setting(TRITONBACKEND_Backend* backend, const std::string& name) {
  const std::string json = BackendConfig(backend);
  const size_t key = json.find("\"" + name + "\"");
  if (key == std::string::npos) return "";
  const size_t start = json.find('"', json.find(':', key)) + 1;
  return json.substr(start, json.find('"', start) - start);
}

std::string Location(TRITONBACKEND_Model* model) {
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  const char* location = nullptr;
  Must(TRITONBACKEND_ModelRepository(model, &type, &location));
  return location;
}

// The state of a model: the configuration that was read after it was set, and the number of its instances that are being
// initialized.
class Initializing {
 public:
  Initializing(int wanted, std::string completed) : completed(std::move(completed)), wanted_(wanted) {}

  const std::string completed;

  // Whether as many as expected were there at a time.
  bool Enter() {
    std::unique_lock lock(mutex_);
    most_ = std::max(most_, ++now_);
    changed_.notify_all();
    return changed_.wait_for(lock, kPatience, [this] { return most_ >= wanted_; });
  }

  void Leave() {
    std::lock_guard lock(mutex_);
    --now_;
  }

  int most() {
    std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  const int wanted_;
  int now_ = 0;
  int most_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

std::string HostPolicy(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_Message* message = nullptr;
  Must(TRITONBACKEND_ModelInstanceHostPolicy(instance, &message));
  return TextOf(message);
}

std::string Describe(TRITONBACKEND_ModelInstance* instance) {
  const char* name = nullptr;
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_AUTO;
  int32_t device = -1;
  Must(TRITONBACKEND_ModelInstanceName(instance, &name));
  Must(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  Must(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  return std::string(name) + " " + TRITONSERVER_InstanceGroupKindString(kind) + " " + std::to_string(device);
}

TRITONSERVER_Error* Reply(const std::string& question, TRITONBACKEND_ModelInstance* instance, std::string* answer) {
  TRITONBACKEND_Model* model = ModelOf(instance);
  if (question == "config") {
    *answer = testing::Config(model).json();
  } else if (question == "backend_config") {
    TRITONBACKEND_Backend* backend = nullptr;
    Must(TRITONBACKEND_ModelBackend(model, &backend));
    *answer = BackendConfig(backend);
  } else if (question == "host_policy") {
    *answer = HostPolicy(instance);
  } else if (question == "location") {
    *answer = Location(model);
  } else if (question == "instance") {
    *answer = Describe(instance);
  } else if (question == "together") {
    *answer = std::to_string(StateOf<Initializing>(model)->most());
  } else if (question == "completed") {
    *answer = StateOf<Initializing>(model)->completed;
  } else {
    return Fail("nobody has told the backend about '" + question + "'", TRITONSERVER_ERROR_NOT_FOUND);
  }
  return nullptr;
}

TRITONSERVER_Error* Answer(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request,
                           TRITONBACKEND_Response* response) {
  Tensor question;
  RETURN_IF_ERROR(testing::ReadInput(request, "INPUT0", &question));
  if (question.contents.size() < sizeof(uint32_t)) return Fail("INPUT0 has no element");
  std::string answer;
  RETURN_IF_ERROR(Reply(std::string(question.contents.begin() + sizeof(uint32_t), question.contents.end()), instance,
                        &answer));
  const auto size = static_cast<uint32_t>(answer.size());
  const std::string element = std::string(reinterpret_cast<const char*>(&size), sizeof size) + answer;
  return testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_BYTES, question.shape, element.data(),
                              element.size());
}

// Sets the configuration, and reads it again at once, as backends do that build the rest of their state of it.
TRITONSERVER_Error* Complete(TRITONBACKEND_Model* model, std::string* completed) {
  bool wanted = false;
  RETURN_IF_ERROR(TRITONBACKEND_ModelAutoCompleteConfig(model, &wanted));
  const std::ifstream file(Location(model) + "/complete.json");
  if (!wanted || !file) return nullptr;
  std::stringstream text;
  text << file.rdbuf();
  const std::string json = text.str();
  TRITONSERVER_Message* message = nullptr;
  RETURN_IF_ERROR(TRITONSERVER_MessageNewFromSerializedJson(&message, json.data(), json.size()));
  TRITONSERVER_Error* error = TRITONBACKEND_ModelSetConfig(model, 1, message);
  Must(TRITONSERVER_MessageDelete(message));
  *completed = testing::Config(model).json();
  return error;
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend* backend,
                                                      TRITONBACKEND_BackendAttribute* attribute) {
  if (const std::string count = Setting(backend, "GROUP"); !count.empty()) {
    RETURN_IF_ERROR(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attribute, TRITONSERVER_INSTANCEGROUPKIND_CPU, std::stoull(count), nullptr, 0));
  }
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attribute,
                                                                       Setting(backend, "PARALLEL") == "true");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  std::string completed;
  RETURN_IF_ERROR(Complete(model, &completed));
  const int wanted = std::stoi(testing::Config(model).Parameter("TOGETHER", "1"));
  auto state = std::make_unique<Initializing>(wanted, std::move(completed));
  RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, state.get()));
  state.release();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  std::unique_ptr<Initializing> state(StateOf<Initializing>(model));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  auto* initializing = StateOf<Initializing>(ModelOf(instance));
  const bool all_were_there = initializing->Enter();
  initializing->Leave();
  return all_were_there ? nullptr : Fail("the instances were not initialized at a time");
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  testing::ExecuteEach(instance, requests, count, false,
                       [instance](TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
                         return Answer(instance, request, response);
                       });
  return nullptr;
}

}  // extern "C"
