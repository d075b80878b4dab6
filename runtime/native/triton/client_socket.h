// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The way of a response past Python: from the thread that sends it right into the client's connection.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <mutex>

namespace pyruntime {

// A descriptor of its own of a connection that Python reads from. Whoever has it may write while Python does not: that
// is for Python to see to. Any thread.
class ClientSocket {
 public:
  // Throws std::system_error if there is no descriptor to be had.
  explicit ClientSocket(int descriptor);
  ~ClientSocket();
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  // How many bytes of these the system took, without waiting. All of them where the connection is at its end: nobody is
  // to try again.
  size_t Send(iovec* parts, size_t count, size_t bytes);

  int descriptor() const { return descriptor_; }

  // Held while something is sent, and taken by whoever has to know how much of it was.
  std::mutex& mutex() { return mutex_; }

  // Python has closed the connection: nothing is sent any more, and the client hears of it.
  void ShutDown();

 private:
  const int descriptor_;
  std::mutex mutex_;
};

}  // namespace pyruntime
