// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A batching strategy: requests are executed together while the first numbers of their inputs come to LIMIT at most.
//
// It logs its calls, a line each, in the file that the environment variable STRATEGY_LOG names. Parameter FAIL of the
// model: the function that fails, or throws with THROW, or calls the server with ASK.
#include <fstream>
#include <stdexcept>
#include <string>

#include "common.h"

namespace {

struct Batcher {
  int64_t limit;
  std::string fail;
  std::string throws;
  std::string asks;
  TRITONSERVER_Server* server;
};

struct Batch {
  const Batcher* batcher;
  int64_t sum = 0;
};

TRITONSERVER_Error* Told(const Batcher& batcher, const std::string& function, const std::string& more = "") {
  const char* path = std::getenv("STRATEGY_LOG");
  if (path != nullptr) std::ofstream(path, std::ios::app) << function << more << std::endl;
  bool live = false;
  if (batcher.asks == function) RETURN_IF_ERROR(TRITONSERVER_ServerIsLive(batcher.server, &live));
  if (batcher.throws == function) throw std::runtime_error("no " + function);
  return batcher.fail == function ? testing::Fail("no " + function) : nullptr;
}

Batcher& From(TRITONBACKEND_Batcher* batcher) { return *reinterpret_cast<Batcher*>(batcher); }

}  // namespace

extern "C" {

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher,
                                                                             TRITONBACKEND_Model* model) {
  const testing::Config config(model);
  auto made = std::make_unique<Batcher>();
  made->limit = std::atoll(config.Parameter("LIMIT", "0").c_str());
  made->fail = config.Parameter("FAIL", "");
  made->throws = config.Parameter("THROW", "");
  made->asks = config.Parameter("ASK", "");
  RETURN_IF_ERROR(TRITONBACKEND_ModelServer(model, &made->server));
  RETURN_IF_ERROR(Told(*made, "initialize"));
  *batcher = reinterpret_cast<TRITONBACKEND_Batcher*>(made.release());
  return nullptr;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
  const std::unique_ptr<Batcher> owned(&From(batcher));
  return Told(*owned, "finalize");
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher,
                                                                           void** userp) {
  const Batcher& from = From(const_cast<TRITONBACKEND_Batcher*>(batcher));
  RETURN_IF_ERROR(Told(from, "begin"));
  *userp = std::make_unique<Batch>(Batch{&from}).release();
  return nullptr;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request,
                                                                               void* userp, bool* should_include) {
  Batch& batch = *static_cast<Batch*>(userp);
  const char* id = nullptr;
  testing::Tensor tensor;
  RETURN_IF_ERROR(TRITONBACKEND_RequestId(request, &id));
  RETURN_IF_ERROR(testing::ReadInput(request, "INPUT0", &tensor));
  const int64_t number = tensor.as<int32_t>()[0];
  *should_include = batch.sum + number <= batch.batcher->limit;
  if (*should_include) batch.sum += number;
  uint32_t parameters = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestParameterCount(request, &parameters));
  const std::string answer = *should_include ? " yes" : " no";
  return Told(*batch.batcher, "include", std::string(" ") + id + answer + std::string(parameters, '+'));
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
  const std::unique_ptr<Batch> owned(static_cast<Batch*>(userp));
  return Told(*owned->batcher, "end");
}

}  // extern "C"
