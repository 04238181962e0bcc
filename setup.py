# SPDX-License-Identifier: Apache-2.0
"""The Python package: `pip install .`, `make python` (in-tree) and `make wheel` all come here.

The extension module links libtern.so, which `make lib` builds first, with the CUDA kernels where
nvcc is found, and which lies beside the module in the package. TERN_LIBRARY=FILE takes that library
instead of building one.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
HEADER = (HERE / "include/tern/tern.h").read_text()
VERSION = [
    re.search(rf"^#define TERN_VERSION_{part} *(\d+)$", HEADER, re.M).group(1)
    for part in ("MAJOR", "MINOR", "PATCH")
]


def library() -> Path:
    """libtern.so of this version: the one that was named, else a new one."""
    if "TERN_LIBRARY" in os.environ:
        return Path(os.environ["TERN_LIBRARY"]).resolve()
    subprocess.run(
        [os.environ.get("MAKE", "make"), f"-j{os.cpu_count()}", "lib"], cwd=HERE, check=True
    )
    return HERE / "build/release" / f"libtern.so.{'.'.join(VERSION)}"


class BuildExtension(build_ext):
    """Builds the module against the library, and puts the library beside it under the name it is
    loaded by, also where the package runs from its sources (--inplace, pip install -e)."""

    loaded_by = f"libtern.so.{VERSION[0]}"

    def build_extension(self, ext):
        place = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library(), place / self.loaded_by)
        ext.extra_link_args += [str(place / self.loaded_by), "-Wl,-rpath,$ORIGIN"]
        super().build_extension(ext)

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        built = Path(self.build_lib, "tern", self.loaded_by)
        shutil.copyfile(built, HERE / "python/tern" / self.loaded_by)


(HERE / "build").mkdir(exist_ok=True)
setup(
    name="tern",
    version=".".join(VERSION),
    description="Expert-parallel communication: MoE dispatch and combine",
    license="Apache-2.0",
    python_requires=">=3.9",
    extras_require={"torch": ["torch>=1.13"]},
    package_dir={"": "python"},
    packages=["tern", "deep_ep", "deep_ep.buffers", "deep_ep.utils"],
    py_modules=["deep_ep_cpp"],
    package_data={"tern": ["py.typed", "_tern.pyi"], "deep_ep": ["py.typed"]},
    ext_modules=[
        Extension(
            "tern._tern",
            sources=sorted(
                str(path.relative_to(HERE)) for path in (HERE / "python/src").glob("*.c")
            ),
            depends=sorted(str(path.relative_to(HERE)) for path in HERE.glob("*/*/*.h")),
            include_dirs=["include"],
            extra_compile_args=[
                "-std=gnu11",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wvla",
                "-Wc++-compat",
            ],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp39"}, "egg_info": {"egg_base": "build"}},
    zip_safe=False,
)
