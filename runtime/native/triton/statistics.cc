// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Times that backends report: of requests, of batches, and of responses of decoupled models.

#include <memory>
#include <optional>
#include <utility>

#include "arguments.h"
#include "backend.h"
#include "host.h"
#include "response.h"

struct TRITONBACKEND_ModelInstanceResponseStatistics {
  TRITONBACKEND_ModelInstance* instance = nullptr;
  pyruntime::RequestStatePtr request;
  uint64_t start_ns = 0;
  uint64_t output_start_ns = 0;
  uint64_t end_ns = 0;
  std::optional<TRITONSERVER_Error_Code> error;
};

namespace pyruntime {
namespace {

// Which of the four kinds of responses this was.
const char* KindOf(const TRITONBACKEND_ModelInstanceResponseStatistics& statistics) {
  if (statistics.error) return *statistics.error == TRITONSERVER_ERROR_CANCELLED ? "cancel" : "fail";
  return statistics.output_start_ns == 0 ? "empty" : "success";
}

class ResponseStatisticsEvent : public Event {
 public:
  ResponseStatisticsEvent(
      std::shared_ptr<TRITONBACKEND_ModelInstance> instance,
      const TRITONBACKEND_ModelInstanceResponseStatistics& statistics)
      : instance_(std::move(instance)), number_(statistics.request->NextReported()), statistics_(statistics) {}

  PyObject* ToPython() override {
    if (instance_->owner == nullptr) return nullptr;
    return Py_BuildValue(
        "(iOKsKKK)", kResponseStatistics, instance_->owner, static_cast<unsigned long long>(number_),
        KindOf(statistics_), static_cast<unsigned long long>(statistics_.start_ns),
        static_cast<unsigned long long>(statistics_.output_start_ns),
        static_cast<unsigned long long>(statistics_.end_ns));
  }

 private:
  std::shared_ptr<TRITONBACKEND_ModelInstance> instance_;
  uint64_t number_;
  TRITONBACKEND_ModelInstanceResponseStatistics statistics_;
};

}  // namespace
}  // namespace pyruntime

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, const bool success,
    const uint64_t exec_start_ns, const uint64_t compute_start_ns, const uint64_t compute_end_ns,
    const uint64_t exec_end_ns) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_REQUIRE(request);
  request->statistics = {success, exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns};
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance* instance, const uint64_t batch_size, const uint64_t exec_start_ns,
    const uint64_t compute_start_ns, const uint64_t compute_end_ns, const uint64_t exec_end_ns) {
  PYRUNTIME_REQUIRE(instance);
  PYRUNTIME_GUARD({
    instance->Report({batch_size, exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns});
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsNew(
    TRITONBACKEND_ModelInstanceResponseStatistics** response_statistics) {
  PYRUNTIME_REQUIRE(response_statistics);
  PYRUNTIME_GUARD({
    *response_statistics = std::make_unique<TRITONBACKEND_ModelInstanceResponseStatistics>().release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics) {
  std::unique_ptr<TRITONBACKEND_ModelInstanceResponseStatistics>{response_statistics};
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics, TRITONBACKEND_ModelInstance* model_instance) {
  PYRUNTIME_REQUIRE(response_statistics);
  response_statistics->instance = model_instance;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics,
    TRITONBACKEND_ResponseFactory* response_factory) {
  PYRUNTIME_REQUIRE(response_statistics);
  PYRUNTIME_REQUIRE(response_factory);
  response_statistics->request = response_factory->state;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics, uint64_t response_start) {
  PYRUNTIME_REQUIRE(response_statistics);
  response_statistics->start_ns = response_start;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics, uint64_t compute_output_start) {
  PYRUNTIME_REQUIRE(response_statistics);
  response_statistics->output_start_ns = compute_output_start;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics, uint64_t response_end) {
  PYRUNTIME_REQUIRE(response_statistics);
  response_statistics->end_ns = response_end;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics, TRITONSERVER_Error* error) {
  PYRUNTIME_REQUIRE(response_statistics);
  response_statistics->error.reset();
  if (error != nullptr) response_statistics->error = error->code;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportResponseStatistics(
    TRITONBACKEND_ModelInstanceResponseStatistics* response_statistics) {
  PYRUNTIME_REQUIRE(response_statistics);
  PYRUNTIME_GUARD({
    const TRITONBACKEND_ModelInstanceResponseStatistics& statistics = *response_statistics;
    if (statistics.instance == nullptr || statistics.request == nullptr) {
      return pyruntime::InvalidArgument(__func__, "the statistics name no instance or no response factory");
    }
    pyruntime::Host::Get().queue().Push(
        std::make_unique<pyruntime::ResponseStatisticsEvent>(statistics.instance->shared_from_this(), statistics));
    return nullptr;
  });
}

}  // extern "C"
