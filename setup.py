# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extension in C. Everything else about the package stands in setup.cfg."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = "runtime/native/src"
MISSING = (
    "pyruntime is installed without gRPC: its part in C could not be built, for which a C compiler and the headers of "
    "Python and of nghttp2 are needed (Debian and Ubuntu: apt-get install gcc python3-dev libnghttp2-dev)."
)


class BuildExtension(build_ext):
    """Builds what can be built, and says in one sentence what could not."""

    def build_extension(self, ext: Extension) -> None:
        """Build an extension, or go on without it."""
        try:
            super().build_extension(ext)
        except Exception:  # Whatever a compiler and those who drive it come up with.
            print(f"warning: {MISSING}", file=sys.stderr)


http2 = Extension(
    "pyruntime.runtime.native._http2",
    sources=sorted(str(path) for path in Path(SOURCES).glob("*.c")),
    depends=[f"{SOURCES}/http2.h"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
    libraries=["nghttp2"],
    py_limited_api=True,
    optional=True,
)
setup(ext_modules=[http2], cmdclass={"build_ext": BuildExtension})
