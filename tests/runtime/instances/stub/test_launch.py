# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Stubs that the launcher starts, with the server's own Python and with others, and what they leave behind."""

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from pyruntime.runtime.environments.environment import Environment, Place, Preloaded
from pyruntime.runtime.instances.stub import launch
from pyruntime.runtime.instances.stub.launch import Handover, StubProcess, close_launcher, launch_stub, start_launcher
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.regions import create_region
from pyruntime.utils.channel import HostChannel
from pyruntime.utils.launching import DESCRIPTORS, EXITED, encode_reply
from pyruntime.utils.messages import Hello, Stop
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.processes

# How many launches fail for each reason.
LAUNCHES = 100
# The soft limit of descriptors in stubs.
FILES_MAX = 333
OURS = Environment(sys.executable, "ours", Place(sys.executable).variables(os.environ))
KILLED = ProcessExit(-signal.SIGKILL)
# A program that starts a process in a session of its own, which prints its number, and whose parent has ended.
DAEMON = """#!%s
import os, signal, sys, time
read_fd, write_fd = os.pipe()
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    %s
    print(os.getpid(), flush=True)
    os.write(write_fd, b"!")
    time.sleep(1000)
os.wait()
os.read(read_fd, 1)
%s
"""


@asynccontextmanager
async def launched(environment=None):
    """A stub, our end of its socket, and the reading end of its output."""
    with ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        _, their_grants = map(stack.enter_context, socket.socketpair())
        requests, responses = create_region("a test"), create_region("a test")
        stack.callback(requests.close)
        stack.callback(responses.close)
        read_fd, write_fd = os.pipe()
        output = stack.enter_context(os.fdopen(read_fd, "rb"))
        with os.fdopen(write_fd, "wb"), theirs, their_grants:
            files = (write_fd, requests.fileno(), responses.fileno())
            stub = await launch_stub(Handover("m_0", theirs, their_grants, *files, 1 << 20), environment)
        ours.setblocking(False)
        yield stub, ours, output


def title_of(pid):
    """The title of the process, as lists of processes show it; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    except OSError:
        return None


async def says_hello(ours):
    """Wait for the stub's first message; the channel that it came on."""
    channel = HostChannel()
    data = await asyncio.get_running_loop().sock_recv(ours, 1 << 16)
    (hello,) = channel.receive_data(data)
    assert isinstance(hello, Hello)
    return channel, hello


@pytest.fixture
def run(request, monkeypatch):
    """Runs a coroutine in an event loop, of the kind that the server has or of another; a launcher is there."""
    # A launcher that is closed at once imports numpy first, which takes long on a busy machine.
    monkeypatch.setattr(launch, "CLOSE_S_MAX", PATIENCE_S)
    loop_factory = getattr(request, "param", uvloop.new_event_loop)

    async def with_launcher(coroutine):
        start_launcher(FILES_MAX)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await coroutine
        finally:
            await close_launcher()

    def run_in_loop(coroutine):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(with_launcher(coroutine))

    return run_in_loop


@pytest.fixture(params=[None, OURS], ids=["forked", "executed"])
def environment(request):
    """None for a stub that is forked, OURS for one that is executed."""
    return request.param


def daemon_of(folder, end, more="pass"):
    """An environment whose interpreter leaves a daemon behind and then does `end`; the daemon does `more` first."""
    program = folder / "python"
    program.write_text(DAEMON % (sys.executable, more, end))
    program.chmod(0o755)
    return Environment(str(program), "", OURS.variables)


async def gone(pid):
    """Wait until a process is gone, or is a zombie of another parent."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        await ended.wait()
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def line_of(output):
    return await asyncio.to_thread(output.readline)


def limit_for(pid, free):
    """The limit under which a process has so many free descriptors: a descriptor must be below it."""
    used = {int(each) for each in os.listdir(f"/proc/{pid}/fd")}
    limit = 0
    while free or limit in used:
        free -= limit not in used
        limit += 1
    return limit


def wait_reaped(pid):
    """Wait until a process is not even a zombie."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


def held(pid):
    """The open descriptors of a process, by name."""
    return {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("run", [asyncio.new_event_loop, uvloop.new_event_loop], indirect=True)
def test_life(run, environment):
    """It says hello, is in a process group of its own, and ends as it is asked to."""

    async def live():
        async with launched(environment) as (stub, ours, output):
            channel, hello = await says_hello(ours)
            assert hello.pid == stub.pid == os.getpgid(stub.pid)
            assert title_of(stub.pid) == "triton_python_backend_stub m_0"
            assert title_of(parent_of(stub.pid)) == "pyruntime guardian of m_0"
            assert os.readlink(f"/proc/{stub.pid}/fd/0") == "/dev/null"
            assert resource.prlimit(stub.pid, resource.RLIMIT_NOFILE)[0] == FILES_MAX
            ours.sendall(channel.send(Stop()))
            assert await stub.exited == ProcessExit(0)
            stub.kill("a test")  # too late, and no harm
            assert output.read() == b""

    run(live())


def test_holds_its_own_descriptors_only(run):
    """A stub has no descriptors of the launcher or of its guardian, and they have none of the stub."""

    async def look():
        async with launched() as (stub, ours, _):
            await says_hello(ours)
            stubs, guardians, launchers = map(held, (stub.pid, parent_of(stub.pid), launch._launchers[""]._process.pid))
            assert len([each for each in stubs if each.startswith("socket:")]) == 2
            for others in (guardians, launchers):
                # Both have 0, 1 and 2, which are the server's, a socket to the host, and two for signals.
                assert len(others) <= 6
                assert not stubs & {each for each in others if not each.startswith("/dev/null")}

    run(look())


def test_death_is_an_event(run, environment):
    """Every death is reported at once with its signal, and leaves no zombie."""

    async def die():
        for end in (lambda stub: stub.kill("a test"), lambda stub: os.kill(stub.pid, signal.SIGSEGV)):
            async with launched(environment) as (stub, ours, _):
                await says_hello(ours)
                end(stub)
                assert (await stub.exited).code in (-signal.SIGKILL, -signal.SIGSEGV)
                assert title_of(stub.pid) is None

    run(die())


@pytest.mark.parametrize(("sent", "expected"), [(encode_reply(EXITED, -11), ProcessExit(-11)), (b"", KILLED)])
def test_request_to_kill_that_comes_too_late(run, sent, expected):
    """A guardian that ends before it reads a request has reported how its stub ended, and that counts."""

    async def check():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        process = StubProcess(0, ours, asyncio.get_running_loop())
        process.kill("a test")
        if sent:
            theirs.send(sent)
        theirs.close()
        assert await process.exited == expected

    run(check())


def test_ends_with_the_host_hanging_up(run, environment):
    """A stub whose socket the host has closed ends by itself."""

    async def hang_up():
        async with launched(environment) as (stub, ours, _):
            await says_hello(ours)
            ours.close()
            assert await stub.exited == ProcessExit(0)

    run(hang_up())


def test_signals_for_the_host(run):
    """Signals of a terminal or a service manager to all processes end neither launcher nor guardian."""

    async def signal_all():
        async with launched() as (stub, ours, _):
            await says_hello(ours)
            for pid in (launch._launchers[""]._process.pid, parent_of(stub.pid)):
                for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                    os.kill(pid, signum)
            async with launched() as (other, _, _):
                assert title_of(stub.pid) is not None
                other.kill("a test")
                assert await other.exited == KILLED
            stub.kill("a test")
            assert await stub.exited == KILLED

    run(signal_all())


def test_cannot_be_executed(run, tmp_path):
    """An interpreter that is gone is an error at once."""

    async def fail():
        with pytest.raises(FileNotFoundError, match="gone"):
            async with launched(Environment(str(tmp_path / "gone"), "", {})):
                pass

    run(fail())


class TestLeftBehind:
    """Processes that a stub has left behind; here the stub is a program that starts a daemon."""

    def test_is_asked_to_end(self, run, tmp_path):
        """A daemon in another session gets SIGTERM when the stub has ended by itself."""
        clean_up = "signal.signal(signal.SIGTERM, lambda *_: (print('cleaned up', flush=True), os._exit(0)))"

        async def leave_behind():
            async with launched(daemon_of(tmp_path, "sys.exit(3)", clean_up)) as (stub, _, output):
                left = int(await line_of(output))
                assert await stub.exited == ProcessExit(3)
                assert await line_of(output) == b"cleaned up\n"
                await gone(left)

        run(leave_behind())

    def test_is_killed(self, run, tmp_path):
        """One that ignores SIGTERM is killed."""
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"

        async def leave_behind():
            async with launched(daemon_of(tmp_path, "sys.exit(3)", ignore)) as (stub, _, output):
                left = int(await line_of(output))
                assert await stub.exited == ProcessExit(3)
                await gone(left)

        run(leave_behind())

    def test_lives_as_long_as_the_stub(self, run, tmp_path):
        """A daemon is a child of the guardian, and is left alone, also when daemons of other stubs are ended."""

        async def live_on():
            async with launched(daemon_of(tmp_path, "time.sleep(1000)")) as (stub, _, output):
                daemon = int(await line_of(output))
                async with launched(daemon_of(tmp_path, "time.sleep(1000)")) as (other, _, other_output):
                    others = int(await line_of(other_output))
                    other.kill("a test")
                    await other.exited
                    await gone(others)
                assert parent_of(daemon) == parent_of(stub.pid)
                assert title_of(daemon)
                stub.kill("a test")
                assert await stub.exited == KILLED
                await gone(daemon)

        run(live_on())

    def test_no_zombies(self, run, tmp_path):
        """Orphans of a model that end are waited for, while the stub runs."""
        program = tmp_path / "python"
        program.write_text("#!/bin/sh\n(true & echo $!)\nexec sleep 1000\n")
        program.chmod(0o755)

        async def orphan():
            async with launched(Environment(str(program), "", OURS.variables)) as (stub, _, output):
                pid = int(await line_of(output))
                await asyncio.to_thread(wait_reaped, pid)
                stub.kill("a test")
                assert await stub.exited == KILLED

        run(orphan())

    def test_guardian_killed(self, run, tmp_path):
        """Without its guardian a stub is killed, and the launcher ends the processes that it leaves behind."""

        async def kill_guardian():
            async with launched() as (plain, ours, _):
                await says_hello(ours)
                async with launched(daemon_of(tmp_path, "time.sleep(1000)")) as (stub, _, output):
                    left = int(await line_of(output))
                    os.kill(parent_of(stub.pid), signal.SIGKILL)
                    assert await stub.exited == KILLED
                    await gone(left)
                os.kill(parent_of(plain.pid), signal.SIGKILL)
                assert await plain.exited == KILLED
                await gone(plain.pid)

        run(kill_guardian())


@pytest.mark.parametrize("module", ["sched", "no_such_module"])
def test_a_module_for_several_stubs(run, module):
    """Stubs that need the same module have a launcher that imported it; one that cannot be imported fails none."""

    async def launch_three():
        async with AsyncExitStack() as stack:
            environments = (None, Preloaded(module), Preloaded(module))
            stubs = [await stack.enter_async_context(launched(each)) for each in environments]
            for _, ours, _ in stubs:
                await says_hello(ours)
            launchers = [parent_of(parent_of(stub.pid)) for stub, _, _ in stubs]
            assert launchers == [launch._launchers[name]._process.pid for name in ("", module, module)]
            for stub, _, _ in stubs:
                stub.kill("a test")
                await stub.exited

    run(launch_three())
    assert launch._launchers == {}


class TestLauncherKilled:
    def test_stubs_live_on(self, run, environment, caplog):
        """Stubs of a launcher that was killed live on, their ends are known, and another launcher starts the next."""

        async def kill_launcher():
            async with launched(environment) as (stub, ours, _):
                channel, _ = await says_hello(ours)
                os.kill(launch._launchers[""]._process.pid, signal.SIGKILL)
                await gone(launch._launchers[""]._process.pid)
                async with launched(environment) as (other, others, _):
                    await says_hello(others)
                    other.kill("a test")
                    assert await other.exited == KILLED
                ours.sendall(channel.send(Stop()))
                assert await stub.exited == ProcessExit(0)

        run(kill_launcher())
        assert "The launcher of stub processes was lost: killed by SIGKILL" in caplog.text


class TestScarcity:
    """A launch that fails for lack of something harms no other stub, and the next one may succeed."""

    @pytest.fixture
    def failing(self, run, environment):
        """`failing(free, errno)`: launches fail so with few free descriptors in the launcher; then one succeeds."""

        def fail(free, number):
            async def scenario():
                async with launched(environment) as (stub, ours, _):
                    await says_hello(ours)
                    pid = launch._launchers[""]._process.pid
                    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit_for(pid, free), before[1]))
                    for _ in range(LAUNCHES):
                        with pytest.raises(OSError) as caught:
                            async with launched(environment):
                                pass
                        assert caught.value.errno == number
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
                    assert launch._launchers[""]._process.pid == pid
                    async with launched(environment) as (other, others, _):
                        await says_hello(others)
                        other.kill("a test")
                        await other.exited
                    assert title_of(stub.pid) == "triton_python_backend_stub m_0"
                    stub.kill("a test")
                    assert await stub.exited == KILLED

            run(scenario())

        return fail

    @pytest.mark.parametrize("free", [0, 1, len(DESCRIPTORS) - 1])
    def test_descriptors(self, failing, free):
        """Descriptors of a request are lost; together with the control socket even the reason is."""
        failing(free, errno.EMFILE if free else errno.EAGAIN)
