// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Backends, the models that they run, and the instances of those.
//
// Every call into a backend goes through `Guarded`, which turns what it throws into an error. Calls that may take long
// (initialising, finalising) are made on threads of Python's that have let go of the GIL; an instance's own calls are
// made on its thread.

#pragma once

#include <Python.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "error.h"
#include "memory_manager.h"
#include "request.h"
#include "triton/core/tritonbackend.h"
#include "values.h"

namespace pyruntime {

// The functions of a backend's library; null for those that it does not have. A library is never closed.
struct Library {
  using Initialize = TRITONSERVER_Error* (*)(TRITONBACKEND_Backend*);
  using Attribute = TRITONSERVER_Error* (*)(TRITONBACKEND_Backend*, TRITONBACKEND_BackendAttribute*);
  using OfModel = TRITONSERVER_Error* (*)(TRITONBACKEND_Model*);
  using OfInstance = TRITONSERVER_Error* (*)(TRITONBACKEND_ModelInstance*);
  using Execute = TRITONSERVER_Error* (*)(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request**, uint32_t);

  Initialize initialize = nullptr;
  Initialize finalize = nullptr;
  Attribute attribute = nullptr;
  OfModel model_initialize = nullptr;
  OfModel model_finalize = nullptr;
  OfInstance instance_initialize = nullptr;
  OfInstance instance_finalize = nullptr;
  OfInstance instance_ready = nullptr;
  Execute execute = nullptr;
};

// dlopen (RTLD_NOW | RTLD_LOCAL) and dlsym. Without the GIL. The reason if it cannot be opened or has no Execute.
std::optional<Failure> OpenLibrary(const std::string& path, Library* library);

// Calls into a backend. An exception that it lets out becomes an INTERNAL failure that names `what` was called.
template <typename Call>
std::optional<Failure> Guarded(const char* what, Call&& call) {
  try {
    TRITONSERVER_Error* error = call();
    if (error == nullptr) return std::nullopt;
    return TakeFailure(error);
  } catch (const std::exception& exc) {
    return Failure{TRITONSERVER_ERROR_INTERNAL, std::string(what) + " threw an exception: " + exc.what()};
  } catch (...) {
    return Failure{TRITONSERVER_ERROR_INTERNAL, std::string(what) + " threw something that is no exception"};
  }
}

// Fails for a version of the form of configurations as JSON that there is not.
std::optional<Failure> CheckConfigVersion(uint32_t version);

// The state of a backend, a model or an instance. If its Initialize fails, it is finalised, as in Triton, because
// backends free in Finalize what they had allocated until the failure.
enum class Phase { kNew, kInitialized, kFinalized };

// The memory that a model or an instance reports to use. Any thread.
class MemoryUsage {
 public:
  // Replaces the earlier report.
  void Set(TRITONSERVER_BufferAttributes** usage, uint32_t size);
  std::vector<TRITONSERVER_BufferAttributes> Get();

 private:
  std::mutex mutex_;
  std::vector<TRITONSERVER_BufferAttributes> usage_;
};

// A state of sequences, as the configuration has it; -1 in its shape is for any size.
struct StateSpec {
  std::string name;
  TRITONSERVER_DataType datatype;
  Shape shape;
};

struct Batch {
  uint64_t serial;  // of its first request
  std::vector<std::unique_ptr<TRITONBACKEND_Request>> requests;
};

// Something that a worker reads from while it has nothing else to do.
class Source {
 public:
  virtual ~Source() = default;
  // Readable when there is something to do.
  virtual int descriptor() const = 0;
  // On the worker's thread: does the pending work once, and returns whether there may be more. It must not throw.
  virtual bool Read() = 0;
};

// A thread that calls the backend for one instance, or, where a backend is device-blocking, for all of a model's on one
// GPU.
class Worker {
 public:
  // `name` is that of the first instance; the system keeps its first 15 characters.
  explicit Worker(const std::string& name);
  // Waits until all posted work is done. Not on the thread itself.
  ~Worker();
  // Has `work`, which must not throw, run on the thread, after what was posted before, at the latest when the thread is
  // woken. That costs more than to post: who posts several things wakes it once.
  void Post(std::function<void()> work);
  void Wake();
  // The same, and waits for it. Without the GIL.
  void Run(const std::function<void()>& work);

  // Reads from a source, in turn with what is posted, until that has no more or is forgotten. Throws std::system_error
  // where the system has no descriptor for it.
  void Watch(std::shared_ptr<Source> source);
  void Forget(const Source* source);

 private:
  void Loop();
  // With the mutex held, as `lock` has it; not while something is run or read.
  void RunNext(std::unique_lock<std::mutex>* lock);
  void ReadNext(std::unique_lock<std::mutex>* lock);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  // What is watched, by the address that the system has of it; and the descriptors for that, once there is anything.
  std::unordered_map<const Source*, std::shared_ptr<Source>> sources_;
  int poll_ = -1;
  int poked_ = -1;
  // The thread waits for sources, and is woken by `poked_`.
  bool polls_ = false;
  std::thread thread_;
};

}  // namespace pyruntime

struct TRITONBACKEND_BackendAttribute {
  struct Group {
    TRITONSERVER_InstanceGroupKind kind;
    uint64_t count;
    std::vector<uint64_t> devices;
  };
  std::vector<Group> preferred_groups;
  bool parallel_loading = false;
};

struct TRITONBACKEND_Backend {
  std::string name;
  std::string directory;  // where its artifacts are
  std::string library_path;
  pyruntime::Library library;
  TRITONSERVER_Message config;
  TRITONBACKEND_MemoryManager memory;
  std::atomic<TRITONBACKEND_ExecutionPolicy> policy{TRITONBACKEND_EXECUTION_BLOCKING};
  TRITONBACKEND_BackendAttribute attributes;
  void* state = nullptr;
  pyruntime::Phase phase = pyruntime::Phase::kNew;
  // Models that are initialised: the backend is not finalised before them.
  std::atomic<int> models{0};

  // These block, and are called without the GIL, by one thread after the other. What was finalised already, or never
  // initialised, is not finalised.
  std::optional<pyruntime::Failure> Open();
  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Finalize();
};

struct TRITONBACKEND_Model {
  std::shared_ptr<TRITONBACKEND_Backend> backend;
  std::string name;
  uint64_t version = 0;
  std::string repository;  // the model's folder
  bool auto_complete = false;
  void* state = nullptr;
  pyruntime::Phase phase = pyruntime::Phase::kNew;
  pyruntime::MemoryUsage memory_usage;
  // Instances that are initialised: the model is not finalised before them.
  std::atomic<int> instances{0};

  // Set with the GIL, and not any more once there are instances: their threads read it.
  bool decoupled = false;
  std::vector<std::string> outputs;
  // Whether a request may be released to be executed again.
  bool iterative = false;
  std::vector<pyruntime::StateSpec> states;

  // Any thread. The configuration as of now, and whether the backend has set it.
  std::string Config();
  std::optional<std::string> CompletedConfig();
  void SetConfig(std::string config);
  // The backend's: fails where the model is not being initialised.
  std::optional<pyruntime::Failure> CompleteConfig(const std::string& config);

  // The thread of the instances that run on a GPU of a device-blocking backend.
  std::shared_ptr<pyruntime::Worker> WorkerOf(int32_t device_id, const std::string& instance_name);

  // As of a backend.
  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Finalize();

 private:
  std::mutex mutex_;
  std::string config_;
  bool initializing_ = false;
  bool completed_ = false;
  std::unordered_map<int32_t, std::weak_ptr<pyruntime::Worker>> workers_;
};

struct TRITONBACKEND_ModelInstance : std::enable_shared_from_this<TRITONBACKEND_ModelInstance> {
  struct SecondaryDevice {
    std::string kind;
    int64_t id;
  };

  std::shared_ptr<TRITONBACKEND_Model> model;
  std::string name;
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_CPU;
  int32_t device_id = 0;
  bool passive = false;
  std::vector<std::string> profiles;
  std::vector<SecondaryDevice> secondary_devices;
  TRITONSERVER_Message host_policy;
  void* state = nullptr;
  pyruntime::MemoryUsage memory_usage;

  // With the GIL: what Python calls its instance, borrowed from the Python object that owns this one; null when that
  // is gone.
  PyObject* owner = nullptr;

  // As of a backend. All but the question whether it is ready runs on the instance's thread: that must be answered
  // also while the instance executes.
  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Finalize();
  std::optional<pyruntime::Failure> IsReady();

  // With the GIL. Has the backend execute a batch, which must not be empty, at the latest after `Wake`.
  void Execute(pyruntime::Batch batch);
  // With the GIL.
  void Wake();
  // With the GIL. Marks a request as cancelled, if the backend still has it.
  void Cancel(uint64_t serial);
  // With the GIL. Python is to answer a request. False if its client has been answered: the event that says so is in the
  // queue then.
  bool Claim(uint64_t serial);
  // With the GIL. The client has taken a response to a request; for one of which there is nothing left it is nothing.
  void Take(uint64_t serial);
  // With the GIL. Threads that send responses no longer wait for clients, because the instance ends.
  void StopWaiting();
  // With the GIL.
  bool IsInitialized() const { return phase_ == pyruntime::Phase::kInitialized; }

  // With the GIL. What was read already, and then what comes, is read on the instance's thread until it is over. Throws
  // std::system_error.
  void Read(std::shared_ptr<pyruntime::Source> source);
  void StopReading(const pyruntime::Source* source);
  // With the GIL. A request may be cancelled and claimed from now on.
  void Remember(const pyruntime::RequestStatePtr& state);

  // On the instance's thread.
  void Run(pyruntime::Batch& batch);
  // Of requests that Python has not numbered: from where it does not come to.
  uint64_t NextLentSerial() { return lent_serial_++; }
  // A request that Python heard nothing of is over, and so is the batch that it was.
  void Count(const pyruntime::CountedRequest& request);

  // Any thread. What a backend reports before Execute returns goes along with the news of that, the first of it.
  void Report(const pyruntime::BatchStatistics& statistics);

  // With the GIL, when Python lets go of an instance that was not finalised: its backend may use it for ever, so it
  // stays.
  void Abandon();

 private:
  // Where the answer is to the one request, if that is known: see known_request.h.
  pyruntime::EventPlace Call(pyruntime::Batch& batch);
  // Null if there is nothing left of it.
  pyruntime::RequestStatePtr Find(uint64_t serial) const;

  std::atomic<pyruntime::Phase> phase_{pyruntime::Phase::kNew};
  std::mutex ready_mutex_;  // so that IsReady is not called while the instance is finalised
  std::shared_ptr<pyruntime::Worker> worker_;
  std::shared_ptr<TRITONBACKEND_ModelInstance> self_;
  // While it executes, the instance's thread's own.
  std::optional<pyruntime::BatchStatistics> reported_;
  // On the instance's thread. Requests that another thread passed while the instance was finalised are too late.
  bool ended_ = false;
  // On the instance's thread.
  uint64_t lent_serial_ = uint64_t{1} << 62;
  // Where requests are counted of which Python has not heard yet, by their rows.
  std::unordered_map<uint32_t, pyruntime::EventPlace> counted_;
  // Those who may be cancelled, by serial: with the GIL. Who is gone is forgotten when there are twice as many as were
  // left the last time, and not each time one of few goes.
  static constexpr size_t kForgetAtMin = 64;
  std::unordered_map<uint64_t, std::weak_ptr<pyruntime::RequestState>> requests_;
  size_t forget_at_ = kForgetAtMin;
};
