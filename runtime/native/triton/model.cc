// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Models: begin, end, and the functions TRITONBACKEND_Model*.

#include <utility>

#include "arguments.h"
#include "backend.h"
#include "server.h"

using pyruntime::Failure;
using pyruntime::Guarded;
using pyruntime::Phase;
using pyruntime::ToError;

namespace {

// The version of the form that the configuration has as JSON: there is only one.
constexpr uint32_t kConfigVersion = 1;

// The refused outputs of one model that are logged: a backend may make up names.
constexpr size_t kRefusedOutputsMax = 64;

}  // namespace

std::optional<Failure> pyruntime::CheckConfigVersion(uint32_t version) {
  if (version == kConfigVersion) return std::nullopt;
  return Failure{
      TRITONSERVER_ERROR_INVALID_ARG,
      "model configuration version " + std::to_string(version) + " not supported, supported versions are: 1"};
}

std::string TRITONBACKEND_Model::Config() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return config_;
}

void TRITONBACKEND_Model::SetConfig(std::string config) {
  const std::lock_guard<std::mutex> lock(mutex_);
  config_ = std::move(config);
}

std::optional<Failure> TRITONBACKEND_Model::CompleteConfig(std::string config) {
  const std::lock_guard<std::mutex> lock(completing_);
  if (!complete_) {
    return Failure{
        TRITONSERVER_ERROR_UNSUPPORTED,
        "the configuration of model '" + name + "' can be set by TRITONBACKEND_ModelInitialize only"};
  }
  if (auto failure = complete_(&config)) return failure;
  SetConfig(std::move(config));
  return std::nullopt;
}

bool TRITONBACKEND_Model::IsNewlyRefused(const std::string& output) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return refused_outputs_.size() < kRefusedOutputsMax && refused_outputs_.insert(output).second;
}

std::shared_ptr<pyruntime::Worker> TRITONBACKEND_Model::WorkerOf(int32_t device_id, const std::string& instance_name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<pyruntime::Worker>& known = workers_[device_id];
  std::shared_ptr<pyruntime::Worker> worker = known.lock();
  if (worker == nullptr) known = worker = std::make_shared<pyruntime::Worker>(instance_name);
  return worker;
}

std::optional<Failure> TRITONBACKEND_Model::Initialize(Complete complete) {
  phase = Phase::kInitialized;
  ++backend->models;
  if (backend->library.model_initialize == nullptr) return std::nullopt;
  const pyruntime::CallerScope caller(name, nullptr);
  const auto set_complete = [this](Complete complete) {
    const std::lock_guard<std::mutex> lock(completing_);
    complete_ = std::move(complete);
  };
  set_complete(std::move(complete));
  std::optional<Failure> failure =
      Guarded("TRITONBACKEND_ModelInitialize", [this] { return backend->library.model_initialize(this); });
  set_complete(nullptr);
  if (failure) Finalize();
  return failure;
}

std::optional<Failure> TRITONBACKEND_Model::Finalize() {
  if (instances != 0) {
    return Failure{TRITONSERVER_ERROR_INTERNAL, "model '" + name + "' is not finalized: instances of it still run"};
  }
  if (std::exchange(phase, Phase::kFinalized) != Phase::kInitialized) return std::nullopt;
  std::optional<Failure> failure;
  if (backend->library.model_finalize != nullptr) {
    const pyruntime::CallerScope caller(name, nullptr);
    failure = Guarded("TRITONBACKEND_ModelFinalize", [this] { return backend->library.model_finalize(this); });
  }
  --backend->models;
  return failure;
}

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelName(TRITONBACKEND_Model* model, const char** name) {
  PYRUNTIME_GET(model, name, model->name.c_str());
}

TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model* model, uint64_t* version) {
  PYRUNTIME_GET(model, version, model->version);
}

TRITONSERVER_Error* TRITONBACKEND_ModelRepository(
    TRITONBACKEND_Model* model, TRITONBACKEND_ArtifactType* artifact_type, const char** location) {
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(artifact_type);
  PYRUNTIME_REQUIRE(location);
  *artifact_type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = model->repository.c_str();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model* model, const uint32_t config_version, TRITONSERVER_Message** model_config) {
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(model_config);
  PYRUNTIME_GUARD({
    *model_config = nullptr;
    if (auto failure = pyruntime::CheckConfigVersion(config_version)) return ToError(std::move(failure));
    auto message = std::make_unique<TRITONSERVER_Message>();
    message->json = model->Config();
    *model_config = message.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model* model, bool* auto_complete_config) {
  PYRUNTIME_GET(model, auto_complete_config, model->auto_complete);
}

TRITONSERVER_Error* TRITONBACKEND_ModelSetConfig(
    TRITONBACKEND_Model* model, const uint32_t config_version, TRITONSERVER_Message* model_config) {
  PYRUNTIME_REQUIRE(model);
  PYRUNTIME_REQUIRE(model_config);
  PYRUNTIME_GUARD({
    std::optional<Failure> failure = pyruntime::CheckConfigVersion(config_version);
    if (!failure) failure = model->CompleteConfig(model_config->json);
    return ToError(std::move(failure));
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelServer(TRITONBACKEND_Model* model, TRITONSERVER_Server** server) {
  PYRUNTIME_GET(model, server, &TRITONSERVER_Server::Get());
}

TRITONSERVER_Error* TRITONBACKEND_ModelBackend(TRITONBACKEND_Model* model, TRITONBACKEND_Backend** backend) {
  PYRUNTIME_GET(model, backend, model->backend.get());
}

TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) {
  PYRUNTIME_GET(model, state, model->state);
}

TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
  PYRUNTIME_REQUIRE(model);
  model->state = state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelReportMemoryUsage(
    TRITONBACKEND_Model* model, TRITONSERVER_BufferAttributes** usage, uint32_t usage_size) {
  PYRUNTIME_REQUIRE(model);
  if (usage_size != 0) PYRUNTIME_REQUIRE(usage);
  PYRUNTIME_GUARD({
    model->memory_usage.Set(usage, usage_size);
    return nullptr;
  });
}

}  // extern "C"
