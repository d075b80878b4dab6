// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions for repository agents (TRITONREPOAGENT_*).

#include "agents.h"
#include "arguments.h"

namespace {

const char* NameOf(TRITONREPOAGENT_ActionType action) {
  switch (action) {
    case TRITONREPOAGENT_ACTION_LOAD: return "TRITONREPOAGENT_ACTION_LOAD";
    case TRITONREPOAGENT_ACTION_LOAD_COMPLETE: return "TRITONREPOAGENT_ACTION_LOAD_COMPLETE";
    case TRITONREPOAGENT_ACTION_LOAD_FAIL: return "TRITONREPOAGENT_ACTION_LOAD_FAIL";
    case TRITONREPOAGENT_ACTION_UNLOAD: return "TRITONREPOAGENT_ACTION_UNLOAD";
    case TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE: return "TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE";
  }
  return "Unknown TRITONREPOAGENT_ActionType";
}

TRITONSERVER_Error* NoFolder() {
  return pyruntime::NewError(
      TRITONSERVER_ERROR_INVALID_ARG,
      "Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'");
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, TRITONREPOAGENT_ArtifactType* artifact_type,
    const char** location) {
  PYRUNTIME_REQUIRE(agent);
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(artifact_type);
  PYRUNTIME_REQUIRE(location);
  *artifact_type = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
  *location = model->locations.back().c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType artifact_type,
    const char** location) {
  PYRUNTIME_REQUIRE(agent);
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(location);
  if (artifact_type != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) return NoFolder();
  PYRUNTIME_GUARD({
    *location = model->MakePlace().c_str();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* location) {
  PYRUNTIME_REQUIRE(agent);
  PYRUNTIME_REQUIRE(model);
  // There is at most one, so the index is ignored, as in Triton.
  static_cast<void>(location);
  if (model->RemovePlace()) return nullptr;
  return pyruntime::NewError(TRITONSERVER_ERROR_UNAVAILABLE, "No mutable location to be deleted");
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType artifact_type,
    const char* location) {
  PYRUNTIME_REQUIRE(agent);
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(location);
  PYRUNTIME_GUARD({
    if (model->action != TRITONREPOAGENT_ACTION_LOAD) {
      const std::string current = model->action ? NameOf(*model->action) : "not set";
      return pyruntime::NewError(
          TRITONSERVER_ERROR_INVALID_ARG,
          "location can only be updated during TRITONREPOAGENT_ACTION_LOAD, current action type is " + current);
    }
    if (artifact_type != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) return NoFolder();
    model->locations.emplace_back(location);
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelParameterCount(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, uint32_t* count) {
  PYRUNTIME_REQUIRE(agent);
  PYRUNTIME_GET(model, count, static_cast<uint32_t>(model->parameters.size()));
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelParameter(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t index, const char** parameter_name,
    const char** parameter_value) {
  PYRUNTIME_REQUIRE(agent);
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(parameter_name);
  PYRUNTIME_REQUIRE(parameter_value);
  if (index >= model->parameters.size()) {
    return pyruntime::NewError(TRITONSERVER_ERROR_INVALID_ARG, "index out of range for model parameters");
  }
  *parameter_name = model->parameters[index].first.c_str();
  *parameter_value = model->parameters[index].second.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelConfig(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t config_version,
    TRITONSERVER_Message** model_config) {
  PYRUNTIME_REQUIRE(agent);
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(model_config);
  PYRUNTIME_GUARD({
    *model_config = nullptr;
    if (auto failure = pyruntime::CheckConfigVersion(config_version)) return pyruntime::ToError(std::move(failure));
    auto message = std::make_unique<TRITONSERVER_Message>();
    message->json = model->config;
    *model_config = message.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelState(TRITONREPOAGENT_AgentModel* model, void** state) {
  PYRUNTIME_GET(model, state, model->state);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelSetState(TRITONREPOAGENT_AgentModel* model, void* state) {
  PYRUNTIME_REQUIRE(model);
  model->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONREPOAGENT_State(TRITONREPOAGENT_Agent* agent, void** state) {
  PYRUNTIME_GET(agent, state, agent->state);
}

TRITONSERVER_Error* TRITONREPOAGENT_SetState(TRITONREPOAGENT_Agent* agent, void* state) {
  PYRUNTIME_REQUIRE(agent);
  agent->state = state;
  return nullptr;
}

}  // extern "C"
