"""The page about a quantized model: what is in it, and that it works in a browser."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes.report.macs import macs_of
from jit_passes.report.page import page
from jit_passes.report.page.lanes import HEIGHT, WIDTH, drawn, regions_of
from jit_passes.stages.annotate import FROZEN
from tests.command_line.running import Run, run_fixture  # noqa: F401  fixtures
from tests.planted import PLANTED
from tests.report.test_compare import Tokens
from tools import browser

SCALED = PLANTED["scaled channel"]
HEAD = {"version": 1, "rules": [{"module": "head", "keep_float": True}]}


@pytest.fixture(scope="module")
def models() -> tuple[torch.jit.ScriptModule, torch.jit.ScriptModule]:
    model = SCALED.model()
    how: dict[str, Any] = {"target": "reference", "config": HEAD}
    return model, jit_passes.quantize_script(model, SCALED.data(), **how)


@pytest.fixture(scope="module")
def text(models: tuple[torch.jit.ScriptModule, torch.jit.ScriptModule]) -> str:
    return page(*models, SCALED.data())


def data_of(text: str) -> list[dict[str, Any]]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    rows: list[dict[str, Any]] = json.loads(found)
    return rows


def test_values(models: tuple[torch.jit.ScriptModule, torch.jit.ScriptModule], text: str) -> None:
    """Errors are those of compare; histograms count each float value; ranges are the grid's."""
    model, quantized = models
    compared = jit_passes.compare(model, quantized, SCALED.data())
    rows = data_of(text)
    assert [row["name"] for row in rows] == [row.name for row in compared.rows]
    for row, expected in zip(rows, compared.rows, strict=True):
        assert row["clipped"] == expected.clipped and row["steps"] == expected.steps
        if expected.own_sqnr < 100:
            assert row["own"] == expected.own_sqnr and row["sqnr"] == expected.sqnr
        if row["kind"] != "output":
            start, width, counts = row["histogram"]
            assert sum(counts) == expected.elements
            assert start <= row["range"][0] and row["range"][1] <= start + width * len(counts)
    images = rows[0]
    x = torch.cat(SCALED.data())
    assert images["name"] == "x" and images["range"] == [float(x.min()), float(x.max())]
    low, high, step = images["grid"]
    codes = images["codes"][1] - images["codes"][0]
    assert high - low == pytest.approx(codes * step) and codes == 255
    first = compared.first
    assert first is not None and f"first to stand out: {first.name}" in html.unescape(text)


def test_facts(models: tuple[torch.jit.ScriptModule, torch.jit.ScriptModule], text: str) -> None:
    """Provenance, reasons, shares, the configuration; no folder, and nothing from elsewhere."""
    plain = html.unescape(re.sub(r"<[^>]+>", " ", text))
    made = jit_passes.provenance(models[1])
    assert made is not None
    for words in (
        *("ScaledChannel in int8", "6 of 7", "kept in float by", "keep_float: true"),
        *(made["torch"], made["jit_passes"], "region 1", "planted.py:41"),
    ):
        assert words in plain
    section = text[text.index('id="operators"') : text.index('id="errors"')]
    shares = [float(share) for share in re.findall(r'data-key="([\d.e-]+)">[\d.]+ %</td>', section)]
    assert len(shares) == 7 and sum(shares) == pytest.approx(1)
    assert str(Path(__file__).parent) not in text
    assert not re.search(r"https?:|src=|@import|url\(", text)
    assert len(text) < 100_000


def test_the_same_each_time_and_escaped(
    models: tuple[torch.jit.ScriptModule, torch.jit.ScriptModule], tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    jit_passes.report(*models, iter(SCALED.data()), path, title="<script>alert(1)</script> & more")
    first = path.read_text()
    jit_passes.report(*models, SCALED.data(), path, title="<script>alert(1)</script> & more")
    assert first == path.read_text()
    assert "<script>alert" not in first and "&lt;script&gt;alert(1)" in first


def test_graphs(models: tuple[torch.jit.ScriptModule, torch.jit.ScriptModule], text: str) -> None:
    """The first has what was folded and no integers; the second has regions and conversions."""
    section = text[text.index('id="graph"') : text.index('id="values"')]
    before, after = section.split("</figure>")[:2]
    assert "As written" in before and "Quantized" in after
    assert "int8" not in before.partition("<svg")[2] and "region" not in before.partition("<svg")[2]
    assert after.count('class="int8"') > 5 and 'class="converted"' in after
    kinds = {row.kind.partition("::")[2] for row in jit_passes.inspect(models[0])}
    assert any(f":{kind}<" in before.replace(" ", "") for kind in kinds)


class Norm(nn.Module):
    """Its batch norm is folded, and its dropout removed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(torch.relu(self.bn(self.conv(x))))


def test_the_graph_as_written() -> None:
    model, data = torch.jit.script(Norm().eval()), [torch.randn(2, 3, 4, 4)]
    found = page(model, jit_passes.quantize_script(model, data, target="reference"), data)
    section = found[found.index('id="graph"') : found.index('id="values"')]
    before, after = section.split("</figure>")[:2]
    names = [re.findall(r"<title>(.*?)</title>", graph) for graph in (before, after)]
    assert names == [["conv:conv2d", "bn:batch_norm", "drop:dropout"], ["conv:conv2d"]]


class Residual(nn.Module):
    """A sum that a relu clips, one of a float operand, and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x) + x)
        y = self.b(torch.cat([y, y], 1)[:, :4]) + torch.cummax(y, 1)[0]
        return self.c(torch.relu(y))


def drawn_operators(text: str) -> list[tuple[str, str]]:
    """Return the kinds of dots of the quantized graph, and the operators' names."""
    section = text[text.index('id="graph"') : text.index('id="values"')]
    return re.findall(r'<circle class="(\w+)".*?<title>(.*?)</title>', section.split("<figure>")[2])


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_what_is_on_integers(target: str) -> None:
    """The operators that `inspect` says are, in as many regions; a sum within a convolution too."""
    model, data = torch.jit.script(Residual().eval()), [torch.randn(2, 4, 4, 4)]
    foreseen = jit_passes.inspect(model, target=target)
    found = page(model, jit_passes.quantize_script(model, data, target=target), data)
    lines = drawn_operators(found)
    assert [(row.dtype, row.name) for row in foreseen] == lines
    assert {kind for kind, _ in lines} == {"int8", "float"}
    assert f"in {len(foreseen.regions)} regions" in found and "ollow: dynamic" not in found


@pytest.mark.parametrize("target", ["reference", "stock", "x86"])
def test_what_is_dynamic_or_has_weights_alone(target: str) -> None:
    """No number goes from one to another in codes: they are in no region, and no line is of codes.

    The table computes in float wherever the page speaks of it.
    """
    model, data = torch.jit.script(Tokens().eval()), [torch.randint(9, (3, 5))]
    found = page(model, jit_passes.quantize_script(model, data, target=target), data)
    dots = [("float", "table:embedding"), ("dynamic", "fc:linear"), ("dynamic", "head:linear")]
    assert drawn_operators(found) == dots
    section = found[found.index('id="graph"') : found.index('id="values"')]
    assert "Hollow: dynamic" in section and "· region" not in section and "onverted" not in section
    assert re.findall(r'<path class="(\w+)"', section.split("<figure>")[2]) == ["float"] * 2
    assert ">table:embedding · weight_only<" in section and ">fc:linear · dynamic<" in section
    assert re.search(
        r'<td>table:embedding</td><td>embedding</td><td class="float">w8 only</td>', found
    )
    errors = found[found.index('id="errors"') : found.index('id="graph"')]
    bars = re.findall(r'<button type="button" class="(.*?)".*?title="(.*?):', errors)
    assert bars[-1] == ("bar output", "output") and all(kind != "bar" for kind, _ in bars)
    assert target != "reference" or bars[0] == ("bar float", "table")


def test_latency(models: tuple[torch.jit.ScriptModule, torch.jit.ScriptModule], text: str) -> None:
    """Only where it is asked for; medians in milliseconds, of calls that take so long."""
    assert 'id="latency"' not in text
    timed = page(*models, SCALED.data(), latency=True)
    found = re.search(r'id="latency"><b>([\d.]+) to ([\d.]+) ms</b>', timed)
    assert found is not None and all(0 < float(ms) < 1000 for ms in found.groups())
    assert re.sub(r'<div id="latency">.*?</div>\n', "", timed) == text


@pytest.mark.parametrize("target", ["stock", "x86"])
def test_lowered(target: str) -> None:
    """Of compiled regions, what they give; a model of other operators too."""
    case = PLANTED["attention"]
    model, data = case.model(), case.data()
    quantized = jit_passes.quantize_script(model, data, target=target)
    rows = data_of(page(model, quantized, data))
    assert rows[-1]["kind"] == "output" and rows[-1]["sqnr"] is not None


class Divides(nn.Module):
    """By numbers near zero, which codes are zeros of."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 1 / self.head(self.fc(x))


def test_an_output_that_is_lost() -> None:
    """No signal is left where codes make it infinite; JSON has no number for it."""
    torch.manual_seed(0)
    model, data = torch.jit.script(Divides().eval()), [torch.randn(800, 4)]
    quantized = jit_passes.quantize_script(model, data, target="reference")
    found = page(model, quantized, data)
    assert "-inf dB" in found
    assert min(row["sqnr"] for row in data_of(found) if row["sqnr"] is not None) == -999


def test_the_command_that_makes_it() -> None:
    """The command has the mode, which is in the configuration, and the rules."""
    case = PLANTED["attention"]
    model, data = case.model(), case.data()
    how: dict[str, Any] = {"target": "reference", "mode": "static"}
    found = page(model, jit_passes.quantize_script(model, data, **how), data)
    command = "jit-passes quantize model.pt --data DATA --target reference --config layers.yaml"
    assert f"<code>{command}</code>" in found and "mode: static" in found
    config = {"version": 1, "rules": [{"module": "head", "keep_float": True}]}
    found = page(
        model, jit_passes.quantize_script(model, data, config=config, target="stock"), data
    )
    command = "jit-passes quantize model.pt --data DATA --target stock --config layers.yaml"
    assert f"<code>{command}</code>" in found
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model, data = torch.jit.script(net.eval()), [torch.rand(8, 3, 8, 8) for _ in range(4)]
    for correction, words in (("auto", ""), (None, " --correct-bias none")):
        plain = jit_passes.quantize_script(model, data, target="stock", bias_correction=correction)
        command = f"jit-passes quantize model.pt --data DATA --target stock{words}"
        assert f"<code>{command}</code>" in page(model, plain, data)


def test_multiply_accumulates() -> None:
    """Against counts by hand, of each form."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3, stride=2, groups=2)
            self.up = nn.ConvTranspose2d(6, 5, 2, stride=2)
            self.linear, self.lstm = nn.Linear(8, 7), nn.LSTM(8, 4, 2, bidirectional=True)

        def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
            for _ in range(3):
                y = torch.relu(y)
            attended = F.scaled_dot_product_attention(y, torch.cat([y, y], 1), torch.cat([y, y], 1))
            products = torch.matmul(y, y.transpose(1, 2))
            return [self.linear(self.up(self.conv(x))), products, self.lstm(y)[0], attended]

    model = torch.jit.script(Net().eval())
    module = FROZEN.enter(model, "forward")
    found = macs_of(module, "forward", ((torch.zeros(2, 4, 9, 9), torch.zeros(3, 5, 8)), {}), model)
    assert found == {
        "conv:conv2d": 2 * 6 * 4 * 4 * (4 // 2) * 3 * 3,
        "up:conv_transpose2d": 2 * 6 * 4 * 4 * 5 * 2 * 2,
        "linear:linear": 2 * 5 * 8 * 7 * 8,
        "matmul": 3 * 5 * 5 * 8,
        # Four gates; the second layer reads both directions of the first.
        "lstm:lstm": 3 * 5 * 2 * 4 * 4 * ((8 + 4) + (2 * 4 + 4)),
        "scaled_dot_product_attention": 3 * 5 * 10 * (8 + 8),
    }


class Branches(nn.Module):
    """A residual and a skip over it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        second = self.b(first)
        return torch.cat([self.c(second).flatten(1) + first.flatten(1), second.flatten(1)], 1)


def test_drawing() -> None:
    """Each line reads what it reads; no two values are in a lane at once; curves end at lines."""
    graph = jit_passes.normalized_graph(torch.jit.script(Branches().eval()))
    shown = [node for node in graph.nodes if not node.moves_data and "aten" in node.kind]
    shown = [node for node in shown if node.kind != "aten::flatten"]
    drawing = drawn(graph.nodes, shown)
    names = [node.name for node in shown]
    assert [(names[s], names[r]) for s, r in drawing.edges] == [
        ("a:conv2d", "b:conv2d"), ("b:conv2d", "c:conv2d"), ("a:conv2d", "add"),
        ("c:conv2d", "add"), ("b:conv2d", "cat"), ("add", "cat"),
    ]  # fmt: skip
    last = dict(drawing.edges)
    for source, end in last.items():
        for other in range(source + 1, end):
            assert drawing.lanes[other] != drawing.lanes[source]
    for (_, reader), curve in zip(drawing.edges, drawing.curves, strict=True):
        x = drawing.lanes[reader] * WIDTH + WIDTH // 2
        assert curve.endswith(f" {x} {reader * HEIGHT + HEIGHT // 2}")
    assert regions_of(drawing.edges, [True, True, False, True, False]) == [1, 1, 0, 1, 0]
    assert regions_of([(0, 2), (1, 2)], [True, True, False]) == [1, 2, 0]


ACTIONS = """<script>
window.addEventListener("load", () => {
  const table = document.getElementById("values-table"), rows = () => [...table.tBodies[0].rows];
  const names = () => rows().filter(row => !row.hidden).map(row => row.cells[0].textContent);
  const found = {errors: window.errors};
  table.tHead.rows[0].cells[3].firstChild.click(); found.up = names();
  table.tHead.rows[0].cells[3].firstChild.click(); found.down = names();
  const field = document.querySelector("input[data-for=values-table]");
  field.value = "HEAD linear"; field.dispatchEvent(new Event("input")); found.filtered = names();
  const panel = document.getElementById("panel");
  found.selected = panel.querySelector("strong").textContent;
  const bars = document.querySelectorAll(".bar");
  bars[0].click(); found.clicked = panel.querySelector("strong").textContent;
  found.drawn = panel.querySelectorAll("svg rect").length;
  found.told = panel.querySelector("p").textContent;
  found.behind = getComputedStyle(bars[0]).backgroundColor;
  document.querySelector(".bar.float").click();
  found.plain = panel.querySelector("p").textContent;
  bars[0].click();
  bars[0].dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  found.next = panel.querySelector("strong").textContent;
  found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const result = document.createElement("output");
  result.id = "found"; result.textContent = JSON.stringify(found); document.body.append(result);
});
</script>"""
ERRORS = "<script>window.errors = []; onerror = m => { errors.push(String(m)); };</script>"


@pytest.mark.skipif(not browser.find(), reason="no Chromium starts here: apt install chromium")
@pytest.mark.parametrize("width", [500, 900, 1400])
def test_in_a_browser(text: str, tmp_path: Path, width: int) -> None:
    """No error; sorting, filtering, bars and keys work; nothing is wider than the screen."""
    file = tmp_path / "page.html"
    file.write_text(
        text.replace("<head>", f"<head>{ERRORS}").replace("</body>", f"{ACTIONS}</body>")
    )
    elements = browser.opened(file, (width, 900), "--dump-dom")
    shown = re.search(r'<output id="found">(.*?)</output>', elements, re.S)
    assert shown is not None
    found = json.loads(html.unescape(shown[1]))
    rows = data_of(text)
    best_first = sorted(rows, key=lambda row: 1e9 if row["own"] is None else row["own"])
    assert found["errors"] == []
    assert found["up"] == [row["name"] for row in best_first]
    assert found["down"][0] == found["up"][-1] and found["down"] != found["up"]
    assert found["filtered"] == ["head:linear"]
    assert (found["selected"], found["clicked"], found["next"]) == (
        "expand:conv2d", rows[0]["name"], rows[1]["name"]
    )  # fmt: skip
    assert found["drawn"] == sum(count > 0 for count in rows[0]["histogram"][2])
    assert "dashed lines are the ends of the grid" in found["told"]
    assert "logarithms of counts" in found["plain"] and "dashed" not in found["plain"]
    assert found["behind"] == "rgba(0, 0, 0, 0)"  # of full height it would look like an error
    assert found["wide"] <= 0


def test_without_jinja2(
    models: tuple[torch.jit.ScriptModule, torch.jit.ScriptModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(jit_passes.JitPassesError, match=r"needs the package jinja2, .*pip install"):
        page(*models, SCALED.data())


def test_command(run: Run, tmp_path: Path) -> None:
    """The page of the function; nothing over an input."""
    model, data, config, quantized, out = (
        tmp_path / name for name in ("model.pt", "x.npz", "c.yaml", "int8.pt", "page.html")
    )
    torch.jit.save(SCALED.model(), model)
    np.savez(data, x=torch.cat(SCALED.data()).numpy())
    config.write_text(json.dumps(HEAD))
    how = ("--data", data, "--batch-size", 4)
    to = ("--target", "reference", "--config", config, "-o", quantized)
    assert run("quantize", model, *how, *to).code == 0
    done = run("report", model, quantized, *how, "-o", out, "--title", "Mine")
    assert done.code == 0, done.err
    assert done.out.startswith(f"{out}: ") and "<h1>Mine in int8</h1>" in out.read_text()
    loaded = torch.jit.load(model), torch.jit.load(quantized)
    assert out.read_text() == page(*loaded, SCALED.data(), title="Mine")
    assert run("report", model, quantized, *how, "-o", model).code == 3
    assert run("report", model, quantized, "-o", out).code == 2
    assert run("report", model, model, *how, "-o", out).code == 3
