// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "host.h"
#include "python.h"

namespace pyruntime {
namespace {

// The same limits as in runtime/observe/metric_checks.py, which has the reasons.
constexpr size_t kNameCharsMax = 256;
constexpr size_t kDescriptionBytesMax = 4096;
constexpr size_t kLabelsMax = 64;
constexpr size_t kLabelsBytesMax = 4096;
constexpr size_t kBucketsMax = 256;

Failure Invalid(std::string message) { return {TRITONSERVER_ERROR_INVALID_ARG, std::move(message)}; }

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool IsName(const std::string& text, bool with_colons) {
  const auto fits = [with_colons](char c) { return IsLetter(c) || (with_colons && c == ':'); };
  const auto fits_later = [&](char c) { return fits(c) || (c >= '0' && c <= '9'); };
  return !text.empty() && text.size() <= kNameCharsMax && fits(text.front()) &&
         std::all_of(text.begin(), text.end(), fits_later);
}

std::optional<Failure> CheckLabels(const Labels& labels) {
  if (labels.size() > kLabelsMax) {
    return Invalid(
        "a metric has " + std::to_string(kLabelsMax) + " labels at most, not " + std::to_string(labels.size()));
  }
  size_t size = 0;
  for (const auto& [name, text] : labels) {
    // Two '_' in front are Prometheus' own, and `le` is a bucket's.
    if (!IsName(name, false) || name.compare(0, 2, "__") == 0 || name == "le") return Invalid("Invalid label name");
    size += name.size() + text.size();
  }
  if (size > kLabelsBytesMax) {
    return Invalid(
        "the labels of a metric have " + std::to_string(kLabelsBytesMax) + " bytes at most, not " +
        std::to_string(size));
  }
  return std::nullopt;
}

// A bound without end is dropped: each histogram has that bucket anyway.
std::optional<Failure> CheckBounds(std::vector<double>* bounds) {
  if (!bounds->empty() && std::isinf(bounds->back()) && bounds->back() > 0) bounds->pop_back();
  if (bounds->size() > kBucketsMax) {
    return Invalid(
        "a histogram has " + std::to_string(kBucketsMax) + " buckets at most, not " + std::to_string(bounds->size()));
  }
  const bool finite = std::all_of(bounds->begin(), bounds->end(), [](double bound) { return std::isfinite(bound); });
  const auto no_rise = std::adjacent_find(bounds->begin(), bounds->end(), std::greater_equal<>());
  if (!finite || no_rise != bounds->end()) return Invalid("Bucket Boundaries must be strictly sorted");
  return std::nullopt;
}

}  // namespace

std::vector<std::string> FamilyData::SampleNames() const {
  if (kind != TRITONSERVER_METRIC_KIND_HISTOGRAM) return {name};
  return {name, name + "_bucket", name + "_sum", name + "_count"};
}

std::optional<Failure> MetricRegistry::NewFamily(
    TRITONSERVER_MetricKind kind, const std::string& name, const std::string& description,
    std::shared_ptr<FamilyData>* family) {
  if (!IsName(name, true)) return Invalid("Invalid metric name");
  if (kind < TRITONSERVER_METRIC_KIND_COUNTER || kind > TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    return Invalid("Unsupported kind passed to MetricFamily constructor.");
  }
  if (description.size() > kDescriptionBytesMax) {
    return Invalid(
        "the description of metric family '" + name + "' has " + std::to_string(kDescriptionBytesMax) +
        " bytes at most, not " + std::to_string(description.size()));
  }
  auto made = std::make_shared<FamilyData>();
  made->name = name;
  made->description = description;
  made->kind = kind;
  std::lock_guard lock(mutex_);
  const auto found = families_.find(name);
  if (found != families_.end()) {
    auto there = found->second.lock();
    if (there->kind != kind) return Invalid("Family name already exists with different type");
    *family = std::move(there);
    return std::nullopt;
  }
  if (auto failure = CheckNames(*made)) return failure;
  families_.emplace(name, made);
  *family = std::move(made);
  return std::nullopt;
}

std::optional<Failure> MetricRegistry::CheckNames(const FamilyData& made) {
  if (families_.size() >= kFamiliesMax) {
    return Invalid("there are " + std::to_string(kFamiliesMax) + " metric families already, and no more can be had");
  }
  const auto names = made.SampleNames();
  for (const auto& [name, weak] : families_) {
    const auto taken = weak.lock()->SampleNames();
    const auto clash = std::find_first_of(names.begin(), names.end(), taken.begin(), taken.end());
    if (clash != names.end()) {
      return Invalid(
          "metric family '" + made.name + "' would have samples named '" + *clash + "', as another family has");
    }
  }
  return std::nullopt;
}

void MetricRegistry::DropFamily(std::shared_ptr<FamilyData>* family) {
  std::lock_guard lock(mutex_);
  const std::string name = (*family)->name;
  family->reset();
  const auto found = families_.find(name);
  if (found->second.expired()) families_.erase(found);
}

std::optional<Failure> MetricRegistry::NewMetric(
    FamilyData* family, const Labels& labels, const std::vector<double>* bounds, std::shared_ptr<MetricData>* metric) {
  if (auto failure = CheckLabels(labels)) return failure;
  auto made = std::make_shared<MetricData>();
  if (bounds != nullptr) {
    made->bounds = *bounds;
    if (auto failure = CheckBounds(&made->bounds)) return failure;
    made->counts.resize(made->bounds.size() + 1);
  }
  std::lock_guard lock(mutex_);
  const auto found = family->metrics.find(labels);
  if (found != family->metrics.end()) {
    *metric = found->second.lock();
    return std::nullopt;
  }
  if (family->metrics.size() >= kMetricsPerFamilyMax) {
    return Invalid(
        "metric family '" + family->name + "' has " + std::to_string(kMetricsPerFamilyMax) +
        " metrics, and no more can be had");
  }
  family->metrics.emplace(labels, made);
  *metric = std::move(made);
  return std::nullopt;
}

void MetricRegistry::DropMetric(FamilyData* family, const Labels& labels, std::shared_ptr<MetricData>* metric) {
  std::lock_guard lock(mutex_);
  metric->reset();
  const auto found = family->metrics.find(labels);
  if (found->second.expired()) family->metrics.erase(found);
}

double MetricRegistry::Value(const MetricData& metric) {
  std::lock_guard lock(mutex_);
  return metric.value;
}

void MetricRegistry::Increment(MetricData* metric, double value) {
  std::lock_guard lock(mutex_);
  metric->value += value;
}

void MetricRegistry::Set(MetricData* metric, double value) {
  std::lock_guard lock(mutex_);
  metric->value = value;
}

void MetricRegistry::Observe(MetricData* metric, double value) {
  std::lock_guard lock(mutex_);
  const auto& bounds = metric->bounds;
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  ++metric->counts[static_cast<size_t>(bucket)];
  metric->value += value;
}

std::vector<MetricRegistry::Snapshot> MetricRegistry::TakeSnapshot() {
  std::lock_guard lock(mutex_);
  std::vector<Snapshot> all;
  for (const auto& [name, weak] : families_) {
    const auto family = weak.lock();
    Snapshot snapshot{{family->name, family->description, family->kind, {}}, {}};
    for (const auto& [labels, metric] : family->metrics) snapshot.metrics.emplace_back(labels, *metric.lock());
    all.push_back(std::move(snapshot));
  }
  return all;
}

namespace {

// Appends a new reference, which may be null.
bool Append(PyObject* list, PyObject* item) {
  const Ref owned(item);
  return owned && PyList_Append(list, owned.get()) == 0;
}

PyObject* LabelsToPython(const Labels& labels) {
  Ref dict(PyDict_New());
  if (!dict) return nullptr;
  for (const auto& [name, text] : labels) {
    const Ref value(ToPython(text));
    if (!value || PyDict_SetItemString(dict.get(), name.c_str(), value.get()) != 0) return nullptr;
  }
  return dict.release();
}

PyObject* HistogramToPython(const MetricData& metric) {
  Ref bounds(PyList_New(0));
  Ref totals(PyList_New(0));
  if (!bounds || !totals) return nullptr;
  for (const double bound : metric.bounds) {
    if (!Append(bounds.get(), PyFloat_FromDouble(bound))) return nullptr;
  }
  unsigned long long total = 0;
  for (const uint64_t count : metric.counts) {
    total += count;
    if (!Append(totals.get(), PyLong_FromUnsignedLongLong(total))) return nullptr;
  }
  return Py_BuildValue("(NNdK)", bounds.release(), totals.release(), metric.value, total);
}

PyObject* FamilyToPython(const MetricRegistry::Snapshot& snapshot) {
  const bool is_histogram = snapshot.family.kind == TRITONSERVER_METRIC_KIND_HISTOGRAM;
  Ref metrics(PyList_New(0));
  if (!metrics) return nullptr;
  for (const auto& [labels, metric] : snapshot.metrics) {
    PyObject* value = is_histogram ? HistogramToPython(metric) : PyFloat_FromDouble(metric.value);
    if (!Append(metrics.get(), Py_BuildValue("(NN)", LabelsToPython(labels), value))) return nullptr;
  }
  return Py_BuildValue(
      "(NiNN)", ToPython(snapshot.family.name), static_cast<int>(snapshot.family.kind),
      ToPython(snapshot.family.description), metrics.release());
}

}  // namespace

PyObject* MetricsToPython() {
  // A copy first: the registry's mutex is not held while Python may run anything.
  const auto all = Host::Get().metrics().TakeSnapshot();
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const auto& snapshot : all) {
    if (!Append(list.get(), FamilyToPython(snapshot))) return nullptr;
  }
  return list.release();
}

}  // namespace pyruntime
