// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "cuda_driver.h"

#include <dlfcn.h>

#include <limits>
#include <memory>

namespace pyruntime {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
// CUDA_SUCCESS and CUDA_ERROR_INVALID_DEVICE.
constexpr int kSuccess = 0;
constexpr int kInvalidDevice = 101;
// CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts.
constexpr unsigned kPortable = 1;

// Returns whether the library has the function.
template <typename Function>
bool Bind(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

class CudaDriver::Current {
 public:
  Current(const CudaDriver& driver, Context context) : driver_(driver), status_(driver.push_(context)) {}
  ~Current() {
    Context context = nullptr;
    if (status_ == kSuccess) driver_.pop_(&context);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  Status status() const { return status_; }

 private:
  const CudaDriver& driver_;
  const Status status_;
};

CudaDriver* CudaDriver::Find(std::string* reason) {
  static std::mutex mutex;
  static CudaDriver* found = nullptr;  // never destroyed: threads of backends may outlive everything else
  const std::lock_guard<std::mutex> lock(mutex);
  if (found != nullptr) return found;
  std::unique_ptr<CudaDriver> driver(new CudaDriver);
  if (const Reason failure = driver->Load()) {
    *reason = *failure;
    return nullptr;
  }
  return found = driver.release();
}

CudaDriver::Reason CudaDriver::Load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* message = dlerror();
    return message != nullptr ? message : kLibrary;
  }
  // The names with _v2 have had these parameters since CUDA 4; those without are of older versions.
  if (!Bind(library, "cuInit", &init_) || !Bind(library, "cuGetErrorString", &explain_) ||
      !Bind(library, "cuDeviceGet", &device_) || !Bind(library, "cuDevicePrimaryCtxRetain", &retain_) ||
      !Bind(library, "cuCtxGetCurrent", &current_) || !Bind(library, "cuCtxPushCurrent_v2", &push_) ||
      !Bind(library, "cuCtxPopCurrent_v2", &pop_) || !Bind(library, "cuMemAlloc_v2", &allocate_) ||
      !Bind(library, "cuMemHostAlloc", &allocate_pinned_) || !Bind(library, "cuMemcpyDtoH_v2", &read_) ||
      !Bind(library, "cuMemcpyHtoD_v2", &write_) || !Bind(library, "cuStreamSynchronize", &settle_)) {
    return std::string(kLibrary) + " is not NVIDIA's driver: it lacks some of its functions";
  }
  return Explain(init_(0));
}

CudaDriver::Reason CudaDriver::Explain(Status status) const {
  if (status == kSuccess) return std::nullopt;
  const char* text = nullptr;
  if (explain_(status, &text) == kSuccess && text != nullptr) return text;
  return "CUDA error " + std::to_string(status);
}

CudaDriver::Reason CudaDriver::ContextOf(int64_t device, Context* context) {
  if (device < 0 || device > std::numeric_limits<int>::max()) return Explain(kInvalidDevice);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = contexts_.find(device);
  if (known != contexts_.end()) {
    *context = known->second;
    return std::nullopt;
  }
  int handle = 0;
  Status status = device_(&handle, static_cast<int>(device));
  if (status == kSuccess) status = retain_(context, handle);
  if (status == kSuccess) contexts_[device] = *context;
  return Explain(status);
}

template <typename Call>
CudaDriver::Reason CudaDriver::OnDevice(int64_t device, Call&& call) {
  Context context = nullptr;
  if (Reason failure = ContextOf(device, &context)) return failure;
  const Current current(*this, context);
  return Explain(current.status() == kSuccess ? call() : current.status());
}

CudaDriver::Reason CudaDriver::Allocate(int64_t device, size_t size, void** memory) {
  return OnDevice(device, [&] {
    uint64_t address = 0;
    const Status status = allocate_(&address, size);
    if (status == kSuccess) *memory = reinterpret_cast<void*>(address);
    return status;
  });
}

CudaDriver::Reason CudaDriver::AllocatePinned(size_t size, void** memory) {
  Context context = nullptr;
  if (current_(&context) == kSuccess && context != nullptr) return Explain(allocate_pinned_(memory, size, kPortable));
  return OnDevice(0, [&] { return allocate_pinned_(memory, size, kPortable); });
}

CudaDriver::Reason CudaDriver::Read(int64_t device, void* target, const void* memory, size_t size) {
  return OnDevice(device, [&] { return read_(target, reinterpret_cast<uintptr_t>(memory), size); });
}

// From main memory that is not pinned, the function returns before the last bytes are there.
CudaDriver::Reason CudaDriver::Write(int64_t device, void* memory, const void* source, size_t size) {
  return OnDevice(device, [&] {
    const Status status = write_(reinterpret_cast<uintptr_t>(memory), source, size);
    return status == kSuccess ? settle_(nullptr) : status;
  });
}

}  // namespace pyruntime
