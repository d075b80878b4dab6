// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Metrics and log lines of a backend. Each request of INPUT0 (FP32) is counted, observed and logged, element by
// element; OUTPUT0 (FP64 [2]) has the values of the counter and the gauge afterwards.
//
//   <name>_total{model="..."}      a counter, of elements
//   <name>_last{model="..."}       a gauge, the last element
//   <name>_size{model="..."}       a histogram, of elements: parameter BUCKETS, "0.5,1,2"
//
// <name> is parameter METRIC. Models with the same one have the same families. Parameter LOG: a line that is logged at
// every level when the model is initialized.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "common.h"

namespace {

using testing::Must;
using testing::Tensor;

struct FamilyDelete {
  void operator()(TRITONSERVER_MetricFamily* family) const { Must(TRITONSERVER_MetricFamilyDelete(family)); }
};
struct MetricDelete {
  void operator()(TRITONSERVER_Metric* metric) const { Must(TRITONSERVER_MetricDelete(metric)); }
};
struct ArgsDelete {
  void operator()(TRITONSERVER_MetricArgs* args) const { Must(TRITONSERVER_MetricArgsDelete(args)); }
};
struct ParameterDelete {
  void operator()(TRITONSERVER_Parameter* parameter) const { TRITONSERVER_ParameterDelete(parameter); }
};

// A family and its one metric for a model. The metric must be deleted before its family, hence the order of members.
class Metric {
 public:
  TRITONSERVER_Error* Create(TRITONSERVER_MetricKind kind, const std::string& name, const char* model,
                             const std::vector<double>& buckets) {
    TRITONSERVER_MetricFamily* family = nullptr;
    const std::string description = "Of a test: " + name;
    RETURN_IF_ERROR(TRITONSERVER_MetricFamilyNew(&family, kind, name.c_str(), description.c_str()));
    family_.reset(family);
    const std::unique_ptr<TRITONSERVER_Parameter, ParameterDelete> label(
        TRITONSERVER_ParameterNew("model", TRITONSERVER_PARAMETER_STRING, model));
    const TRITONSERVER_Parameter* labels[] = {label.get()};
    TRITONSERVER_Metric* metric = nullptr;
    if (kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) {
      TRITONSERVER_MetricArgs* args = nullptr;
      RETURN_IF_ERROR(TRITONSERVER_MetricArgsNew(&args));
      const std::unique_ptr<TRITONSERVER_MetricArgs, ArgsDelete> owned(args);
      RETURN_IF_ERROR(TRITONSERVER_MetricArgsSetHistogram(args, buckets.data(), buckets.size()));
      RETURN_IF_ERROR(TRITONSERVER_MetricNewWithArgs(&metric, family, labels, 1, args));
    } else {
      RETURN_IF_ERROR(TRITONSERVER_MetricNew(&metric, family, labels, 1));
    }
    metric_.reset(metric);
    return nullptr;
  }

  TRITONSERVER_Metric* get() const { return metric_.get(); }

 private:
  std::unique_ptr<TRITONSERVER_MetricFamily, FamilyDelete> family_;
  std::unique_ptr<TRITONSERVER_Metric, MetricDelete> metric_;
};

struct Model {
  Metric total;
  Metric last;
  Metric size;

  TRITONSERVER_Error* Answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) const {
    Tensor tensor;
    RETURN_IF_ERROR(testing::ReadInput(request, "INPUT0", &tensor));
    for (size_t index = 0; index < tensor.count<float>(); ++index) {
      const double value = tensor.as<float>()[index];
      RETURN_IF_ERROR(TRITONSERVER_MetricIncrement(total.get(), 1));
      RETURN_IF_ERROR(TRITONSERVER_MetricSet(last.get(), value));
      RETURN_IF_ERROR(TRITONSERVER_MetricObserve(size.get(), value));
      testing::Log(TRITONSERVER_LOG_VERBOSE, "element " + std::to_string(value));
    }
    double values[2] = {0, 0};
    RETURN_IF_ERROR(TRITONSERVER_MetricValue(total.get(), &values[0]));
    RETURN_IF_ERROR(TRITONSERVER_MetricValue(last.get(), &values[1]));
    return testing::WriteOutput(response, "OUTPUT0", TRITONSERVER_TYPE_FP64, {2}, values, sizeof(values));
  }
};

std::vector<double> Buckets(const std::string& text) {
  std::vector<double> bounds;
  std::istringstream stream(text);
  for (std::string bound; std::getline(stream, bound, ',');) bounds.push_back(std::atof(bound.c_str()));
  return bounds;
}

void LogAll(const std::string& line) {
  for (TRITONSERVER_LogLevel level :
       {TRITONSERVER_LOG_ERROR, TRITONSERVER_LOG_WARN, TRITONSERVER_LOG_INFO, TRITONSERVER_LOG_VERBOSE}) {
    testing::Log(level, line);
  }
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const testing::Config config(model);
  const std::string name = config.Parameter("METRIC", "native");
  const char* model_name = nullptr;
  RETURN_IF_ERROR(TRITONBACKEND_ModelName(model, &model_name));
  auto state = std::make_unique<Model>();
  RETURN_IF_ERROR(state->total.Create(TRITONSERVER_METRIC_KIND_COUNTER, name + "_total", model_name, {}));
  RETURN_IF_ERROR(state->last.Create(TRITONSERVER_METRIC_KIND_GAUGE, name + "_last", model_name, {}));
  RETURN_IF_ERROR(state->size.Create(TRITONSERVER_METRIC_KIND_HISTOGRAM, name + "_size", model_name,
                                     Buckets(config.Parameter("BUCKETS", "0.5,1,2"))));
  if (const std::string line = config.Parameter("LOG", ""); !line.empty()) LogAll(line);
  RETURN_IF_ERROR(TRITONBACKEND_ModelSetState(model, state.get()));
  state.release();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  std::unique_ptr<Model> state(testing::StateOf<Model>(model));
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  const Model* model = testing::StateOf<Model>(testing::ModelOf(instance));
  testing::ExecuteEach(instance, requests, count, false,
                       [model](TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
                         return model->Answer(request, response);
                       });
  return nullptr;
}

}  // extern "C"
