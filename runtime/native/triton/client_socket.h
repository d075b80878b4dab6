// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Sends a response without Python: from the thread of the backend into the client's connection.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <mutex>

namespace pyruntime {

// A duplicated descriptor of a connection that Python reads from. Its owner may write while Python does not, which
// Python must ensure. Any thread.
class ClientSocket {
 public:
  // Throws std::system_error if there is no free descriptor.
  explicit ClientSocket(int descriptor);
  ~ClientSocket();
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  // Writes without waiting, and returns the number of bytes written. Returns all of them if the connection has failed,
  // so that the caller does not try again.
  size_t Send(iovec* parts, size_t count, size_t bytes);

  int descriptor() const { return descriptor_; }

  // Held while data is sent, and by code that needs the number of bytes sent.
  std::mutex& mutex() { return mutex_; }

  // For a connection that Python has closed: sends nothing any more, and ends the connection for the client.
  void ShutDown();

 private:
  const int descriptor_;
  std::mutex mutex_;
};

}  // namespace pyruntime
