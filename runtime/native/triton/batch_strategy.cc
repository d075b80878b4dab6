// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "batch_strategy.h"

#include <utility>

#include "plugins.h"

namespace pyruntime {

std::optional<Failure> BatchStrategy::Open() {
  void* handle = nullptr;
  if (std::optional<Failure> failure = OpenPlugin(path_, &handle)) return failure;
  Find(handle, "TRITONBACKEND_ModelBatcherInitialize", &batcher_initialize_);
  Find(handle, "TRITONBACKEND_ModelBatcherFinalize", &batcher_finalize_);
  Find(handle, "TRITONBACKEND_ModelBatchInitialize", &batch_initialize_);
  Find(handle, "TRITONBACKEND_ModelBatchIncludeRequest", &batch_include_);
  Find(handle, "TRITONBACKEND_ModelBatchFinalize", &batch_finalize_);
  if (batcher_initialize_ != nullptr && batcher_finalize_ != nullptr && batch_initialize_ != nullptr &&
      batch_include_ != nullptr && batch_finalize_ != nullptr) {
    return std::nullopt;
  }
  return Failure{
      TRITONSERVER_ERROR_INVALID_ARG,
      path_ + " does not define all required custom batching functions for model " + model_->name};
}

std::optional<Failure> BatchStrategy::Initialize() {
  std::optional<Failure> failure = Guarded(
      "TRITONBACKEND_ModelBatcherInitialize", [this] { return batcher_initialize_(&batcher_, model_.get()); });
  phase_ = failure ? Phase::kFinalized : Phase::kInitialized;
  return failure;
}

std::optional<Failure> BatchStrategy::Finalize() {
  if (std::exchange(phase_, Phase::kFinalized) != Phase::kInitialized) return std::nullopt;
  return Guarded("TRITONBACKEND_ModelBatcherFinalize", [this] { return batcher_finalize_(batcher_); });
}

std::optional<Failure> BatchStrategy::Begin() {
  batch_ = nullptr;
  return Guarded("TRITONBACKEND_ModelBatchInitialize", [this] { return batch_initialize_(batcher_, &batch_); });
}

std::optional<Failure> BatchStrategy::Include(TRITONBACKEND_Request* request, bool* included) {
  return Guarded("TRITONBACKEND_ModelBatchIncludeRequest", [this, request, included] {
    return batch_include_(request, batch_, included);
  });
}

std::optional<Failure> BatchStrategy::End() {
  return Guarded("TRITONBACKEND_ModelBatchFinalize", [this] { return batch_finalize_(batch_); });
}

}  // namespace pyruntime
