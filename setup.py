"""Build of the C++ extension; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.modified import newer_group

ROOT = Path(__file__).resolve().parent
MIN_TORCH = (2, 13)
PYTHONS = ((3, 10), (3, 13))

if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
    sys.exit(
        f"jit_passes supports Python 3.10 to 3.13, and this is Python {sys.version.split()[0]}: "
        "create the environment with one of those."
    )
try:
    import torch
    from torch.utils import cpp_extension
except ImportError:
    sys.exit(
        "jit_passes compiles against the torch it will run with, and none is installed here: run "
        "'pip install torch==2.13.0 ninja', then 'pip install --no-build-isolation .'."
    )
if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < MIN_TORCH:
    sys.exit(f"jit_passes needs torch >= 2.13, found {torch.__version__}: upgrade torch first.")

COMPILE_FLAGS = ["-O3", "-g0", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra"]
# Results stay the same; without the error flags of C's floating point, loops with floor vectorize.
COMPILE_FLAGS += ["-fno-math-errno", "-fno-trapping-math"]
# at::parallel_for runs serially without it. The linker does not get the flag: the symbols come from
# the OpenMP runtime that torch has loaded, so that there are not two pools of threads.
COMPILE_FLAGS += ["-fopenmp"] if sys.platform == "linux" else []
COMPILE_FLAGS += ["-Werror"] if os.environ.get("JIT_PASSES_WERROR") == "1" else []
# As in JIT_PASSES_SANITIZE=address; `make asan` runs tests with such a build.
SANITIZER = os.environ.get("JIT_PASSES_SANITIZE", "")
SANITIZE = [f"-fsanitize={SANITIZER}", "-fno-omit-frame-pointer", "-O2"] if SANITIZER else []
COMPILE_FLAGS += SANITIZE


def system_includes() -> list[str]:
    """Return flags that make torch's headers system headers, so that our warnings stay ours."""
    return [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]


RUNTIME = "jit_passes/lib/libjit_passes.so"  # in a folder that is no package: it is no module
# How many units the files of some folders are compiled in; 0 for one of each file's own.
UNITS = {
    ("graph", "view"): 1,
    ("facts",): 1,
    ("rewriting", "quantization"): 1,
    ("ops",): 6,
    ("passes",): 4,
    ("python",): 0,
    ("x86/program", "x86/building"): 1,
    ("x86/lowering", "x86/running"): 1,
    ("x86/operators",): 1,
    ("x86/kernels",): 1,
}
# Headers for other packages, by room; <jit_passes/graph.h> is cpp/graph/graph.h.
PUBLIC = {
    "graph": "alias alias_classes calls dialect graph jit lint module operators places print"
    " registry",
    "facts": "known_values",
    "rewriting": "match matcher pattern pattern_text rewriter rule value_match",
    "ops": "vectorize",
}


def write_units(folder: Path) -> list[Path]:
    """Write files that include several others, and return what is to be compiled.

    Even precompiled, torch's headers leave templates that the compiler instantiates anew in each
    translation unit, for two to three seconds. So names in anonymous namespaces are unique within
    a folder. A unit that would not change is not written, so that its object stays up to date.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units: list[Path] = []
    for names, count in UNITS.items():
        sources = sorted(path for name in names for path in (ROOT / "cpp" / name).rglob("*.cpp"))
        if not count:
            units += sources
        for number in range(count):
            unit = folder / f"{names[0].replace('/', '_')}_{number}.cpp"
            text = "".join(f'#include "{path.as_posix()}"\n' for path in sources[number::count])
            if not unit.exists() or unit.read_text() != text:
                unit.write_text(text)
            units.append(unit)
    return units


class BuildExtension(cpp_extension.BuildExtension):
    """Compile a few units of many files each, with a precompiled header.

    Parsing torch's JIT headers takes 15 s for every unit otherwise.
    """

    def run(self) -> None:
        # An editable install would compile all of it again in a folder that is removed.
        if not (self.editable_mode and self.is_built()):
            super().run()

    def is_built(self) -> bool:
        """Say whether the source folder has an extension of these sources, for this torch."""
        made = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        sources = [*SOURCES, *HEADERS, "setup.py"]
        if any(newer_group(sources, path, "newer") for path in (*made, ROOT / RUNTIME)):
            return False
        load = [sys.executable, "-c", "import jit_passes._extension"]
        return subprocess.run(load, cwd=ROOT, capture_output=True).returncode == 0

    def build_extensions(self) -> None:
        temporary = Path(self.build_temp).resolve()
        header = self.precompile(temporary / "precompiled")
        units = write_units(temporary / "units")
        for extension in self.extensions:
            flags = [*COMPILE_FLAGS, *system_includes(), f"-I{ROOT / 'cpp'}"]
            if header is not None:
                flags += ["-include", str(header), "-Winvalid-pch"]
            extension.extra_compile_args = {"cxx": flags}
            extension.extra_link_args = SANITIZE
            extension.depends += extension.sources
            extension.sources = [str(path) for path in units]
        super().build_extensions()
        self.link_runtime([path for path in units if path.parent == temporary / "units"])

    def link_runtime(self, units: list[Path]) -> None:
        """Link everything but the bindings into a library for programs without Python.

        Like the extension, it takes OpenMP from the runtime that torch has loaded.
        """
        folder = os.path.abspath(self.build_temp)
        objects = self.compiler.object_filenames([str(unit) for unit in units], output_dir=folder)
        print("[link] libjit_passes.so", flush=True)
        self.compiler.link_shared_object(
            objects, str(Path(self.build_lib, RUNTIME)),
            libraries=["c10", "torch", "torch_cpu"], library_dirs=cpp_extension.library_paths(),
            extra_postargs=SANITIZE, target_lang="c++",
        )  # fmt: skip

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        (ROOT / RUNTIME).parent.mkdir(exist_ok=True)
        shutil.copy2(Path(self.build_lib, RUNTIME), ROOT / RUNTIME)

    def precompile(self, folder: Path) -> Path | None:
        """Precompile graph/jit.h once for a torch and a set of flags; None for clang."""
        compiler = os.environ.get("CXX", "c++")
        if (
            "clang"
            in subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
        ):
            return None
        header, compiled = folder / "pch.h", folder / "pch.h.gch"
        python = [f"-I{path}" for path in self.compiler.include_dirs]
        command = [
            *(compiler, "-x", "c++-header", str(header), "-o", str(compiled)),
            *self.compiler.compiler_so[1:], *COMPILE_FLAGS, *system_includes(),
            f"-I{ROOT / 'cpp'}", *python,
            *("-DTORCH_API_INCLUDE_EXTENSION_H", "-DTORCH_EXTENSION_NAME=_C"),
        ]  # fmt: skip
        stamp = f"{torch.__version__}\n" + "\n".join(command)
        stamp_file, source = folder / "stamp.txt", ROOT / "cpp" / "graph" / "jit.h"
        fresh = compiled.exists() and compiled.stat().st_mtime > source.stat().st_mtime
        if not (fresh and stamp_file.exists() and stamp_file.read_text() == stamp):
            folder.mkdir(parents=True, exist_ok=True)
            header.write_text('#include "graph/jit.h"\n')
            print("[header] graph/jit.h", flush=True)
            subprocess.run(command, check=True)
            stamp_file.write_text(stamp)
        return header


class BuildPy(build_py):
    """Put the public headers inside the package, where `jit_passes.include_paths()` finds them."""

    def run(self) -> None:
        target = ROOT / "jit_passes" / "include" / "jit_passes"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for room, names in PUBLIC.items():
            for name in names.split():
                text = (ROOT / "cpp" / room / f"{name}.h").read_text()
                (target / f"{name}.h").write_text(re.sub(r'(#include ")\w+/', r"\1", text))
        super().run()


SOURCES, HEADERS = (
    sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"cpp/**/*.{suffix}"))
    for suffix in ("cpp", "h")
)
setup(
    ext_modules=[cpp_extension.CppExtension("jit_passes._C", SOURCES, depends=HEADERS)],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True), "build_py": BuildPy},
)
