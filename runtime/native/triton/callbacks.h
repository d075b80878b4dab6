// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads that call back into backends: their functions may wait for anything, so Python's thread must not run them.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace pyruntime {

// Runs work on a few threads. A callback may wait for another one, which may be behind it in the queue: so where no
// work ends for a while although some waits, a thread is added. Never destroyed.
class CallbackPool {
 public:
  // Callbacks copy tensors and hand them over: more threads would only compete with those that compute.
  static constexpr size_t kThreadsKept = 4;
  // A callback that waits takes a thread. As many can wait as a server has instances to wait for, and some more.
  static constexpr size_t kThreadsMax = 256;
  // Work that waits while none ends for this long waits for a callback that is itself waiting.
  static constexpr int kPatienceMs = 10;
  // Callbacks that may wait for clients at a time. A client may be native code, which takes responses in a callback:
  // there must be threads left for that.
  static constexpr size_t kThreadsForClients = kThreadsMax / 2;

  // Any thread. The work must not throw.
  void Post(std::function<void()> work);

  // Around whatever waits for a client, on any thread: it must not if it is not allowed to.
  class ClientWait {
   public:
    ClientWait();
    ~ClientWait();
    ClientWait(const ClientWait&) = delete;
    ClientWait& operator=(const ClientWait&) = delete;

    bool is_allowed() const { return is_allowed_; }

   private:
    // Of this thread, if it is one of a pool.
    CallbackPool* const pool_;
    bool is_allowed_ = true;
  };

 private:
  // With the mutex.
  void AddThread();
  bool Start(void (CallbackPool::*loop)());

  void Run();
  void Watch();

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable backlog_;
  std::deque<std::function<void()>> queue_;
  size_t threads_ = 0;
  size_t idle_ = 0;
  size_t waiting_for_clients_ = 0;
  uint64_t taken_ = 0;
  bool watched_ = false;
};

}  // namespace pyruntime
