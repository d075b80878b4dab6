// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "client_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace pyruntime {

ClientSocket::ClientSocket(int descriptor) : descriptor_(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "dup");
}

ClientSocket::~ClientSocket() { close(descriptor_); }

size_t ClientSocket::Send(iovec* parts, size_t count, size_t bytes) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(descriptor_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS ? 0 : bytes;
}

void ClientSocket::ShutDown() { shutdown(descriptor_, SHUT_RDWR); }

}  // namespace pyruntime
