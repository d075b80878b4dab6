// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A repository agent that logs its calls, a line each, in the file that the environment variable AGENT_LOG names.
//
// Its parameters have further effects. tag: the beginning of its lines. fail: the action that it refuses. copy: on LOAD
// it copies the model to a folder of the server's, without the named file. move: on LOAD it sets the location to that
// folder. misuse: it makes forbidden calls, and logs the errors.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>

#include "common.h"
#include "triton/core/tritonrepoagent.h"

namespace {

namespace fs = std::filesystem;
using testing::Must;

constexpr TRITONREPOAGENT_ArtifactType kFolder = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
constexpr TRITONREPOAGENT_ArtifactType kRemote = TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM;
const char* const kActions[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};

void Write(const std::string& line) {
  const char* path = std::getenv("AGENT_LOG");
  if (path != nullptr) std::ofstream(path, std::ios::app) << line << std::endl;
}

std::string Told(TRITONSERVER_Error* error) {
  const testing::Error owned(error);
  if (error == nullptr) return "no error";
  return std::string(TRITONSERVER_ErrorCodeString(error)) + ": " + TRITONSERVER_ErrorMessage(error);
}

// One model, and its agent.
class Model {
 public:
  Model(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) : agent_(agent), model_(model) {
    uint32_t count = 0;
    Must(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
    for (uint32_t index = 0; index < count; ++index) {
      const char* name = nullptr;
      const char* value = nullptr;
      Must(TRITONREPOAGENT_ModelParameter(agent, model, index, &name, &value));
      parameters_[name] = value;
    }
  }

  bool Has(const std::string& name) const { return parameters_.count(name) != 0; }

  std::string Parameter(const std::string& name) const {
    const auto found = parameters_.find(name);
    return found == parameters_.end() ? "" : found->second;
  }

  void Note(const std::string& what) const { Write(Parameter("tag") + " " + what); }

  std::string Location() const {
    TRITONREPOAGENT_ArtifactType type = kRemote;
    const char* location = nullptr;
    Must(TRITONREPOAGENT_ModelRepositoryLocation(agent_, model_, &type, &location));
    return (type == kFolder ? "" : "remote ") + std::string(location);
  }

  std::string Acquire() const {
    const char* place = nullptr;
    Must(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent_, model_, kFolder, &place));
    return place;
  }

  void Load() const {
    if (Has("copy")) {
      const std::string place = Acquire();
      if (!fs::is_empty(place) || place != Acquire()) throw std::runtime_error("a place that is not empty, or another");
      fs::copy(Location(), place, fs::copy_options::recursive);
      fs::remove_all(fs::path(place) / Parameter("copy"));
      Must(TRITONREPOAGENT_ModelRepositoryUpdate(agent_, model_, kFolder, place.c_str()));
      Note("copied to " + Location());
    }
    if (Has("move")) Must(TRITONREPOAGENT_ModelRepositoryUpdate(agent_, model_, kFolder, Parameter("move").c_str()));
    if (Has("config")) Note("config " + Config());
    if (Has("log")) testing::Log(TRITONSERVER_LOG_INFO, Parameter("log"));
  }

  void Misuse() const {
    const char* name = nullptr;
    const char* value = nullptr;
    Note("parameter: " + Told(TRITONREPOAGENT_ModelParameter(agent_, model_, 99, &name, &value)));
    Note("update: " + Told(TRITONREPOAGENT_ModelRepositoryUpdate(agent_, model_, kFolder, "/")));
    Note("remote: " + Told(TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent_, model_, kRemote, &name)));
    Note("release: " + Told(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent_, model_, "/")));
    TRITONSERVER_Message* message = nullptr;
    Note("version: " + Told(TRITONREPOAGENT_ModelConfig(agent_, model_, 2, &message)));
  }

 private:
  std::string Config() const {
    TRITONSERVER_Message* message = nullptr;
    const char* base = nullptr;
    size_t size = 0;
    Must(TRITONREPOAGENT_ModelConfig(agent_, model_, 1, &message));
    Must(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
    const std::string text(base, size);
    Must(TRITONSERVER_MessageDelete(message));
    return text;
  }

  TRITONREPOAGENT_Agent* agent_;
  TRITONREPOAGENT_AgentModel* model_;
  std::map<std::string, std::string> parameters_;
};

Model& ModelOf(TRITONREPOAGENT_AgentModel* model) {
  void* state = nullptr;
  Must(TRITONREPOAGENT_ModelState(model, &state));
  return *static_cast<Model*>(state);
}

}  // namespace

extern "C" {

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
  static int state = 0;
  Must(TRITONREPOAGENT_SetState(agent, &state));
  Write("agent initialized");
  return nullptr;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent) {
  void* state = nullptr;
  Must(TRITONREPOAGENT_State(agent, &state));
  Write(state == nullptr ? "agent lost its state" : "agent finalized");
  return nullptr;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(TRITONREPOAGENT_Agent* agent,
                                                                          TRITONREPOAGENT_AgentModel* model) {
  auto state = std::make_unique<Model>(agent, model);
  state->Note("initialized");
  if (state->Parameter("fail") == "INITIALIZE") return testing::Fail("the agent refuses INITIALIZE");
  Must(TRITONREPOAGENT_ModelSetState(model, state.release()));
  return nullptr;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent*,
                                                                        TRITONREPOAGENT_AgentModel* model) {
  const std::unique_ptr<Model> state(&ModelOf(model));
  state->Note("finalized");
  return nullptr;
}

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(TRITONREPOAGENT_Agent*,
                                                                      TRITONREPOAGENT_AgentModel* handle,
                                                                      const TRITONREPOAGENT_ActionType type) {
  const Model& model = ModelOf(handle);
  const std::string action = kActions[type];
  model.Note(action + " " + model.Location());
  if (model.Parameter("throw") == action) throw std::runtime_error("the agent throws at " + action);
  if (model.Parameter("fail") == action) return testing::Fail("the agent refuses " + action);
  if (type == TRITONREPOAGENT_ACTION_LOAD) model.Load();
  if (type == TRITONREPOAGENT_ACTION_LOAD_COMPLETE && model.Has("misuse")) model.Misuse();
  return nullptr;
}

}  // extern "C"
