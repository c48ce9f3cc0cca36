"""Build of the C++ extension; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
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

COMPILE_FLAGS = ["-g0", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra"]
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
LOOPS = {
    ("x86/kernels",): 2,
    ("ops",): 4,
    ("x86/running",): 1,
}
GRAPHS = {
    ("rewriting", "quantization"): 1,
    ("graph", "view"): 1,
    ("python",): 0,
    ("passes",): 4,
    ("x86/program", "x86/building"): 1,
    ("x86/lowering",): 1,
    ("x86/operators",): 1,
    ("facts",): 1,
}
# Code over graphs is as fast as with -O3, and compiles in two thirds of the time.
LEVELS = {"-O3": LOOPS, "-O1": GRAPHS}
# Headers for other packages, by room, beside the headers that they include. <jit_passes/graph.h> is
# cpp/graph/graph.h; <jit_passes/x86/operator.h> is cpp/x86/operators/operator.h.
PUBLIC = {
    "graph": "alias alias_classes attributes calls dialect effects graph jit lint module names"
    " operators places print registry",
    "facts": "known_values",
    "rewriting": "match matcher pattern pattern_text rewriter rule value_match",
    "ops": "vectorize",
    "x86/operators": "operator",
}
INCLUDE = re.compile(r'#include "([^"]+)"')


def public_headers() -> dict[str, str]:
    """Return the text of each header for other packages, by its path in an include."""
    left = [ROOT / "cpp" / room / f"{name}.h" for room in PUBLIC for name in PUBLIC[room].split()]
    for header in left:
        paths = INCLUDE.findall(header.read_text())
        left += [file for path in paths if (file := included(header, path)) not in left]
    return {public_name(header): public_text(header) for header in left}


def included(header: Path, path: str) -> Path:
    """Return the file that a header includes: beside it, or in a room."""
    beside = header.parent / path
    return beside if beside.exists() else ROOT / "cpp" / path


def public_text(header: Path) -> str:
    def renamed(found: re.Match[str]) -> str:
        return f"#include <{public_name(included(header, found[1]))}>"

    return INCLUDE.sub(renamed, header.read_text())


def public_name(header: Path) -> str:
    """Return the path of a header in an include of another package: rooms have no folders there."""
    outer = "x86/" if header.is_relative_to(ROOT / "cpp" / "x86") else ""
    return f"jit_passes/{outer}{header.name}"


def write_units(folder: Path, counts: dict[tuple[str, ...], int]) -> list[str]:
    """Write files that include several others, and return the files to compile.

    Even precompiled, torch's headers leave templates that the compiler instantiates anew in each
    translation unit, for two to three seconds. So names in anonymous namespaces are unique within
    a folder. A unit that would not change is not written, so that its object stays up to date.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units: list[Path] = []
    for names, count in counts.items():
        sources = sorted(path for name in names for path in (ROOT / "cpp" / name).rglob("*.cpp"))
        if not count:
            units += sources
        for number in range(count):
            unit = folder / f"{names[0].replace('/', '_')}_{number}.cpp"
            text = "".join(f'#include "{path.as_posix()}"\n' for path in sources[number::count])
            if not unit.exists() or unit.read_text() != text:
                unit.write_text(text)
            units.append(unit)
    return [str(unit) for unit in units]


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

    def build_extension(self, extension: Extension) -> None:
        """Compile the units of each level, and link all of them."""
        temporary = Path(self.build_temp).resolve()
        # With torch's own: the name of the module.
        common = [*COMPILE_FLAGS, *system_includes(), f"-I{ROOT / 'cpp'}"]
        common += extension.extra_compile_args["cxx"]
        headers = self.precompile(temporary / "precompiled", common)
        units: dict[str, list[str]] = {}
        flags: dict[str, dict[str, list[str]]] = {}
        for level, counts in LEVELS.items():
            units[level] = write_units(temporary / "units", counts)
            header = ["-include", str(headers[level]), "-Winvalid-pch"] if headers else []
            flags[level] = {"cxx": [level, *common, *header]}
        extension.depends += extension.sources
        # In a folder of its own: a file of ninja knows the objects of one level.
        extension.extra_objects = self.compiler.compile(
            units["-O3"], output_dir=str(temporary / "loops"), depends=extension.depends,
            include_dirs=extension.include_dirs, extra_postargs=flags["-O3"],
        )  # fmt: skip
        extension.sources, extension.extra_compile_args = units["-O1"], flags["-O1"]
        extension.extra_link_args = SANITIZE
        super().build_extension(extension)
        graphs = [unit for unit in units["-O1"] if Path(unit).parent == temporary / "units"]
        graphs = self.compiler.object_filenames(graphs, output_dir=os.path.abspath(self.build_temp))
        self.link_runtime([*graphs, *extension.extra_objects])

    def link_runtime(self, objects: list[str]) -> None:
        """Link everything but the bindings into a library for programs without Python.

        Like the extension, it takes OpenMP from the runtime that torch has loaded.
        """
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

    def precompile(self, folder: Path, flags: list[str]) -> dict[str, Path]:
        """Precompile graph/jit.h for a torch and each level; for clang, nothing."""
        compiler = os.environ.get("CXX", "c++")
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
        if "clang" in version:
            return {}
        headers = {level: folder / f"pch{level}.h" for level in LEVELS}
        started: list[tuple[subprocess.Popen[bytes], Path, str]] = []
        python = [f"-I{path}" for path in self.compiler.include_dirs]
        for level, header in headers.items():
            compiled, stamp_file = header.with_suffix(".h.gch"), header.with_suffix(".txt")
            command = [
                *(compiler, "-x", "c++-header", str(header), "-o", str(compiled)),
                *self.compiler.compiler_so[1:], *python, level, *flags,
            ]  # fmt: skip
            stamp = f"{torch.__version__}\n" + "\n".join(command)
            source = ROOT / "cpp" / "graph" / "jit.h"
            fresh = compiled.exists() and compiled.stat().st_mtime > source.stat().st_mtime
            if not (fresh and stamp_file.exists() and stamp_file.read_text() == stamp):
                folder.mkdir(parents=True, exist_ok=True)
                header.write_text('#include "graph/jit.h"\n')
                print(f"[header] graph/jit.h {level}", flush=True)
                started.append((subprocess.Popen(command), stamp_file, stamp))
        for process, stamp_file, stamp in started:
            if process.wait():
                sys.exit("graph/jit.h cannot be compiled; the compiler's messages are above.")
            stamp_file.write_text(stamp)
        return headers


class BuildPy(build_py):
    """Put the public headers inside the package, where `jit_passes.include_paths()` finds them."""

    def run(self) -> None:
        target = ROOT / "jit_passes" / "include"
        shutil.rmtree(target, ignore_errors=True)
        for name, text in public_headers().items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text)
        super().run()


SOURCES, HEADERS = (
    sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"cpp/**/*.{suffix}"))
    for suffix in ("cpp", "h")
)
setup(
    ext_modules=[
        cpp_extension.CppExtension(
            "jit_passes._C", SOURCES, depends=HEADERS, extra_compile_args={"cxx": []}
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=True), "build_py": BuildPy},
)
