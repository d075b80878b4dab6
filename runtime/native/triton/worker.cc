// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include <pthread.h>

#include <utility>

#include "backend.h"

namespace pyruntime {
namespace {

// What Linux keeps of a thread's name.
constexpr size_t kThreadNameMax = 15;

}  // namespace

Worker::Worker(const std::string& name) : thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, kThreadNameMax).c_str());
}

Worker::~Worker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Worker::Post(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
}

void Worker::Wake() { wake_.notify_one(); }

void Worker::Run(const std::function<void()>& work) {
  std::mutex mutex;
  std::condition_variable ended;
  bool is_done = false;
  Post([&] {
    work();
    // Told with the mutex held: as soon as it is free, all of these are gone.
    const std::lock_guard<std::mutex> lock(mutex);
    is_done = true;
    ended.notify_one();
  });
  Wake();
  std::unique_lock<std::mutex> lock(mutex);
  ended.wait(lock, [&] { return is_done; });
}

void Worker::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace pyruntime
