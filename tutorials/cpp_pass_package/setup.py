"""Build of the C++ part; everything else about the package is in pyproject.toml."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

import jit_passes

setup(
    ext_modules=[
        CppExtension(
            "fpga_passes.library",
            ["src/library.cpp"],
            depends=["src/replace_division.cpp", "src/shift_sigmoid.cpp"],
            include_dirs=jit_passes.include_paths(),
            # -O1: it compiles in half the time, and a pass spends its time in PyTorch.
            extra_compile_args=["-std=c++20", "-O1", "-g0", "-w"],
            extra_link_args=[jit_passes.library_path()],
        )
    ],
    # A library for torch.ops.load_library, not a module of Python: plain `library.so`.
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
