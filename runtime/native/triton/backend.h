// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Backends, their models, and the instances of the models.
//
// Every call into a backend goes through `Guarded`, which converts exceptions to errors. Calls that may take long
// (initialising, finalising) are made on Python threads that have released the GIL; the calls for an instance are made
// on its thread.

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
#include <set>
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

// dlopen (RTLD_NOW | RTLD_LOCAL) and dlsym, without the GIL. Returns the reason if the library cannot be opened or has
// no Execute.
std::optional<Failure> OpenLibrary(const std::string& path, Library* library);

// Calls into a backend. An exception of the backend becomes an INTERNAL failure that names the called function, `what`.
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

// Fails if configurations cannot be given as JSON in this version.
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

// A state of sequences, as configured; -1 in its shape stands for any size. `shared_input` is the input with whose
// memory a state of the same size begins, "" for none.
struct StateSpec {
  std::string name;
  TRITONSERVER_DataType datatype;
  Shape shape;
  std::string shared_input;
};

struct Batch {
  uint64_t serial;  // of its first request
  std::vector<std::unique_ptr<TRITONBACKEND_Request>> requests;
};

// An input that a worker reads from when it has no other work.
class Source {
 public:
  virtual ~Source() = default;
  // Readable when there is something to read.
  virtual int descriptor() const = 0;
  // On the worker's thread: does the pending work once, and returns whether there may be more. It must not throw.
  virtual bool Read() = 0;
};

// A thread that calls the backend for one instance or, if the backend is device-blocking, for all instances of a model
// on one GPU.
class Worker {
 public:
  // `name` is the name of the first instance; the system keeps its first 15 characters.
  explicit Worker(const std::string& name);
  // Waits until all posted work is done. Not on the thread itself.
  ~Worker();
  // Runs `work`, which must not throw, on the thread, after the work that was posted before, at the latest after
  // `Wake`. Waking costs more than posting, so callers that post several pieces wake the thread once.
  void Post(std::function<void()> work);
  void Wake();
  // Posts `work` and waits until it is done. Without the GIL.
  void Run(const std::function<void()>& work);

  // Reads from a source, alternating with posted work, until the source has no more or is forgotten. Throws
  // std::system_error if the system has no descriptor for it.
  void Watch(std::shared_ptr<Source> source);
  void Forget(const Source* source);

 private:
  void Loop();
  // With the mutex held by `lock`; they release it while they run work or read.
  void RunNext(std::unique_lock<std::mutex>* lock);
  void ReadNext(std::unique_lock<std::mutex>* lock);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  // The watched sources, by the address that epoll returns; the descriptors exist once there is a source.
  std::unordered_map<const Source*, std::shared_ptr<Source>> sources_;
  int poll_ = -1;
  int poked_ = -1;
  // The thread waits for sources, and `poked_` wakes it.
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
  std::string directory;  // the folder of its artifacts
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

  // These block, and are called without the GIL, by one thread at a time. Finalize does nothing unless the object is
  // initialised.
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

  // Set with the GIL, before there are instances: their threads read it without a lock.
  bool decoupled = false;
  std::vector<std::string> outputs;
  // Whether the backend may release a request to have it executed again.
  bool iterative = false;
  std::vector<pyruntime::StateSpec> states;

  // Merges what a backend sets into the configuration, and replaces it by the result; or returns why that is not
  // possible.
  using Complete = std::function<std::optional<pyruntime::Failure>(std::string* config)>;

  // Any thread. The current configuration.
  std::string Config();
  void SetConfig(std::string config);
  // Called by the backend: fails unless the model is being initialised.
  std::optional<pyruntime::Failure> CompleteConfig(std::string config);

  // Any thread. Whether the log is to say that an output is refused, which it does once for each name.
  bool IsNewlyRefused(const std::string& output);

  // The thread of the instances on a GPU of a device-blocking backend.
  std::shared_ptr<pyruntime::Worker> WorkerOf(int32_t device_id, const std::string& instance_name);

  // See TRITONBACKEND_Backend. `complete` is called while the backend initialises the model; it may be null.
  std::optional<pyruntime::Failure> Initialize(Complete complete);
  std::optional<pyruntime::Failure> Finalize();

 private:
  std::mutex mutex_;
  std::string config_;
  // Locked before `mutex_`, and while `complete_` runs, which takes the GIL: never lock it with the GIL.
  std::mutex completing_;
  Complete complete_;
  std::set<std::string> refused_outputs_;
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

  // With the GIL. Python's object for the instance, borrowed from the Python object that owns this one; null once that
  // is gone.
  PyObject* owner = nullptr;

  // See TRITONBACKEND_Backend. All but IsReady run on the instance's thread: readiness must be answered also while the
  // instance executes.
  std::optional<pyruntime::Failure> Initialize();
  std::optional<pyruntime::Failure> Finalize();
  std::optional<pyruntime::Failure> IsReady();

  // With the GIL. The backend executes a batch, which must not be empty, at the latest after `Wake`.
  void Execute(pyruntime::Batch batch);
  // With the GIL.
  void Wake();
  // With the GIL. Marks a request as cancelled, if the backend still has it.
  void Cancel(uint64_t serial);
  // With the GIL. Reserves the answer to a request for Python. False if the client has been answered: the event for
  // that is in the queue then.
  bool Claim(uint64_t serial);
  // With the GIL. The client has taken a response to a request. No effect if the request is gone.
  void Take(uint64_t serial);
  // With the GIL. Threads that send responses no longer wait for clients, because the instance ends.
  void StopWaiting();
  // With the GIL.
  bool IsInitialized() const { return phase_ == pyruntime::Phase::kInitialized; }

  // With the GIL. Reads from a source on the instance's thread, beginning with the data that was read already, until
  // the source ends. Throws std::system_error.
  void Read(std::shared_ptr<pyruntime::Source> source);
  void StopReading(const pyruntime::Source* source);
  // With the GIL. Makes a request known to Cancel and Claim.
  void Remember(const pyruntime::RequestStatePtr& state);

  // On the instance's thread.
  void Run(pyruntime::Batch& batch);
  // A serial for a request that Python has not numbered, from a range that Python does not reach.
  uint64_t NextLentSerial() { return lent_serial_++; }
  // Counts a request that ended without events for Python, and the batch that consisted of it.
  void Count(const pyruntime::CountedRequest& request);

  // Any thread. The first report during Execute becomes part of the event for the end of Execute.
  void Report(const pyruntime::BatchStatistics& statistics);

  // With the GIL, when Python drops an instance that was not finalised. The instance stays, because its backend may use
  // it for ever.
  void Abandon();

 private:
  // Returns the place of the answer's event if the batch is one plain request: see plain_requests.h. `failed`: Execute
  // returned an error.
  pyruntime::EventPlace Call(pyruntime::Batch& batch, bool* failed);
  // Null if the request is gone.
  pyruntime::RequestStatePtr Find(uint64_t serial) const;

  std::atomic<pyruntime::Phase> phase_{pyruntime::Phase::kNew};
  std::mutex ready_mutex_;  // so that IsReady is not called while the instance is finalised
  std::shared_ptr<pyruntime::Worker> worker_;
  std::shared_ptr<TRITONBACKEND_ModelInstance> self_;
  // The report during Execute; used by the instance's thread only.
  std::optional<pyruntime::BatchStatistics> reported_;
  // On the instance's thread. Batches that were posted while the instance was finalised are not executed.
  bool ended_ = false;
  // On the instance's thread.
  uint64_t lent_serial_ = uint64_t{1} << 62;
  // The events in the queue that count requests, by the rows of each request.
  std::unordered_map<uint32_t, pyruntime::EventPlace> counted_;
  // With the GIL. Requests that may be cancelled, by serial. Expired entries are removed when the map has doubled since
  // the last removal, instead of one by one.
  static constexpr size_t kForgetAtMin = 64;
  std::unordered_map<uint64_t, std::weak_ptr<pyruntime::RequestState>> requests_;
  size_t forget_at_ = kForgetAtMin;
};
