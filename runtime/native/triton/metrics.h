// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Metrics of native code. All backends share families by name and metrics by labels: the objects of the C interface are
// handles. A family or a metric exists as long as it has a handle.
//
// The rules are those of runtime/observe/metrics.py, which keeps the metrics of Python models.

#pragma once

#include <Python.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "error.h"
#include "triton/core/tritonserver.h"

namespace pyruntime {

using Labels = std::map<std::string, std::string>;

// A counter, a gauge or a histogram.
struct MetricData {
  double value = 0;
  // For histograms: bounds rise strictly, and there is one more bucket, above the last bound. `value` is the sum.
  std::vector<double> bounds;
  std::vector<uint64_t> counts;
};

struct FamilyData {
  std::string name;
  std::string description;
  TRITONSERVER_MetricKind kind;
  // The metrics that still have a handle.
  std::map<Labels, std::weak_ptr<MetricData>> metrics;

  // The names of its samples on the page, the family's own included.
  std::vector<std::string> SampleNames() const;
};

// Any thread. Failures are returned by the functions of the C interface as they are.
class MetricRegistry {
 public:
  // The same limits as for metrics of Python models.
  static constexpr size_t kFamiliesMax = 1000;
  static constexpr size_t kMetricsPerFamilyMax = 2000;

  std::optional<Failure> NewFamily(
      TRITONSERVER_MetricKind kind, const std::string& name, const std::string& description,
      std::shared_ptr<FamilyData>* family);
  void DropFamily(std::shared_ptr<FamilyData>* family);

  // `bounds` is null if none were given. An existing metric keeps its bounds.
  std::optional<Failure> NewMetric(
      FamilyData* family, const Labels& labels, const std::vector<double>* bounds, std::shared_ptr<MetricData>* metric);
  void DropMetric(FamilyData* family, const Labels& labels, std::shared_ptr<MetricData>* metric);

  double Value(const MetricData& metric);
  void Increment(MetricData* metric, double value);
  void Set(MetricData* metric, double value);
  void Observe(MetricData* metric, double value);

  // A copy of all families with their metrics.
  struct Snapshot {
    FamilyData family;
    std::vector<std::pair<Labels, MetricData>> metrics;
  };
  std::vector<Snapshot> TakeSnapshot();

 private:
  std::optional<Failure> CheckNames(const FamilyData& made);

  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<FamilyData>> families_;
};

// The list that _triton.metrics() returns; null with a Python exception set. With the GIL.
PyObject* MetricsToPython();

}  // namespace pyruntime
