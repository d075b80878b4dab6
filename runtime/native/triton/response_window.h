// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The window for responses ahead of the client, for a request with any number of responses.
//
// A backend can send responses faster than their client takes them, and each of them needs memory. So a thread that
// sends one waits while too many are ahead: see utils/flow_control.py. The wait needs neither the event loop nor the
// GIL, and the GIL is not held meanwhile.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>

namespace pyruntime {

// The window of one request. Any thread.
class ResponseWindow {
 public:
  // Waiting threads go on when at most the maximum divided by this is ahead: waking a thread costs more than a
  // response.
  static constexpr size_t kResumeFraction = 2;

  // The most responses and bytes that may be ahead. The last response may exceed the bytes, by any size.
  ResponseWindow(size_t responses_max, size_t bytes_max) : responses_max_(responses_max), bytes_max_(bytes_max) {}

  // Waits until a response of this size may be sent.
  void Enter(size_t bytes);
  // Python has been given a response of this size.
  void Deliver(size_t bytes);
  // The client has taken the first response of those ahead. No effect if there is none.
  void Take();

  // Stops waiting for the client, which may never take anything: it has gone, or the server answers in place of the
  // backend. From now on only responses that Python has not been given count: Python takes these in any case.
  void LetGo();
  // Ends all waits: there will be no more responses, or their senders have to end.
  void Close();

 private:
  struct Amount {
    size_t responses = 0;
    size_t bytes = 0;
  };

  // With the mutex. Whether new senders have to wait, and whether waiting ones have to go on waiting.
  bool IsFull() const;
  bool IsHigh() const;
  const Amount& Ahead() const { return let_go_ ? undelivered_ : untaken_; }
  void WaitForRoom(std::unique_lock<std::mutex>* lock);
  void WakeIfLow();

  const size_t responses_max_;
  const size_t bytes_max_;
  std::mutex mutex_;
  std::condition_variable room_;
  size_t waiting_ = 0;
  Amount untaken_;
  Amount undelivered_;
  // The sizes of the responses that the client has not taken, in order.
  std::deque<size_t> sizes_;
  bool let_go_ = false;
  bool closed_ = false;
};

}  // namespace pyruntime
