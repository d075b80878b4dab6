// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Instances: the thread of each, which executes batches.

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "backend.h"
#include "client_socket.h"
#include "host.h"
#include "lent_connection.h"
#include "python.h"
#include "response.h"
#include "server.h"

namespace pyruntime {
namespace {

Failure NotInitialized(const std::string& instance) {
  return {TRITONSERVER_ERROR_UNAVAILABLE, "instance '" + instance + "' is not initialized"};
}

// The instance whose Execute runs on this thread.
thread_local const TRITONBACKEND_ModelInstance* executing = nullptr;

class BatchStatisticsEvent : public Event {
 public:
  BatchStatisticsEvent(std::shared_ptr<TRITONBACKEND_ModelInstance> instance, const BatchStatistics& statistics)
      : instance_(std::move(instance)), statistics_(statistics) {}

  PyObject* ToPython() override {
    if (instance_->owner == nullptr) return nullptr;
    Ref times(pyruntime::ToPython(statistics_));
    if (!times) return nullptr;
    return Py_BuildValue("(iON)", kBatchStatistics, instance_->owner, times.release());
  }

 private:
  std::shared_ptr<TRITONBACKEND_ModelInstance> instance_;
  BatchStatistics statistics_;
};

class ExecutedEvent : public Event {
 public:
  ExecutedEvent(std::shared_ptr<TRITONBACKEND_ModelInstance> instance, const Execution& execution)
      : instance_(std::move(instance)), execution_(execution) {}

  PyObject* ToPython() override {
    if (instance_->owner == nullptr) return nullptr;
    Ref execution(pyruntime::ToPython(execution_));
    if (!execution) return nullptr;
    return Py_BuildValue("(iON)", kExecuted, instance_->owner, execution.release());
  }

 private:
  std::shared_ptr<TRITONBACKEND_ModelInstance> instance_;
  Execution execution_;
};

constexpr uint64_t Span(uint64_t from, uint64_t to) { return to > from ? to - from : 0; }

// Counts requests with the same rows, each a batch of its own, and sums their times: see _triton.pyi. Changed in the
// queue.
class CountedEvent : public Event {
 public:
  CountedEvent(std::shared_ptr<TRITONBACKEND_ModelInstance> instance, uint32_t rows)
      : instance_(std::move(instance)), rows_(rows) {}

  void Add(const CountedRequest& request) {
    const uint64_t start = request.execution.start_ns;
    const uint64_t end = request.execution.end_ns;
    const Statistics& times = request.times;
    const BatchStatistics batch = request.execution.reported.value_or(BatchStatistics{rows_, start, start, end, end});
    ++count_;
    // The same durations as in runtime/instances/native/times.py.
    const uint64_t spans[] = {
        Span(request.arrived_ns, times.exec_start_ns), Span(times.exec_start_ns, times.compute_start_ns),
        Span(times.compute_start_ns, times.compute_end_ns), Span(times.compute_end_ns, times.exec_end_ns),
        // A backend may be over with a request after its client has the response.
        Span(request.arrived_ns, std::max(request.sent_ns, times.exec_end_ns)), Span(batch.exec_start_ns, batch.compute_start_ns),
        Span(batch.compute_start_ns, batch.compute_end_ns), Span(batch.compute_end_ns, batch.exec_end_ns),
        Span(start, end)};
    for (size_t index = 0; index < sums_.size(); ++index) sums_[index] += spans[index];
  }

  PyObject* ToPython() override {
    if (instance_->owner == nullptr) return nullptr;
    Ref sums(PyTuple_New(static_cast<Py_ssize_t>(sums_.size())));
    if (!sums) return nullptr;
    for (size_t index = 0; index < sums_.size(); ++index) {
      PyTuple_SetItem(sums.get(), static_cast<Py_ssize_t>(index), PyLong_FromUnsignedLongLong(sums_[index]));
    }
    return Py_BuildValue("(iOKIN)", kCounted, instance_->owner, static_cast<unsigned long long>(count_), rows_,
                         sums.release());
  }

 private:
  std::shared_ptr<TRITONBACKEND_ModelInstance> instance_;
  const uint32_t rows_;
  uint64_t count_ = 0;
  std::array<uint64_t, 9> sums_{};
};

}  // namespace
}  // namespace pyruntime

using pyruntime::Batch;
using pyruntime::Failure;
using pyruntime::Guarded;
using pyruntime::Phase;

std::optional<Failure> TRITONBACKEND_ModelInstance::Initialize() {
  const bool shares = model->backend->policy == TRITONBACKEND_EXECUTION_DEVICE_BLOCKING &&
                      kind == TRITONSERVER_INSTANCEGROUPKIND_GPU;
  worker_ = shares ? model->WorkerOf(device_id, name) : std::make_shared<pyruntime::Worker>(name);
  ++model->instances;
  phase_ = Phase::kInitialized;
  const auto initialize = model->backend->library.instance_initialize;
  std::optional<Failure> failure;
  if (initialize != nullptr) {
    worker_->Run([&] {
      const pyruntime::CallerScope caller(model->name, nullptr);
      failure = Guarded("TRITONBACKEND_ModelInstanceInitialize", [&] { return initialize(this); });
    });
  }
  if (failure) {
    Finalize();
    worker_ = nullptr;  // nobody uses it yet, and the object may stay for long
  }
  return failure;
}

std::optional<Failure> TRITONBACKEND_ModelInstance::Finalize() {
  if (phase_.exchange(Phase::kFinalized) != Phase::kInitialized) return std::nullopt;
  const auto finalize = model->backend->library.instance_finalize;
  std::optional<Failure> failure;
  {
    const std::lock_guard<std::mutex> lock(ready_mutex_);
    worker_->Run([&] {
      ended_ = true;
      if (finalize == nullptr) return;
      const pyruntime::CallerScope caller(model->name, nullptr);
      failure = Guarded("TRITONBACKEND_ModelInstanceFinalize", [&] { return finalize(this); });
    });
  }
  --model->instances;
  return failure;
}

std::optional<Failure> TRITONBACKEND_ModelInstance::IsReady() {
  const std::lock_guard<std::mutex> lock(ready_mutex_);
  if (phase_ != Phase::kInitialized) return pyruntime::NotInitialized(name);
  const auto ready = model->backend->library.instance_ready;
  if (ready == nullptr) return std::nullopt;
  return Guarded("TRITONBACKEND_ModelInstanceReady", [&] { return ready(this); });
}

void TRITONBACKEND_ModelInstance::Execute(Batch batch) {
  for (const std::unique_ptr<TRITONBACKEND_Request>& request : batch.requests) Remember(request->state);
  auto shared = std::make_shared<Batch>(std::move(batch));  // std::function requires a copyable type
  worker_->Post([this, shared] { Run(*shared); });
}

void TRITONBACKEND_ModelInstance::Wake() {
  if (worker_ != nullptr) worker_->Wake();
}

void TRITONBACKEND_ModelInstance::Read(std::shared_ptr<pyruntime::Source> source) {
  worker_->Watch(source);
  // Data that was read already does not make the descriptor readable.
  worker_->Post([this, source] {
    if (!source->Read()) worker_->Forget(source.get());
  });
  worker_->Wake();
}

void TRITONBACKEND_ModelInstance::StopReading(const pyruntime::Source* source) {
  if (worker_ != nullptr) worker_->Forget(source);
}

void TRITONBACKEND_ModelInstance::Run(Batch& batch) {
  const auto& plain = batch.requests.front()->state->plain();
  const std::shared_ptr<pyruntime::LentConnection> lent = plain ? plain->lent : nullptr;
  reported_.reset();
  const uint64_t start = pyruntime::Now();
  bool failed = false;
  pyruntime::EventPlace answer = Call(batch, &failed);
  const pyruntime::Execution execution{batch.serial, start, pyruntime::Now(), reported_, failed};
  if (lent != nullptr && lent->Ended(execution, &answer)) return;
  pyruntime::EventQueue& queue = pyruntime::Host::Get().queue();
  // Part of the answer's event, if Python has not taken it yet, because two events cost nearly twice as much as one.
  const bool is_told = queue.AmendLast(answer, [&](pyruntime::Event* event) {
    return static_cast<pyruntime::ResponseEvent*>(event)->Execute(execution);
  });
  if (!is_told) queue.Push(std::make_unique<pyruntime::ExecutedEvent>(shared_from_this(), execution));
}

// Keeps no reference to the requests when it returns; Python relies on that when it gets the event.
pyruntime::EventPlace TRITONBACKEND_ModelInstance::Call(Batch& batch, bool* failed) {
  std::vector<TRITONBACKEND_Request*> requests;
  std::vector<pyruntime::RequestStatePtr> states;
  requests.reserve(batch.requests.size());
  states.reserve(batch.requests.size());
  for (std::unique_ptr<TRITONBACKEND_Request>& request : batch.requests) {
    states.push_back(request->state);
    requests.push_back(request.release());  // the backend's, from now on
  }
  const pyruntime::CallerScope caller(model->name, states.front());
  std::optional<Failure> failure;
  if (ended_) {
    failure = pyruntime::NotInitialized(name);
  } else {
    pyruntime::executing = this;
    failure = Guarded("TRITONBACKEND_ModelInstanceExecute", [&] {
      return model->backend->library.execute(this, requests.data(), static_cast<uint32_t>(requests.size()));
    });
    pyruntime::executing = nullptr;
  }
  *failed = failure.has_value();
  for (size_t index = 0; failure && index < requests.size(); ++index) {
    // A backend that fails must not release requests, but one that threw an exception may have released some.
    if (states[index]->IsReleased()) continue;
    pyruntime::FailRequest(std::unique_ptr<TRITONBACKEND_Request>(requests[index]), failure->code, failure->message);
  }
  if (!states.front()->plain()) return {};
  return pyruntime::Host::Get().queue().Look(*states.front()->answer());
}

void TRITONBACKEND_ModelInstance::Count(const pyruntime::CountedRequest& request) {
  pyruntime::EventQueue& queue = pyruntime::Host::Get().queue();
  pyruntime::EventPlace& place = counted_[request.rows];
  const bool is_counted = queue.Amend(place, [&](pyruntime::Event* event) {
    static_cast<pyruntime::CountedEvent*>(event)->Add(request);
  });
  if (is_counted) return;
  auto event = std::make_unique<pyruntime::CountedEvent>(shared_from_this(), request.rows);
  event->Add(request);
  queue.Push(std::move(event), &place, pyruntime::kLater);
}

void TRITONBACKEND_ModelInstance::Report(const pyruntime::BatchStatistics& statistics) {
  const bool is_first = pyruntime::executing == this && !reported_;
  if (is_first) {
    reported_ = statistics;
    return;
  }
  pyruntime::Host::Get().queue().Push(
      std::make_unique<pyruntime::BatchStatisticsEvent>(shared_from_this(), statistics));
}

void TRITONBACKEND_ModelInstance::Remember(const pyruntime::RequestStatePtr& state) {
  if (requests_.size() >= forget_at_) {
    for (auto known = requests_.begin(); known != requests_.end();) {
      known = known->second.expired() ? requests_.erase(known) : std::next(known);
    }
    forget_at_ = std::max(kForgetAtMin, 2 * requests_.size());
  }
  requests_.insert_or_assign(state->serial(), state);
}

void TRITONBACKEND_ModelInstance::Cancel(uint64_t serial) {
  if (const pyruntime::RequestStatePtr state = Find(serial)) state->Cancel();
}

bool TRITONBACKEND_ModelInstance::Claim(uint64_t serial) {
  const pyruntime::RequestStatePtr state = Find(serial);
  if (state == nullptr) return true;
  pyruntime::ClientSocket* client = state->plain() ? state->plain()->client.get() : nullptr;
  if (client == nullptr) return state->Claim();
  // If the client is answered here, the event for it is in the queue after this.
  const std::lock_guard<std::mutex> lock(client->mutex());
  return state->Claim();
}

void TRITONBACKEND_ModelInstance::Take(uint64_t serial) {
  const pyruntime::RequestStatePtr state = Find(serial);
  if (state != nullptr && state->window() != nullptr) state->window()->Take();
}

void TRITONBACKEND_ModelInstance::StopWaiting() {
  for (const auto& known : requests_) {
    const pyruntime::RequestStatePtr state = known.second.lock();
    if (state != nullptr && state->window() != nullptr) state->window()->Close();
  }
}

pyruntime::RequestStatePtr TRITONBACKEND_ModelInstance::Find(uint64_t serial) const {
  const auto known = requests_.find(serial);
  return known == requests_.end() ? nullptr : known->second.lock();
}

void TRITONBACKEND_ModelInstance::Abandon() {
  owner = nullptr;
  StopWaiting();
  if (IsInitialized()) self_ = shared_from_this();
}
