"""Markdown tables, machine facts, and the sections of the results file."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import torch

from benchmarks.measure import ratios, spread

DEFAULT_OUTPUT = Path("docs/benchmarks.md")
MISSING = "-"

_TITLE = "# Benchmarks\n"
_TAIL = 0.1  # of rounds, left out at each end of a spread
_PACKAGES = ("onnxruntime", "openvino", "nncf")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table whose first column is text and whose other columns are numbers."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(_escape(cell) for cell in line) + " |" for line in lines)


def machine_facts() -> str:
    """The processor, the thread count and the library versions, as a markdown list."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = [f"Python {platform.python_version()}", f"PyTorch {torch.__version__}"]
    versions += [f"{name} {version}" for name in _PACKAGES if (version := _version(name))]
    capability = torch.backends.cpu.get_cpu_capability()
    return "\n".join(
        [
            f"- CPU: {_cpu_model()}, {cpus} logical CPUs, PyTorch kernels: {capability}",
            f"- Instructions for int8: {_int8_instructions() or 'none beyond AVX2'}",
            f"- Threads per runtime: {torch.get_num_threads()}",
            f"- {', '.join(versions)}",
        ]
    )


def command(module: str, arguments: Sequence[str]) -> str:
    """The exact command line of this run, as a markdown code block."""
    line = " ".join(["python", "-m", module, *(shlex.quote(argument) for argument in arguments)])
    return f"```\n{line}\n```"


def write_section(path: Path, name: str, body: str) -> None:
    """Replace the section ``name`` of the file at ``path``, or append it.

    Sections lie between marker comments, so that several benchmarks can share a file and a
    person can write around them.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    section = f"{begin}\n{body.strip()}\n{end}"
    text = path.read_text(encoding="utf-8") if path.exists() else _TITLE
    if begin in text and end in text:
        before, rest = text.split(begin, 1)
        after = rest.split(end, 1)[1]
        text = before + section + after
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def progress(message: str) -> None:
    """Tell whoever waits for the benchmark what it is doing."""
    print(message, file=sys.stderr, flush=True)


def _escape(cell: str) -> str:
    """``cell`` without the character that separates cells."""
    return cell.replace("|", "\\|")


def _version(package: str) -> str | None:
    """The installed version of ``package``, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """The processor's name; virtual machines often hide it, hence the family and model."""
    facts = _cpuinfo()
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in facts and "model" in facts:
        name += f" (family {facts['cpu family']}, model {facts['model']})"
    return name


def _int8_instructions() -> str:
    """The instruction sets that int8 kernels choose by."""
    flags = _cpuinfo().get("flags", "").split()
    known = {
        "avx512_vnni": "AVX-512 VNNI",
        "avx_vnni": "AVX-VNNI",
        "amx_int8": "AMX int8",
        "avx512bw": "AVX-512 BW",
    }
    return ", ".join(title for flag, title in known.items() if flag in flags)


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def comparison(what: str, samples: Mapping[str, list[float]], baseline: str) -> str:
    """Milliseconds, and the ratio to the baseline within each round: median and 80 % of rounds."""
    rows = []
    for name, seconds in samples.items():
        time = spread([1e3 * s for s in seconds], _TAIL)
        ratio = spread(ratios(samples[baseline], seconds), _TAIL)
        rows.append(
            [
                name,
                f"{time.median:.1f}",
                f"{time.low:.1f} to {time.high:.1f}",
                f"{ratio.median:.2f}",
                f"{ratio.low:.2f} to {ratio.high:.2f}",
            ]
        )
    return table([what, "ms", "", "times as fast", ""], rows)
