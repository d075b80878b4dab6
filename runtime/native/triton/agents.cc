// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Repository agents: begin, end, and actions on their models.

#include "agents.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "plugins.h"

using pyruntime::Failure;
using pyruntime::Guarded;
using pyruntime::Phase;

std::optional<Failure> TRITONREPOAGENT_Agent::Open() {
  static constexpr char kAction[] = "TRITONREPOAGENT_ModelAction";
  void* handle = nullptr;
  if (std::optional<Failure> failure = pyruntime::OpenPlugin(library_path, &handle)) return failure;
  pyruntime::Find(handle, "TRITONREPOAGENT_Initialize", &library.initialize);
  pyruntime::Find(handle, "TRITONREPOAGENT_Finalize", &library.finalize);
  pyruntime::Find(handle, "TRITONREPOAGENT_ModelInitialize", &library.model_initialize);
  pyruntime::Find(handle, "TRITONREPOAGENT_ModelFinalize", &library.model_finalize);
  pyruntime::Find(handle, kAction, &library.model_action);
  if (library.model_action == nullptr) return pyruntime::MissingEntryPoint(kAction);
  return std::nullopt;
}

std::optional<Failure> TRITONREPOAGENT_Agent::Initialize() {
  std::optional<Failure> failure;
  if (library.initialize != nullptr) {
    failure = Guarded("TRITONREPOAGENT_Initialize", [this] { return library.initialize(this); });
  }
  phase = failure ? Phase::kFinalized : Phase::kInitialized;
  return failure;
}

std::optional<Failure> TRITONREPOAGENT_Agent::Finalize() {
  if (std::exchange(phase, Phase::kFinalized) != Phase::kInitialized || library.finalize == nullptr) {
    return std::nullopt;
  }
  return Guarded("TRITONREPOAGENT_Finalize", [this] { return library.finalize(this); });
}

std::optional<Failure> TRITONREPOAGENT_AgentModel::Initialize() {
  std::optional<Failure> failure;
  if (agent->library.model_initialize != nullptr) {
    failure = Guarded(
        "TRITONREPOAGENT_ModelInitialize", [this] { return agent->library.model_initialize(agent.get(), this); });
  }
  phase = failure ? Phase::kFinalized : Phase::kInitialized;
  return failure;
}

std::optional<Failure> TRITONREPOAGENT_AgentModel::Act(TRITONREPOAGENT_ActionType next) {
  action = next;
  return Guarded(
      "TRITONREPOAGENT_ModelAction", [this, next] { return agent->library.model_action(agent.get(), this, next); });
}

std::optional<Failure> TRITONREPOAGENT_AgentModel::Finalize() {
  std::optional<Failure> failure;
  const bool is_initialized = std::exchange(phase, Phase::kFinalized) == Phase::kInitialized;
  if (is_initialized && agent->library.model_finalize != nullptr) {
    failure = Guarded(
        "TRITONREPOAGENT_ModelFinalize", [this] { return agent->library.model_finalize(agent.get(), this); });
  }
  RemovePlace();
  return failure;
}

const std::string& TRITONREPOAGENT_AgentModel::MakePlace() {
  if (place_.empty()) {
    std::string name = std::filesystem::temp_directory_path() / "pyruntime_agent_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "unable to make a folder for the agent");
    }
    place_ = std::move(name);
  }
  return place_;
}

bool TRITONREPOAGENT_AgentModel::RemovePlace() noexcept {
  if (place_.empty()) return false;
  std::error_code ignored;  // no harm: only files that the agent made unremovable remain
  std::filesystem::remove_all(place_, ignored);
  place_.clear();
  return true;
}
