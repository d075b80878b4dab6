// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Repository agents, and the models that they look at before those are loaded.
//
// What happens to a model, and in which order, is decided in Python: see runtime/repository/agents.py. All functions
// here block, and are called without the GIL, by one thread after the other.

#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "error.h"
#include "triton/core/tritonrepoagent.h"

struct TRITONREPOAGENT_Agent {
  // Null for those that the library does not have.
  struct Library {
    using OfAgent = TRITONSERVER_Error* (*)(TRITONREPOAGENT_Agent*);
    using OfModel = TRITONSERVER_Error* (*)(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*);
    using Action =
        TRITONSERVER_Error* (*)(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*, TRITONREPOAGENT_ActionType);

    OfAgent initialize = nullptr;
    OfAgent finalize = nullptr;
    OfModel model_initialize = nullptr;
    OfModel model_finalize = nullptr;
    Action model_action = nullptr;
  };

  std::string library_path;
  Library library;
  void* state = nullptr;
  pyruntime::Phase phase = pyruntime::Phase::kNew;

  std::optional<pyruntime::Failure> Open();
  // What fails to initialise is not finalised, as in Triton.
  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Finalize();
};

struct TRITONREPOAGENT_AgentModel {
  std::shared_ptr<TRITONREPOAGENT_Agent> agent;
  std::string config;
  std::vector<std::pair<std::string, std::string>> parameters;
  // Where the model was, and where agents have put it: the last one counts. The others stay, for agents have pointers.
  std::deque<std::string> locations;
  // What is being done, or was done last.
  std::optional<TRITONREPOAGENT_ActionType> action;
  void* state = nullptr;
  pyruntime::Phase phase = pyruntime::Phase::kNew;

  ~TRITONREPOAGENT_AgentModel() { RemovePlace(); }

  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Act(TRITONREPOAGENT_ActionType next);
  // The place that the agent was given goes.
  std::optional<pyruntime::Failure> Finalize();

  // An empty folder for the agent to put the model in: one, however often it asks. Throws what the system says.
  const std::string& MakePlace();
  // False if there is none.
  bool RemovePlace() noexcept;

 private:
  std::string place_;
};
