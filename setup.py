# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extensions in C and C++. Everything else about the package stands in setup.cfg."""

import fcntl
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HTTP2 = "runtime/native/src"
CODECS = "runtime/native/codecs"
TRITON = "runtime/native/triton"
# The functions that C++ backends in the server read requests with, and write responses: they know no Python.
CODECS_OF_HTTP = (
    "http_head",
    "infer_document",
    "infer_request",
    "infer_response",
    "json_contents",
    "json_number",
    "json_parameter",
    "json_text",
)
STABLE_ABI = [("Py_LIMITED_API", "0x030B0000")]
# Of what stubs load: of the oldest Python that models may have.
STABLE_ABI_OF_STUBS = [("Py_LIMITED_API", "0x03080000")]
# Whoever sets flags of their own gets what they say, and a build that nobody else uses.
HAS_FLAGS = any(name in os.environ for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS"))
# Python has everything compiled with -g: of C++ that makes thirty times as much.
NO_SYMBOLS = [] if HAS_FLAGS else ["-g0"]
C_FLAGS = ["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra", *NO_SYMBOLS]
# Reading the headers takes a file of C++ longer than compiling it. So its files are compiled in this many units: on two
# processors that takes a third of the time. More would only help machines with more processors than most have.
UNITS = 4
# What is built lies here, seen from the root of the project, and is built again only when it is older than its sources.
BUILD = Path("build")
# What an extension needs that cannot be built here.
NEEDED = {
    "pyruntime.runtime.native._http2": (
        "the part for gRPC, which needs a C compiler and the headers of Python and of nghttp2 (Debian and Ubuntu: "
        "apt-get install gcc python3-dev libnghttp2-dev)"
    ),
    "pyruntime.runtime.native._codecs": (
        "the part that reads requests, which needs a compiler of C++17 and the headers of Python (Debian and Ubuntu: "
        "apt-get install g++ python3-dev)"
    ),
    "pyruntime.utils._frames": (
        "the messages between server and models, which need a C compiler and the headers of Python (Debian and Ubuntu: "
        "apt-get install gcc python3-dev)"
    ),
    "pyruntime.stub._plain": (
        "the requests and responses of models, which need a C compiler and the headers of Python (Debian and Ubuntu: "
        "apt-get install gcc python3-dev)"
    ),
    "pyruntime.stub.native._guard": (
        "the guard of memory that clients may shrink, which needs a C compiler (Debian and Ubuntu: apt-get install gcc)"
    ),
    "pyruntime.stub.native._torch_allocator": (
        "the allocator for torch, which needs a C compiler (Debian and Ubuntu: apt-get install gcc)"
    ),
    "pyruntime.runtime.native._triton": (
        "the part for native backends (libtriton_<name>.so), which needs a compiler of C++17 and the headers of Python "
        "(Debian and Ubuntu: apt-get install g++ python3-dev)"
    ),
}


class BuildExtension(build_ext):
    """Builds the extensions, and says in one sentence what the build of one needs."""

    def finalize_options(self) -> None:
        """Have an editable installation take what was built before: setuptools has it built in a temporary folder."""
        super().finalize_options()
        if self.editable_mode and not HAS_FLAGS:
            platform = f"{self.plat_name}-{sys.implementation.cache_tag}"
            self.build_lib, self.build_temp = str(BUILD / f"lib.{platform}"), str(BUILD / f"temp.{platform}")

    def run(self) -> None:
        """Build the extensions, unless another process does: then wait for it, and take what it has built."""
        BUILD.mkdir(exist_ok=True)
        with (BUILD / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().run()

    def build_extension(self, ext: Extension) -> None:
        """Build an extension, or exit with what is missing: a server without it would lack it in silence."""
        try:
            # This file has the flags.
            ext.depends = [*ext.depends, "setup.py"]
            self._compile_at_once(ext.name.rpartition("._")[2])
            super().build_extension(ext)
        except Exception as exc:  # compilers, and programs that run them, raise many kinds
            sys.exit(
                f"error: pyruntime cannot be built here: {exc}. A wheel needs no compiler. From source it has "
                f"{NEEDED[ext.name]}."
            )

    def _compile_at_once(self, name: str) -> None:
        """Have the files of an extension compiled side by side, which setuptools does not do by itself."""
        compile_all = type(self.compiler).compile.__get__(self.compiler)

        def compile_each(sources: list[str], **options: Any) -> list[str]:
            if sources[0].endswith(".cc"):
                sources = self._units(name, sources)
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                objects = threads.map(lambda source: compile_all([source], **options), sources)
                return [path for paths in objects for path in paths]

        self.compiler.compile = compile_each

    def _units(self, name: str, sources: list[str]) -> list[str]:
        """Write files that include the sources, and together all of them. `name` is the extension's."""
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        units = [folder / f"{name}_{number}.cc" for number in range(UNITS)]
        for number, unit in enumerate(units):
            included = [os.path.relpath(source, folder) for source in sources[number::UNITS]]
            unit.write_text("".join(f'#include "{path}"\n' for path in included))
        return [str(unit) for unit in units]


def paths(folder: str, pattern: str) -> list[str]:
    """The files of a folder, in an order that is always the same."""
    return sorted(str(path) for path in Path(folder).glob(pattern))


http2 = Extension(
    "pyruntime.runtime.native._http2",
    sources=paths(HTTP2, "*.c"),
    depends=paths(HTTP2, "*.h"),
    define_macros=STABLE_ABI,
    extra_compile_args=C_FLAGS,
    libraries=["nghttp2"],
    py_limited_api=True,
)
codecs = Extension(
    "pyruntime.runtime.native._codecs",
    sources=paths(CODECS, "*.cc"),
    depends=paths(CODECS, "*.h"),
    define_macros=STABLE_ABI,
    extra_compile_args=["-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", *NO_SYMBOLS],
    language="c++",
    py_limited_api=True,
)
triton = Extension(
    "pyruntime.runtime.native._triton",
    sources=[*paths(TRITON, "*.cc"), *(f"{CODECS}/{name}.cc" for name in CODECS_OF_HTTP)],
    depends=[
        *paths(TRITON, "*.h"),
        *paths(CODECS, "*.h"),
        f"{TRITON}/exports.map",
        *paths("include", "**/*.h"),
    ],
    include_dirs=["include", TRITON, CODECS],
    define_macros=STABLE_ABI,
    extra_compile_args=["-std=c++17", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", *NO_SYMBOLS],
    extra_link_args=[
        "-pthread",
        # The name by which backends ask for the library that they take their functions from.
        "-Wl,-soname,libtritonserver.so",
        f"-Wl,--version-script={TRITON}/exports.map",
        # Threads of backends outlive the interpreter.
        "-Wl,-z,nodelete",
        "-Wl,-z,now",
    ],
    libraries=["dl"],
    language="c++",
    py_limited_api=True,
)
frames = Extension(
    "pyruntime.utils._frames",
    sources=["utils/native/frames.c"],
    depends=["utils/native/pack.h"],
    define_macros=STABLE_ABI_OF_STUBS,
    extra_compile_args=C_FLAGS,
    py_limited_api=True,
)
plain = Extension(
    "pyruntime.stub._plain",
    sources=paths("stub/native", "plain*.c"),
    depends=["stub/native/plain.h", "utils/native/pack.h"],
    include_dirs=["utils/native"],
    define_macros=STABLE_ABI_OF_STUBS,
    extra_compile_args=C_FLAGS,
    py_limited_api=True,
)
guard = Extension(
    "pyruntime.stub.native._guard",
    sources=["stub/native/guard.c"],
    extra_compile_args=C_FLAGS,
    py_limited_api=True,
)
torch_allocator = Extension(
    "pyruntime.stub.native._torch_allocator",
    sources=["stub/native/torch_allocator.c"],
    extra_compile_args=[*C_FLAGS, "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
setup(
    ext_modules=[http2, codecs, triton, frames, plain, guard, torch_allocator],
    cmdclass={"build_ext": BuildExtension},
)
