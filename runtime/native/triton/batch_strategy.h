// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A custom batching strategy: a library that decides which requests of a model form a batch.
//
// The scheduler, which is in Python, calls it on the event loop's thread, with the GIL, while it forms a batch. So a
// slow library delays all requests of the server.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend.h"
#include "error.h"
#include "request.h"
#include "triton/core/tritonbackend.h"

namespace pyruntime {

class BatchStrategy {
 public:
  BatchStrategy(std::shared_ptr<TRITONBACKEND_Model> model, std::string path)
      : model_(std::move(model)), path_(std::move(path)) {}

  // These block, and are called without the GIL, by one thread at a time.
  std::optional<Failure> Open();
  std::optional<Failure> Initialize();
  std::optional<Failure> Finalize();

  // One batch at a time: Begin, Include for each request, then End.
  std::optional<Failure> Begin();
  std::optional<Failure> Include(TRITONBACKEND_Request* request, bool* included);
  std::optional<Failure> End();

  const std::shared_ptr<TRITONBACKEND_Model>& model() const { return model_; }

 private:
  using BatcherInitialize = TRITONSERVER_Error* (*)(TRITONBACKEND_Batcher**, TRITONBACKEND_Model*);
  using BatcherFinalize = TRITONSERVER_Error* (*)(TRITONBACKEND_Batcher*);
  using BatchInitialize = TRITONSERVER_Error* (*)(const TRITONBACKEND_Batcher*, void**);
  using BatchInclude = TRITONSERVER_Error* (*)(TRITONBACKEND_Request*, void*, bool*);
  using BatchFinalize = TRITONSERVER_Error* (*)(void*);

  std::shared_ptr<TRITONBACKEND_Model> model_;
  std::string path_;
  BatcherInitialize batcher_initialize_ = nullptr;
  BatcherFinalize batcher_finalize_ = nullptr;
  BatchInitialize batch_initialize_ = nullptr;
  BatchInclude batch_include_ = nullptr;
  BatchFinalize batch_finalize_ = nullptr;
  Phase phase_ = Phase::kNew;
  // The library's objects for the batcher and for the current batch.
  TRITONBACKEND_Batcher* batcher_ = nullptr;
  void* batch_ = nullptr;
};

}  // namespace pyruntime
