// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// How far a backend may be ahead of the client of a request that has any number of responses.
//
// A backend can send responses faster than their client takes them, and each of them is memory. So a thread that sends
// one waits while too many are ahead: see utils/flow_control.py. Neither the event loop nor the GIL is needed to wait, or
// held meanwhile.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>

namespace pyruntime {

// Of one request. Any thread.
class ResponseWindow {
 public:
  // Who had to wait goes on when no more than one part of this many is ahead: to wake a thread costs more than a
  // response does.
  static constexpr size_t kResumeFraction = 2;

  // The most responses that may be ahead, and the most bytes of them; the last one may exceed this, with any size.
  ResponseWindow(size_t responses_max, size_t bytes_max) : responses_max_(responses_max), bytes_max_(bytes_max) {}

  // Waits until a response of this size may be sent.
  void Enter(size_t bytes);
  // Python has been given one, of so many bytes.
  void Deliver(size_t bytes);
  // The client has taken the first of those ahead; nothing if there is none.
  void Take();

  // The client is not waited for any longer, since it may never take anything: it has gone, or the server answers in
  // place of the backend. Only what Python has not been given counts from now on, which it always comes to.
  void LetGo();
  // Ends all waiting: there will be no more responses, or their senders have to end.
  void Close();

 private:
  struct Amount {
    size_t responses = 0;
    size_t bytes = 0;
  };

  // With the mutex. Whether there are so many ahead that who comes has to wait, and who waits has to go on waiting.
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
  // Of those that are not taken, in order.
  std::deque<size_t> sizes_;
  bool let_go_ = false;
  bool closed_ = false;
};

}  // namespace pyruntime
