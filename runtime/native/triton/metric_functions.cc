// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of the C interface for metrics of native code.

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "error.h"
#include "host.h"
#include "metrics.h"
#include "values.h"

struct TRITONSERVER_MetricFamily {
  std::shared_ptr<pyruntime::FamilyData> data;
  // Handles of metrics that were created from this one, and must be deleted before it.
  std::atomic<size_t> metrics{0};

  ~TRITONSERVER_MetricFamily() {
    if (data != nullptr) pyruntime::Host::Get().metrics().DropFamily(&data);
  }
};

struct TRITONSERVER_Metric {
  TRITONSERVER_MetricFamily* family = nullptr;
  pyruntime::Labels labels;
  std::shared_ptr<pyruntime::MetricData> data;

  ~TRITONSERVER_Metric() {
    if (data == nullptr) return;
    pyruntime::Host::Get().metrics().DropMetric(family->data.get(), labels, &data);
    --family->metrics;
  }
};

struct TRITONSERVER_MetricArgs {
  std::optional<std::vector<double>> bounds;
};

namespace {

using Metric = TRITONSERVER_Metric;
using MetricArgs = TRITONSERVER_MetricArgs;
using MetricFamily = TRITONSERVER_MetricFamily;
using pyruntime::ToError;

pyruntime::MetricRegistry& Registry() { return pyruntime::Host::Get().metrics(); }

TRITONSERVER_Error* Invalid(std::string message) {
  return pyruntime::NewError(TRITONSERVER_ERROR_INVALID_ARG, std::move(message));
}

const char* NameOf(TRITONSERVER_MetricKind kind) {
  switch (kind) {
    case TRITONSERVER_METRIC_KIND_COUNTER: return "TRITONSERVER_METRIC_KIND_COUNTER";
    case TRITONSERVER_METRIC_KIND_GAUGE: return "TRITONSERVER_METRIC_KIND_GAUGE";
    case TRITONSERVER_METRIC_KIND_HISTOGRAM: return "TRITONSERVER_METRIC_KIND_HISTOGRAM";
  }
  return "";  // There is no family of another kind.
}

TRITONSERVER_MetricKind KindOf(const Metric* metric) { return metric->family->data->kind; }

TRITONSERVER_Error* Unsupported(const Metric* metric, const char* operation) {
  return pyruntime::NewError(
      TRITONSERVER_ERROR_UNSUPPORTED, std::string(NameOf(KindOf(metric))) + " does not support " + operation);
}

// A value that is not finite would stay so forever.
TRITONSERVER_Error* CheckFinite(const char* what, double value) {
  if (std::isfinite(value)) return nullptr;
  const char* text = std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
  return Invalid(std::string(what) + " a finite number, not " + text);
}

// Checks the arguments for a kind of metric, with Triton's messages.
TRITONSERVER_Error* CheckArgs(TRITONSERVER_MetricKind kind, const MetricArgs* args) {
  if (kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    if (args == nullptr) return Invalid("Bucket boundaries not found in Metric args.");
    return args->bounds ? nullptr : Invalid("Metric args not set to histogram kind.");
  }
  if (args == nullptr) return nullptr;
  const char* name = kind == TRITONSERVER_METRIC_KIND_COUNTER ? "counter" : "gauge";
  return Invalid(std::string("Unexpected args found in ") + name + " Metric constructor.");
}

// Adds a label that native code gives.
TRITONSERVER_Error* ReadLabel(const TRITONSERVER_Parameter* parameter, pyruntime::Labels* labels) {
  const auto* text = std::get_if<std::string>(&parameter->value);
  if (text == nullptr) {
    return Invalid(
        "Parameter [" + parameter->name +
        "] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label.");
  }
  (*labels)[parameter->name] = *text;
  return nullptr;
}

}  // namespace

TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(
    MetricFamily** family, const TRITONSERVER_MetricKind kind, const char* name, const char* description) {
  PYRUNTIME_REQUIRE(family);
  PYRUNTIME_REQUIRE(name);
  PYRUNTIME_GUARD({
    auto made = std::make_unique<MetricFamily>();
    auto failure = Registry().NewFamily(kind, name, description == nullptr ? "" : description, &made->data);
    if (failure) return ToError(std::move(failure));
    *family = made.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(MetricFamily* family) {
  std::unique_ptr<MetricFamily> owned(family);
  if (owned != nullptr && owned->metrics != 0) {
    owned.release();  // it stays the caller's
    return pyruntime::NewError(
        TRITONSERVER_ERROR_INTERNAL,
        "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete.");
  }
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_GetMetricFamilyKind(MetricFamily* family, TRITONSERVER_MetricKind* kind) {
  PYRUNTIME_GET(family, kind, family->data->kind);
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsNew(MetricArgs** args) {
  PYRUNTIME_REQUIRE(args);
  PYRUNTIME_GUARD({
    *args = std::make_unique<MetricArgs>().release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsSetHistogram(
    MetricArgs* args, const double* buckets, const uint64_t buckets_count) {
  PYRUNTIME_REQUIRE(args);
  if (buckets_count != 0) PYRUNTIME_REQUIRE(buckets);
  PYRUNTIME_GUARD({
    args->bounds = std::vector<double>(buckets, buckets + buckets_count);
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsDelete(MetricArgs* args) {
  std::unique_ptr<MetricArgs>{args};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricNew(
    Metric** metric, MetricFamily* family, const TRITONSERVER_Parameter** labels, const uint64_t label_count) {
  return TRITONSERVER_MetricNewWithArgs(metric, family, labels, label_count, nullptr);
}

TRITONSERVER_Error* TRITONSERVER_MetricNewWithArgs(
    Metric** metric, MetricFamily* family, const TRITONSERVER_Parameter** labels, const uint64_t label_count,
    const MetricArgs* args) {
  PYRUNTIME_REQUIRE(metric);
  PYRUNTIME_REQUIRE(family);
  if (label_count != 0) PYRUNTIME_REQUIRE(labels);
  PYRUNTIME_GUARD({
    auto made = std::make_unique<Metric>();
    for (uint64_t i = 0; i < label_count; ++i) {
      PYRUNTIME_REQUIRE(labels[i]);
      if (auto* error = ReadLabel(labels[i], &made->labels)) return error;
    }
    if (auto* error = CheckArgs(family->data->kind, args)) return error;
    made->family = family;
    const std::vector<double>* bounds = args == nullptr ? nullptr : &*args->bounds;
    auto failure = Registry().NewMetric(family->data.get(), made->labels, bounds, &made->data);
    if (failure) return ToError(std::move(failure));
    ++family->metrics;
    *metric = made.release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_MetricDelete(Metric* metric) {
  std::unique_ptr<Metric>{metric};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricValue(Metric* metric, double* value) {
  PYRUNTIME_REQUIRE(metric);
  PYRUNTIME_REQUIRE(value);
  if (KindOf(metric) == TRITONSERVER_METRIC_KIND_HISTOGRAM) return Unsupported(metric, "Value");
  *value = Registry().Value(*metric->data);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricIncrement(Metric* metric, double value) {
  PYRUNTIME_REQUIRE(metric);
  const auto kind = KindOf(metric);
  if (kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) return Unsupported(metric, "Increment");
  if (kind == TRITONSERVER_METRIC_KIND_COUNTER) {
    if (value < 0) {
      return Invalid("TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.");
    }
    if (auto* error = CheckFinite("a counter can only be incremented by", value)) return error;
  }
  Registry().Increment(metric->data.get(), value);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricSet(Metric* metric, double value) {
  PYRUNTIME_REQUIRE(metric);
  if (KindOf(metric) != TRITONSERVER_METRIC_KIND_GAUGE) return Unsupported(metric, "Set");
  Registry().Set(metric->data.get(), value);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_MetricObserve(Metric* metric, double value) {
  PYRUNTIME_REQUIRE(metric);
  if (KindOf(metric) != TRITONSERVER_METRIC_KIND_HISTOGRAM) return Unsupported(metric, "Observe");
  if (auto* error = CheckFinite("a histogram can only observe", value)) return error;
  Registry().Observe(metric->data.get(), value);
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_GetMetricKind(Metric* metric, TRITONSERVER_MetricKind* kind) {
  PYRUNTIME_GET(metric, kind, KindOf(metric));
}
