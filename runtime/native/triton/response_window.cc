// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "response_window.h"

#include "callbacks.h"
#include "server.h"

namespace pyruntime {

void ResponseWindow::Enter(size_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (IsFull()) WaitForRoom(&lock);
  sizes_.push_back(bytes);
  for (Amount* amount : {&untaken_, &undelivered_}) {
    ++amount->responses;
    amount->bytes += bytes;
  }
}

void ResponseWindow::Deliver(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --undelivered_.responses;
  undelivered_.bytes -= bytes;
  WakeIfLow();
}

void ResponseWindow::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (sizes_.empty()) return;
  --untaken_.responses;
  untaken_.bytes -= sizes_.front();
  sizes_.pop_front();
  WakeIfLow();
}

void ResponseWindow::LetGo() {
  const std::lock_guard<std::mutex> lock(mutex_);
  let_go_ = true;
  WakeIfLow();
}

void ResponseWindow::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  WakeIfLow();
}

bool ResponseWindow::IsFull() const {
  return !closed_ && (Ahead().responses >= responses_max_ || Ahead().bytes >= bytes_max_);
}

bool ResponseWindow::IsHigh() const {
  return !closed_ &&
         (Ahead().responses > responses_max_ / kResumeFraction || Ahead().bytes > bytes_max_ / kResumeFraction);
}

void ResponseWindow::WaitForRoom(std::unique_lock<std::mutex>* lock) {
  // Python's own thread would wait for itself.
  if (TRITONSERVER_Server::Get().IsPythonThread()) return;
  const CallbackPool::ClientWait wait;
  if (!wait.is_allowed()) return;
  ++waiting_;
  room_.wait(*lock, [this] { return !IsHigh(); });
  --waiting_;
}

void ResponseWindow::WakeIfLow() {
  if (waiting_ != 0 && !IsHigh()) room_.notify_all();
}

}  // namespace pyruntime
