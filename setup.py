# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extensions in C and C++. Everything else about the package stands in setup.cfg."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HTTP2 = "runtime/native/src"
TRITON = "runtime/native/triton"
STABLE_ABI = [("Py_LIMITED_API", "0x030B0000")]
# Python has everything compiled with -g: of C++ that makes thirty times as much. Who sets flags of their own wants it.
NO_SYMBOLS = [] if "CXXFLAGS" in os.environ else ["-g0"]
# What an extension needs that cannot be built here.
NEEDED = {
    "pyruntime.runtime.native._http2": (
        "the part for gRPC, which needs a C compiler and the headers of Python and of nghttp2 (Debian and Ubuntu: "
        "apt-get install gcc python3-dev libnghttp2-dev)"
    ),
    "pyruntime.utils._frames": (
        "the messages between server and models, which need a C compiler and the headers of Python (Debian and Ubuntu: "
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

    def build_extension(self, ext: Extension) -> None:
        """Build an extension, or exit with what is missing: a server without it would lack it in silence."""
        try:
            self._compile_at_once()
            super().build_extension(ext)
        except Exception as exc:  # compilers, and programs that run them, raise many kinds
            sys.exit(
                f"error: pyruntime cannot be built here: {exc}. A wheel needs no compiler. From source it has "
                f"{NEEDED[ext.name]}."
            )

    def _compile_at_once(self) -> None:
        """Have the files of an extension compiled side by side, which setuptools does not do by itself."""
        compile_all = type(self.compiler).compile.__get__(self.compiler)

        def compile_each(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                objects = threads.map(lambda source: compile_all([source], **options), sources)
                return [path for paths in objects for path in paths]

        self.compiler.compile = compile_each


def paths(folder: str, pattern: str) -> list[str]:
    """The files of a folder, in an order that is always the same."""
    return sorted(str(path) for path in Path(folder).glob(pattern))


http2 = Extension(
    "pyruntime.runtime.native._http2",
    sources=paths(HTTP2, "*.c"),
    depends=paths(HTTP2, "*.h"),
    define_macros=STABLE_ABI,
    extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
    libraries=["nghttp2"],
    py_limited_api=True,
)
triton = Extension(
    "pyruntime.runtime.native._triton",
    sources=paths(TRITON, "*.cc"),
    depends=[*paths(TRITON, "*.h"), f"{TRITON}/exports.map", *paths("include", "**/*.h")],
    include_dirs=["include", TRITON],
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
    # Stubs load it, too: of the oldest Python that models may have.
    define_macros=[("Py_LIMITED_API", "0x03080000")],
    extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
    py_limited_api=True,
)
guard = Extension(
    "pyruntime.stub.native._guard",
    sources=["stub/native/guard.c"],
    extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
    py_limited_api=True,
)
torch_allocator = Extension(
    "pyruntime.stub.native._torch_allocator",
    sources=["stub/native/torch_allocator.c"],
    extra_compile_args=["-std=gnu11", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
setup(ext_modules=[http2, triton, frames, guard, torch_allocator], cmdclass={"build_ext": BuildExtension})
