// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "backend.h"

namespace pyruntime {
namespace {

// The length of a thread's name in Linux.
constexpr size_t kThreadNameMax = 15;
// The number of events to read at a time. There may be any number of sources.
constexpr int kReadyMax = 16;

// Watches a descriptor; throws std::system_error if that fails.
void Add(int poll, int descriptor, const void* source) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = const_cast<void*>(source);
  if (epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll");
  }
}

}  // namespace

Worker::Worker(const std::string& name) : thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, kThreadNameMax).c_str());
}

Worker::~Worker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  if (poll_ >= 0) close(poll_);
  if (poked_ >= 0) close(poked_);
}

void Worker::Post(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
}

void Worker::Wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (polls_) {
      eventfd_write(poked_, 1);
      return;
    }
  }
  wake_.notify_one();
}

void Worker::Watch(std::shared_ptr<Source> source) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (poll_ < 0) poll_ = epoll_create1(EPOLL_CLOEXEC);
    if (poked_ < 0) {
      const int poked = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      try {
        Add(poll_, poked, nullptr);
      } catch (const std::system_error&) {
        if (poked >= 0) close(poked);
        throw;
      }
      poked_ = poked;
    }
    Add(poll_, source->descriptor(), source.get());
    sources_.emplace(source.get(), std::move(source));
  }
  Wake();
}

void Worker::Forget(const Source* source) {
  std::shared_ptr<Source> forgotten;  // destroyed when the mutex is free
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = sources_.find(source);
  if (found == sources_.end()) return;
  forgotten = std::move(found->second);
  sources_.erase(found);
  epoll_ctl(poll_, EPOLL_CTL_DEL, source->descriptor(), nullptr);
}

void Worker::Run(const std::function<void()>& work) {
  std::mutex mutex;
  std::condition_variable ended;
  bool is_done = false;
  Post([&] {
    work();
    // Notified while the mutex is held, because all of these may be destroyed once it is free.
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
    if (!queue_.empty()) {
      RunNext(&lock);
    } else if (stopping_) {
      return;
    } else if (sources_.empty()) {
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty() || !sources_.empty(); });
    }
    if (!sources_.empty()) ReadNext(&lock);
  }
}

void Worker::RunNext(std::unique_lock<std::mutex>* lock) {
  std::function<void()> work = std::move(queue_.front());
  queue_.pop_front();
  lock->unlock();
  work();
  work = nullptr;
  lock->lock();
}

// Runs each ready source once, and posted work in between, so that each waits for one step of the other at most.
void Worker::ReadNext(std::unique_lock<std::mutex>* lock) {
  polls_ = queue_.empty() && !stopping_;
  const int timeout = polls_ ? -1 : 0;
  lock->unlock();
  epoll_event ready[kReadyMax];
  const int count = epoll_wait(poll_, ready, kReadyMax, timeout);
  lock->lock();
  polls_ = false;
  for (int index = 0; index < count; ++index) {
    if (ready[index].data.ptr == nullptr) {
      eventfd_t times;
      eventfd_read(poked_, &times);
      continue;
    }
    if (index > 0 && !queue_.empty()) RunNext(lock);
    const auto* address = static_cast<const Source*>(ready[index].data.ptr);
    const auto found = sources_.find(address);
    if (found == sources_.end()) continue;  // forgotten meanwhile
    std::shared_ptr<Source> source = found->second;
    lock->unlock();
    if (!source->Read()) Forget(address);
    source = nullptr;
    lock->lock();
  }
}

}  // namespace pyruntime
