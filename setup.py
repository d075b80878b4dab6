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
# What there is to say of an extension that could not be built.
MISSING = {
    "pyruntime.runtime.native._http2": (
        "pyruntime is installed without gRPC: its part in C could not be built, for which a C compiler and the headers "
        "of Python and of nghttp2 are needed (Debian and Ubuntu: apt-get install gcc python3-dev libnghttp2-dev)."
    ),
    "pyruntime.runtime.native._triton": (
        "pyruntime is installed without native backends (libtriton_<name>.so): its part in C++ could not be built, for "
        "which a compiler of C++17 and the headers of Python are needed (Debian and Ubuntu: apt-get install g++ "
        "python3-dev)."
    ),
}


class BuildExtension(build_ext):
    """Builds what can be built, and says in one sentence what could not."""

    def build_extension(self, ext: Extension) -> None:
        """Build an extension, or go on without it."""
        try:
            self._compile_at_once()
            super().build_extension(ext)
        except Exception:  # Whatever a compiler and those who drive it come up with.
            print(f"warning: {MISSING[ext.name]}", file=sys.stderr)

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
    optional=True,
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
    optional=True,
)
setup(ext_modules=[http2, triton], cmdclass={"build_ext": BuildExtension})
