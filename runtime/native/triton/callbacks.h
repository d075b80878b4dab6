// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads for callbacks into backends: these may wait for anything, so Python's thread must not run them.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace pyruntime {

// Runs work on a few threads. A callback may wait for another one, which may be behind it in the queue: so a thread is
// added if work waits and none ends for a while. Never destroyed.
class CallbackPool {
 public:
  // Callbacks copy tensors and pass them on: more threads would only compete with those that compute.
  static constexpr size_t kThreadsKept = 4;
  // A callback that waits occupies a thread. There are threads for a wait for each instance of a server, and some more.
  static constexpr size_t kThreadsMax = 256;
  // If work waits and none ends for this long, a callback on one of the threads waits itself.
  static constexpr int kPatienceMs = 10;
  // The most callbacks that wait for clients at a time. A client may be native code, which takes responses in a
  // callback: there must be threads left for that.
  static constexpr size_t kThreadsForClients = kThreadsMax / 2;

  // Any thread. The work must not throw.
  void Post(std::function<void()> work);

  // Surrounds a wait for a client, on any thread. The wait must be skipped if it is not allowed.
  class ClientWait {
   public:
    ClientWait();
    ~ClientWait();
    ClientWait(const ClientWait&) = delete;
    ClientWait& operator=(const ClientWait&) = delete;

    bool is_allowed() const { return is_allowed_; }

   private:
    // The pool of this thread; null if it has none.
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
