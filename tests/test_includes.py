"""The check of C++ includes finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import includes


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of C++ sources in which all is well."""
    files = {
        "graph/low.h": "int low(int x);\n",
        "graph/low.cpp": '#include "low.h"\n\nint low(int x) { return x; }\n',
        "facts/high.h": '#include "graph/low.h"\n\nint high(\n    int x, int y);\n',
        "facts/high.cpp": '#include "high.h"\n\nint high(\n    int x, int y) {\n  return x;\n}\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(includes, "CPP", tmp_path)
    return tmp_path


def complaints() -> list[str]:
    return [*includes.problems(), *includes.circles(), *includes.displaced()]


def test_all_is_well(tree: Path) -> None:
    assert complaints() == []


def test_a_later_room(tree: Path) -> None:
    (tree / "graph/low.cpp").write_text('#include "facts/high.h"\n\nint low(int x) { return x; }\n')
    later, circle = complaints()
    assert later == "cpp/graph/low.cpp includes facts/high.h: 'graph' may not include 'facts'"
    assert circle.startswith("files of C++ include each other: ")


def test_a_circle(tree: Path) -> None:
    """A source and its header count as one file."""
    (tree / "graph/other.h").write_text('#include "low.h"\n')
    assert complaints() == []
    (tree / "graph/low.cpp").write_text('#include "other.h"\n\nint low(int x) { return x; }\n')
    (circle,) = complaints()
    assert "graph/low <- graph/other" in circle or "graph/other <- graph/low" in circle


def test_a_function_of_another_room(tree: Path) -> None:
    (tree / "graph/low.cpp").write_text("// int low(int x) { is defined in facts\n")
    (tree / "facts/high.cpp").write_text(
        "int low(int x) { return x; }\nint high(int x, int y) { return x; }\n"
    )
    assert complaints() == ["cpp/graph/low.h declares low, which facts defines"]
