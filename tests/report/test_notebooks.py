"""Reports as notebooks show them: the cells of the printed tables, as HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import jit_passes
from jit_passes.tables import html_table
from tests.planted import PLANTED

CASE = PLANTED["scaled channel"]


class Cells(HTMLParser):
    """The texts of cells, row by row, and whether each element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def reports() -> dict[str, Any]:
    model, data = CASE.model(), CASE.data()
    quantized = jit_passes.quantize_script(model, data, target="reference")
    qat = jit_passes.prepare_qat(model, target="reference")
    qat.train()
    qat(data[0])
    return {
        "coverage": jit_passes.coverage(quantized),
        "inspection": jit_passes.inspect(model, target="reference"),
        "comparison": jit_passes.compare(model, quantized, data),
        "parity": jit_passes.parity(qat, jit_passes.convert(qat), data),
        "profile": jit_passes.profile(model, data),
        "sensitivity": jit_passes.sensitivity(model, data, layers="head*", target="reference"),
    }


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return reports()


@pytest.mark.parametrize(
    "name", ["coverage", "inspection", "comparison", "parity", "profile", "sensitivity"]
)
def test_cells(found: dict[str, Any], name: str) -> None:
    """Each row of the table stands in a line of the printed one."""
    shown = found[name]
    rows = Cells(shown._repr_html_()).rows
    lines = [line.split() for line in str(shown).splitlines()]
    assert len(rows) > 1 and len({len(row) for row in rows}) == 1
    for row in rows[1:]:
        words = " ".join(row).split()
        assert words in [line[: len(words)] for line in lines], words


def test_rewrites() -> None:
    """A row for each match, with the reason where it was refused."""

    def pattern(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    def replacement(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, 0)

    result = jit_passes.RewriteRule("clamps", pattern, replacement).apply(CASE.model())
    head, *rows = Cells(result._repr_html_()).rows
    assert len(head) == 4 and len(rows) == len(result.matches) > 1
    assert [row[1] for row in rows] == [match.name for match in result.rewritten]
    assert f"clamps: {len(rows)} rewritten" in result._repr_html_()


def test_tuned() -> None:
    tuned = jit_passes.tune(CASE.model(), CASE.data(), budget=1, target="reference")
    assert tuned._repr_html_() == f"<pre>{tuned}</pre>"


def test_empty() -> None:
    empty = jit_passes.coverage(torch.jit.script(torch.nn.ReLU().eval()))
    assert str(empty) == "no operator with weights, and no matrix product"
    assert len(Cells(empty._repr_html_()).rows) == 1


def test_texts_are_escaped() -> None:
    """Names of values are the user's."""
    text = html_table(("<a>",), [("b & <i>",)], "<one>\ntwo", "'\"")
    assert Cells(text).rows == [["<a>"], ["b & <i>"]]
    assert "<one>" not in text and "<br>two" in text and "<i>" not in text
