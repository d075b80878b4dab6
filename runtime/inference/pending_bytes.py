# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The budget for bytes of clients that do not lie in request memory yet. (pure)

It counts the bytes of bodies and messages that collect in the heap: as they are received, as they are decompressed, and
the contents of tensors that are made of them. It counts neither a body that is handled in the read that brought it, nor
one that the socket reads into request memory.

Each connection has a share of the budget, and each of its bodies a claim. A claim takes bytes before the memory is
allocated, and gives all of them back at its end. If its connection holds too many, it is refused; if all connections
together do, it may wait. Claims get their bytes in the order in which they began to wait. If claims that wait hold all
bytes, some for room and some for their turn (see turns.py), while none of those that have their turn works, then none
of them could ever go on: the last of them that waits for room, and holds bytes or a turn, is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pyruntime.runtime.inference.turns import Turns
from pyruntime.utils.errors import Code, InferenceError

# The default of --max-pending-bytes is this share of the memory that the server may use: models need the rest.
MEMORY_SHARE = 0.125
# It is at least this, in bytes: the share of a connection then has room for a body of the default --http-max-input-size
# and the tensors that are made of it,
DEFAULT_BYTES_MIN = 256 << 20
# and at most this, which is also the most that is reserved for bodies that are still to arrive.
DEFAULT_BYTES_MAX = 1 << 30
# The share of the budget that one connection may hold, so that no client alone can hold all of it.
CONNECTION_SHARE = 0.5

# A claim that has waited for this long is refused, in seconds: clients rarely wait longer.
WAIT_S_MAX = 30.0

# Called with None when the bytes are taken, or with the reason why they never will be. It must not raise.
Then = Callable[["PendingBytesError | None"], None]


class PendingBytesError(InferenceError):
    """There is no room for the bytes of a request. HTTP answers with 503, gRPC with RESOURCE_EXHAUSTED."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Code.UNAVAILABLE)


def default_limit(memory: int) -> int:
    """The default of --max-pending-bytes for a server that may use `memory` bytes."""
    return min(max(int(memory * MEMORY_SHARE), DEFAULT_BYTES_MIN), DEFAULT_BYTES_MAX)


class PendingBytes:
    """See the module. `limit` is in bytes; `used` is the sum of the bytes that all claims hold.

    `turns` are those of the requests with claims.

    Its methods, and those of shares and claims, belong to the event loop's thread. None of them blocks.
    """

    def __init__(self, limit: int, turns: Turns) -> None:
        self.limit = limit
        self._turns = turns
        self.connection_limit = int(limit * CONNECTION_SHARE)
        self.used = 0
        # The claims that wait, in order, and the bytes that they hold.
        self._waiting: OrderedDict[Claim, None] = OrderedDict()
        self._held_waiting = 0
        self._granting = False

    def __repr__(self) -> str:
        return f"<PendingBytes {self.used} of {self.limit}, {len(self._waiting)} claims wait>"

    def share(self) -> Share:
        """The share of a new connection."""
        return Share(self)

    def check(self, now: float) -> None:
        """Refuse claims that wait for too long. Called every few seconds; `now` is in seconds, of any clock.

        A claim may wait for up to one such interval more.
        """
        for claim in list(self._waiting):
            if claim.waits and claim.is_overdue(now):
                claim.refuse()
        self._grant()

    def _grant(self) -> None:
        """Serve the claims that wait, as far as there is room. A call during another one is left to that one."""
        if self._granting:
            return
        self._granting = True
        try:
            while self._waiting:
                first = next(iter(self._waiting))
                if not first.fits_share:  # its connection has taken more meanwhile
                    first.refuse()
                elif first.fits:
                    first._take_wanted()
                elif self._is_stuck():
                    self._last_with_bytes().refuse()
                else:
                    return
        finally:
            self._granting = False

    def _is_stuck(self) -> bool:
        """Whether none of those that hold bytes could ever go on."""
        turns = self._turns
        return not turns.has_work and self._held_waiting + turns.waiting_bytes == self.used

    def _last_with_bytes(self) -> Claim:
        """The last claim that waits for room and whose end helps others."""
        return next(claim for claim in reversed(self._waiting) if claim.held or self._turns.is_begun(claim))


class Share:
    """The bytes that the claims of one connection hold: `used` is their number."""

    __slots__ = ("_pending", "used")

    def __init__(self, pending: PendingBytes) -> None:
        self._pending = pending
        self.used = 0

    def claim(self) -> Claim:
        """The claim of a new body or message."""
        return Claim(self._pending, self)


class Claim:
    """The claim of one body or message: `held` is the number of its bytes. Its owner must call `end`."""

    __slots__ = ("_pending", "_share", "_since", "_then", "_wanted", "held")

    def __init__(self, pending: PendingBytes, share: Share) -> None:
        self._pending = pending
        self._share = share
        self.held = 0
        # The bytes that it takes or waits for, and the callback of the wait.
        self._wanted = 0
        self._then: Then | None = None
        # When a check first saw it wait, in seconds.
        self._since: float | None = None

    def __repr__(self) -> str:
        return f"<Claim of {self.held} bytes{f', waits for {self._wanted}' if self.waits else ''}>"

    @property
    def waits(self) -> bool:
        """Whether it waits for room."""
        return self._then is not None

    @property
    def fits(self) -> bool:
        """Whether there is room for the bytes that it takes or waits for."""
        return self._pending.used + self._wanted <= self._pending.limit and self.fits_share

    @property
    def fits_share(self) -> bool:
        """The same, for the share of its connection."""
        return self._share.used + self._wanted <= self._pending.connection_limit

    def take(self, nbytes: int) -> None:
        """Take `nbytes` more. Raises PendingBytesError, and takes nothing, if there is no room."""
        self._wanted = nbytes
        if not self.fits:
            raise self._no_room()
        self._add(nbytes)

    def count(self, nbytes: int) -> None:
        """Take `nbytes` more that are in memory already, whether there is room or not."""
        self._add(nbytes)

    def take_or_wait(self, nbytes: int, then: Then) -> bool:
        """Take `nbytes` more, and return True; or return False, wait for room, and call `then` once, maybe at once.

        The claim must not wait yet. One that holds nothing does not overtake those that wait. Raises PendingBytesError,
        and takes nothing, if the connection holds too many bytes.
        """
        assert self._then is None
        self._wanted = nbytes
        if not self.fits_share:
            raise self._no_room()
        pending = self._pending
        if self.fits and (self.held or not pending._waiting):
            self._add(nbytes)
            return True
        self._then = then
        self._since = None
        pending._waiting[self] = None
        pending._held_waiting += self.held
        pending._grant()
        return False

    def give_back(self, nbytes: int) -> None:
        """Give back some of the bytes: their memory is free. The claim must not wait."""
        assert self._then is None
        assert nbytes <= self.held
        self._add(-nbytes)
        self._pending._grant()

    def end(self) -> None:
        """Give back all bytes, and wait no longer. Has no effect on a claim that has ended."""
        if self._then is not None:
            self._leave()
        if self.held:
            self._add(-self.held)
        self._pending._grant()

    def turns_changed(self) -> None:
        """See turns.Bytes. Those that wait for room may wait for each other now."""
        self._pending._grant()

    def is_overdue(self, now: float) -> bool:
        """Whether a claim that waits has done so for too long, as far as checks have seen."""
        if self._since is None:
            self._since = now
        return now - self._since >= WAIT_S_MAX

    def refuse(self) -> None:
        """End the wait, because it takes too long: the callback gets the error. Has no effect without a wait."""
        if self._then is not None:
            failure = self._no_room()
            self._leave()(failure)

    def _take_wanted(self) -> None:
        then = self._leave()
        self._add(self._wanted)
        then(None)

    def _leave(self) -> Then:
        then, self._then = self._then, None
        assert then is not None  # the callers look
        del self._pending._waiting[self]
        self._pending._held_waiting -= self.held
        return then

    def _add(self, nbytes: int) -> None:
        self.held += nbytes
        self._share.used += nbytes
        self._pending.used += nbytes

    def _no_room(self) -> PendingBytesError:
        if not self.fits_share:
            return PendingBytesError(
                f"the connection's requests need more than {self._pending.connection_limit} bytes before they are in "
                "request memory: see --max-pending-bytes"
            )
        return PendingBytesError(
            "the requests of all clients need too many bytes before they are in request memory: try again later, or "
            "see --max-pending-bytes"
        )
