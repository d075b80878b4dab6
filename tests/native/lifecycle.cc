// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Logs every call of the server, with the information that it can read; see `Step` and `Execute` for names that make it
// fail.
//
// A line is "<function> <name of the object>: <information>"; the last word of every first line is the thread.
#include <atomic>
#include <stdexcept>
#include <thread>

#include "report.h"

namespace {

using testing::Fail;
using testing::Log;
using testing::Must;
using testing::Told;

// Whether the readiness of an instance was asked for since one was initialised.
std::atomic<bool> asked{false};

// The last model that was initialised, if it was not finalized.
std::atomic<TRITONBACKEND_Model*> unfinished{nullptr};

void Learn(const std::string& function, const std::string& what, const std::string& value) {
  Log(TRITONSERVER_LOG_INFO, function + " " + what + ": " + value);
}

// An object whose name begins with "fails in <function>" makes that function return an error (the names of instances end
// with a number); one named "throws in <function>" makes it
// throw an exception, and one named "breaks in <function>" makes it throw something else.
TRITONSERVER_Error* Step(const std::string& function, const std::string& name) {
  const std::hash<std::thread::id> hash;
  Learn(function, name, std::to_string(hash(std::this_thread::get_id())));
  if (name.rfind("fails in " + function, 0) == 0) return Fail("no " + function, TRITONSERVER_ERROR_UNAVAILABLE);
  if (name == "throws in " + function) throw std::out_of_range("nothing there");
  if (name == "breaks in " + function) throw 1;
  return nullptr;
}

std::string NameOf(TRITONBACKEND_Backend* backend) {
  const char* name = nullptr;
  Must(TRITONBACKEND_BackendName(backend, &name));
  return name;
}

std::string NameOf(TRITONBACKEND_Model* model) {
  const char* name = nullptr;
  Must(TRITONBACKEND_ModelName(model, &name));
  return name;
}

std::string NameOf(TRITONBACKEND_ModelInstance* instance) {
  const char* name = nullptr;
  Must(TRITONBACKEND_ModelInstanceName(instance, &name));
  return name;
}

std::string TextOf(TRITONSERVER_Message* message) {
  const char* base = nullptr;
  size_t size = 0;
  Must(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  return std::string(base, size);
}

void SetUsage(TRITONSERVER_BufferAttributes* usage, TRITONSERVER_MemoryType type, int64_t id, size_t size) {
  Must(TRITONSERVER_BufferAttributesSetMemoryType(usage, type));
  Must(TRITONSERVER_BufferAttributesSetMemoryTypeId(usage, id));
  Must(TRITONSERVER_BufferAttributesSetByteSize(usage, size));
}

// Two reports: the second one counts.
template <class Object>
void ReportUsage(Object* object, TRITONSERVER_Error* (*report)(Object*, TRITONSERVER_BufferAttributes**, uint32_t)) {
  TRITONSERVER_BufferAttributes* usage[2] = {nullptr, nullptr};
  Must(TRITONSERVER_BufferAttributesNew(&usage[0]));
  Must(TRITONSERVER_BufferAttributesNew(&usage[1]));
  SetUsage(usage[0], TRITONSERVER_MEMORY_CPU, 0, 1);
  Must(report(object, usage, 1));
  SetUsage(usage[0], TRITONSERVER_MEMORY_GPU, 3, 4096);
  SetUsage(usage[1], TRITONSERVER_MEMORY_CPU_PINNED, 0, 1ULL << 40);
  Must(report(object, usage, 2));
  Must(TRITONSERVER_BufferAttributesDelete(usage[0]));
  Must(TRITONSERVER_BufferAttributesDelete(usage[1]));
}

void Describe(TRITONBACKEND_Backend* backend) {
  TRITONSERVER_Message* config = nullptr;
  TRITONBACKEND_ArtifactType type;
  const char* location = nullptr;
  TRITONBACKEND_MemoryManager* manager = nullptr;
  void* memory = nullptr;
  void* state = backend;
  Must(TRITONBACKEND_BackendConfig(backend, &config));
  Learn("Backend", "config", TextOf(config));
  Must(TRITONBACKEND_BackendArtifacts(backend, &type, &location));
  Learn("Backend", "artifacts", std::to_string(type) + " " + location);
  Must(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  Must(TRITONBACKEND_MemoryManagerAllocate(manager, &memory, TRITONSERVER_MEMORY_CPU, 0, 64));
  Must(TRITONBACKEND_MemoryManagerFree(manager, memory, TRITONSERVER_MEMORY_CPU, 0));
  Must(TRITONBACKEND_BackendState(backend, &state));
  Learn("Backend", "state", state == nullptr ? "none" : "some");
  Must(TRITONBACKEND_BackendSetState(backend, backend));
}

void Describe(TRITONBACKEND_Model* model) {
  uint64_t version = 0;
  TRITONBACKEND_ArtifactType type;
  const char* location = nullptr;
  bool completes = false;
  TRITONSERVER_Server* server = nullptr;
  TRITONBACKEND_Backend* backend = nullptr;
  void* state = model;
  TRITONSERVER_Message* config = nullptr;
  Must(TRITONBACKEND_ModelVersion(model, &version));
  Learn("Model", "version", std::to_string(version));
  Must(TRITONBACKEND_ModelRepository(model, &type, &location));
  Learn("Model", "repository", std::to_string(type) + " " + location);
  Must(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  Learn("Model", "completes", completes ? "yes" : "no");
  Must(TRITONBACKEND_ModelServer(model, &server));
  Learn("Model", "server", server == nullptr ? "none" : "some");
  Must(TRITONBACKEND_ModelBackend(model, &backend));
  Learn("Model", "backend", NameOf(backend));
  Must(TRITONBACKEND_BackendState(backend, &state));
  Learn("Model", "state of its backend", state == backend ? "kept" : "lost");
  Must(TRITONBACKEND_ModelState(model, &state));
  Learn("Model", "state", state == nullptr ? "none" : "some");
  Must(TRITONBACKEND_ModelSetState(model, model));
  Learn("Model", "config", testing::Config(model).json());
  Learn("Model", "config 2", Told(TRITONBACKEND_ModelConfig(model, 2, &config)));
}

void Describe(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_InstanceGroupKind kind;
  int32_t device = -1;
  TRITONSERVER_Message* policy = nullptr;
  bool passive = false;
  uint32_t count = 0;
  const char* text = nullptr;
  int64_t id = 0;
  void* state = instance;
  Must(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  Must(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  Learn("Instance", "place", std::string(TRITONSERVER_InstanceGroupKindString(kind)) + " " + std::to_string(device));
  Must(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
  Learn("Instance", "host policy", TextOf(policy));
  Must(TRITONBACKEND_ModelInstanceIsPassive(instance, &passive));
  Learn("Instance", "passive", passive ? "yes" : "no");
  Must(TRITONBACKEND_ModelInstanceProfileCount(instance, &count));
  for (uint32_t index = 0; index < count; ++index) {
    Must(TRITONBACKEND_ModelInstanceProfileName(instance, index, &text));
    Learn("Instance", "profile", text);
  }
  Learn("Instance", "no profile", Told(TRITONBACKEND_ModelInstanceProfileName(instance, count, &text)));
  Must(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &count));
  for (uint32_t index = 0; index < count; ++index) {
    Must(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, index, &text, &id));
    Learn("Instance", "secondary device", std::string(text) + " " + std::to_string(id));
  }
  Learn(
      "Instance", "no secondary device",
      Told(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, count, &text, &id)));
  Must(TRITONBACKEND_ModelInstanceState(instance, &state));
  Learn("Instance", "state", state == nullptr ? "none" : "some");
  Must(TRITONBACKEND_ModelInstanceSetState(instance, instance));
}

TRITONSERVER_Error* SetConfig(TRITONBACKEND_Model* model, uint32_t version, const std::string& config) {
  TRITONSERVER_Message* message = nullptr;
  Must(TRITONSERVER_MessageNewFromSerializedJson(&message, config.data(), config.size()));
  TRITONSERVER_Error* error = TRITONBACKEND_ModelSetConfig(model, version, message);
  Must(TRITONSERVER_MessageDelete(message));
  return error;
}

std::string IdOf(TRITONBACKEND_Request* request) {
  const char* id = nullptr;
  Must(TRITONBACKEND_RequestId(request, &id));
  return id;
}

void Answer(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = nullptr;
  Must(TRITONBACKEND_ResponseNew(&response, request));
  Must(TRITONBACKEND_ResponseSend(response, testing::kFinal, nullptr));
}

// Reports a response of each kind.
void ReportResponses(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  TRITONBACKEND_ModelInstanceResponseStatistics* statistics = nullptr;
  Must(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  Learn("Statistics", "of nothing", Told(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics)));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, 10));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, 30));
  Must(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, 20));
  Must(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  for (const TRITONSERVER_Error_Code code : {TRITONSERVER_ERROR_INTERNAL, TRITONSERVER_ERROR_CANCELLED}) {
    const testing::Error error(Fail("reported", code));
    Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error.get()));
    Must(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  }
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, nullptr));
  Must(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  Must(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
  Must(TRITONBACKEND_ResponseFactoryDelete(factory));
}

// Waits until the request is cancelled, or until the instance is asked for its readiness.
void WaitFor(TRITONBACKEND_Request* request, const std::string& id) {
  bool cancelled = false;
  while (id == "wait for readiness" ? !asked : !cancelled) {
    std::this_thread::yield();
    Must(TRITONBACKEND_RequestIsCancelled(request, &cancelled));
  }
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  RETURN_IF_ERROR(Step("Initialize", NameOf(backend)));
  Describe(backend);
  TRITONBACKEND_ExecutionPolicy policy;
  Must(TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  Learn("Backend", "policy", std::to_string(policy));
  if (NameOf(backend) == "shares threads") {
    Must(TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING));
  }
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) { return Step("Finalize", NameOf(backend)); }

TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  RETURN_IF_ERROR(Step("GetBackendAttribute", NameOf(backend)));
  const uint64_t devices[] = {1, 2};
  Must(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_GPU, 0, devices, 2));
  Must(TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 3, nullptr, 0));
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  RETURN_IF_ERROR(Step("ModelInitialize", NameOf(model)));
  if (TRITONBACKEND_Model* before = unfinished.exchange(model)) Learn("Model", "before it", NameOf(before));
  Describe(model);
  ReportUsage(model, TRITONBACKEND_ModelReportMemoryUsage);
  bool completes = false;
  Must(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  if (!completes) return nullptr;
  Learn("Model", "completion 2", Told(SetConfig(model, 2, "{}")));
  Learn("Model", "completion", Told(SetConfig(model, 1, "{\"max_batch_size\":8}")));
  Learn("Model", "completed", testing::Config(model).json());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* state = nullptr;
  TRITONBACKEND_Model* last = model;
  unfinished.compare_exchange_strong(last, nullptr);
  Must(TRITONBACKEND_ModelState(model, &state));
  Learn("Model", "state at the end", state == nullptr ? "none" : "some");
  return Step("ModelFinalize", NameOf(model));
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  asked = false;
  RETURN_IF_ERROR(Step("ModelInstanceInitialize", NameOf(instance)));
  Describe(instance);
  ReportUsage(instance, TRITONBACKEND_ModelInstanceReportMemoryUsage);
  TRITONBACKEND_Model* model = testing::ModelOf(instance);
  Learn("Instance", "config", testing::Config(model).json());
  Learn("Instance", "completion", Told(SetConfig(model, 1, "{}")));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return Step("ModelInstanceFinalize", NameOf(instance));
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
  asked = true;
  return Step("ModelInstanceReady", NameOf(instance));
}

// The ID of the first request selects the action. An instance that fails or throws does so when the first request is
// answered and released, if the id is "release first".
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t request_count) {
  const std::string id = IdOf(requests[0]);
  if (id == "release first") {
    Answer(requests[0]);
    Must(TRITONBACKEND_RequestRelease(requests[0], testing::kAll));
  }
  RETURN_IF_ERROR(Step("ModelInstanceExecute", NameOf(instance)));
  if (id == "wait for readiness" || id == "wait for cancellation") WaitFor(requests[0], id);
  if (id == "report responses") ReportResponses(instance, requests[0]);
  if (id == "report") {
    Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 7, 1, 2, 3, 1ULL << 63));
    Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[0], true, 9, 9, 9, 9));
    Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[0], false, 1, 2, 3, 4));
  }
  for (uint32_t index = 0; index < request_count; ++index) {
    Answer(requests[index]);
    Must(TRITONBACKEND_RequestRelease(requests[index], testing::kAll));
  }
  return nullptr;
}

}  // extern "C"
