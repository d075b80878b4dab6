// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Repository agents, and the models for which they act before these are loaded.
//
// Python decides which actions are performed on a model, and in which order: see runtime/repository/agents.py. All
// functions here block, and are called without the GIL, by one thread at a time.

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
  // Null for functions that the library does not have.
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
  // A model whose Initialize fails is not finalised, as in Triton.
  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Finalize();
};

struct TRITONREPOAGENT_AgentModel {
  std::shared_ptr<TRITONREPOAGENT_Agent> agent;
  std::string config;
  std::vector<std::pair<std::string, std::string>> parameters;
  // The folder of the model, and the folders that agents have set: the last one counts. The others stay, because agents
  // hold pointers to them.
  std::deque<std::string> locations;
  // The current or the last action.
  std::optional<TRITONREPOAGENT_ActionType> action;
  void* state = nullptr;
  pyruntime::Phase phase = pyruntime::Phase::kNew;

  ~TRITONREPOAGENT_AgentModel() { RemovePlace(); }

  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Act(TRITONREPOAGENT_ActionType next);
  // Also removes the folder that the agent was given.
  std::optional<pyruntime::Failure> Finalize();

  // Makes an empty folder for the agent's copy of the model, or returns the existing one. Throws the system's error.
  const std::string& MakePlace();
  // False if there is none.
  bool RemovePlace() noexcept;

 private:
  std::string place_;
};
