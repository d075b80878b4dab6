// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "callbacks.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace pyruntime {
namespace {

// Of this thread, if it is one of a pool.
thread_local CallbackPool* t_pool = nullptr;

}  // namespace

CallbackPool::ClientWait::ClientWait() : pool_(t_pool) {
  if (pool_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  is_allowed_ = pool_->waiting_for_clients_ < kThreadsForClients;
  if (is_allowed_) ++pool_->waiting_for_clients_;
}

CallbackPool::ClientWait::~ClientWait() {
  if (pool_ == nullptr || !is_allowed_) return;
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  --pool_->waiting_for_clients_;
}

void CallbackPool::Post(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
  if (queue_.size() <= idle_) {
    work_.notify_one();
  } else if (threads_ < kThreadsKept) {
    AddThread();
  } else if (!watched_) {
    watched_ = Start(&CallbackPool::Watch);
  } else if (queue_.size() == idle_ + 1) {
    backlog_.notify_one();
  }
}

bool CallbackPool::Start(void (CallbackPool::*loop)()) {
  try {
    std::thread(loop, this).detach();
    return true;
  } catch (const std::system_error&) {
    return false;  // No more threads: the existing ones do the work; the next piece tries again.
  }
}

void CallbackPool::AddThread() {
  if (Start(&CallbackPool::Run)) ++threads_;
}

void CallbackPool::Run() {
  t_pool = this;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (queue_.empty()) {
      if (threads_ > kThreadsKept) break;
      ++idle_;
      work_.wait(lock, [this] { return !queue_.empty(); });
      --idle_;
    }
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    ++taken_;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
  --threads_;
}

// Adds a thread whenever work waits and no thread took any for a while.
void CallbackPool::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    backlog_.wait(lock, [this] { return !queue_.empty() && threads_ < kThreadsMax; });
    const uint64_t taken = taken_;
    backlog_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [&] { return taken_ != taken; });
    if (taken_ == taken && !queue_.empty()) AddThread();
  }
}

}  // namespace pyruntime
