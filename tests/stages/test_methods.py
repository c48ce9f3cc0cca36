"""Several methods in one model: each that is quantized, those that stay, and state among them."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.passes.test_freeze_calls import Swaps
from tests.processes import run_fresh
from tests.quantizing import seeded

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of its quantized tensors
TARGETS = ("stock", "reference", "x86")
METHODS = ["encode", "decode"]


class Coder(nn.Module):
    """An encoder and a decoder with a layer in common, and a method that stays in float."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Conv2d(8, 8, 3, padding=1)
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.decoder = nn.Sequential(nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
        self.judge = nn.Linear(3, 5)
        self.judged = 0
        self.register_buffer("scale", torch.full((1,), 1.5))

    @torch.jit.export
    def encode(self, x: Tensor, factor: float = 2.0) -> Tensor:
        return self.common(self.encoder(x)) * (factor * self.scale)

    @torch.jit.export
    def decode(self, z: Tensor) -> tuple[Tensor, Tensor]:
        y = self.decoder(self.common(z))
        return y, y.mean((2, 3))

    @torch.jit.export
    def rate(self, x: Tensor) -> Tensor:
        self.judged += 1
        return self.judge(x.mean((2, 3))) * self.scale * self.judged

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x, 1.0))[0]


def data_of(model: nn.Module, count: int = 4) -> dict[str, list[Tensor]]:
    x = [torch.randn(2, 3, 10, 10) for _ in range(count)]
    with torch.no_grad():
        return {"encode": x, "decode": [model.encode(batch) for batch in x]}


def saved(module: torch.jit.ScriptModule) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()


def close(found: Tensor, wanted: Tensor, floor: float = 28.0) -> bool:
    noise = (found - wanted).double().square().sum()
    return bool(10 * (wanted.double().square().sum() / noise).log10() > floor)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("from_file", [False, True], ids=["scripted", "from_file"])
def test_two_methods(target: str, from_file: bool) -> None:
    """Each is what it is when quantized alone, with nearest codes; others are float, to the bit."""
    model = seeded(Coder)
    script = torch.jit.script(model)
    data = data_of(model)
    if from_file:
        script = torch.jit.load(io.BytesIO(saved(script)))
    before, code = saved(script), script.code
    joined = jit_passes.quantize_script(
        script, data, methods=METHODS, target=target, progress=False
    )
    assert script.code == code
    for name, tensor in torch.jit.load(io.BytesIO(before)).state_dict().items():
        assert torch.equal(tensor, script.state_dict()[name])
    loaded = torch.jit.load(io.BytesIO(saved(joined)))
    x, z = data["encode"][0], data["decode"][0]
    with torch.no_grad():
        wanted = model.encode(x), model.decode(z)[0], model(x)
        alone = {
            name: jit_passes.quantize_script(
                script,
                data[name],
                method=name,
                target=target,
                weight_rounding=None,
                progress=False,
            )
            for name in METHODS
        }
        for found in (joined, copy.deepcopy(joined), loaded):
            assert set(found._c._method_names()) == {"encode", "decode", "rate", "forward"}
            assert torch.equal(found.encode(x), alone["encode"].encode(x))
            assert torch.equal(found.encode(x, factor=0.5), alone["encode"].encode(x, 0.5))
            for ours, theirs in zip(found.decode(z), alone["decode"].decode(z), strict=True):
                assert torch.equal(ours, theirs)
            assert close(found.encode(x), wanted[0]) and close(found.decode(z)[0], wanted[1])
            assert not torch.equal(found.encode(x), wanted[0])
            assert torch.equal(found(x), wanted[2])
            fresh = torch.jit.load(io.BytesIO(before))
            for _ in range(2):  # it counts its calls
                assert torch.equal(found.rate(x), fresh.rate(x))
            for name, kinds in (("encode", 2), ("decode", 2)):
                rows = jit_passes.coverage(found, name)
                assert len(rows.int8) == kinds == len(rows), rows
                assert rows.needs_package == (target != "stock")
            assert {row.dtype for row in jit_passes.coverage(found, "rate")} == {"float"}


def test_the_tools_take_a_method(tmp_path: Path) -> None:
    """`compare`, `provenance` and `inspect` look at one method of many."""
    model = seeded(Coder)
    script, data = torch.jit.script(model), data_of(model)
    joined = jit_passes.quantize_script(script, data, methods=METHODS, target="stock")
    for name, layer in (("encode", "encoder.0:conv2d"), ("decode", "decoder.1:conv2d")):
        compared = jit_passes.compare(script, joined, data[name], method=name)
        assert layer in {row.name for row in compared.rows} | {"encoder.0:conv2d"}
        assert 25 < compared.sqnr < 80
        made = jit_passes.provenance(joined, name)
        assert made is not None and (made["method"], made["batches"]) == (name, 4)
        inspected = jit_passes.inspect(script, target="stock", method=name)
        int8 = {row.name for row in jit_passes.coverage(joined, name).int8}
        assert {row.name for row in inspected if row.dtype == "int8"} >= int8
    with pytest.raises(jit_passes.JitPassesError, match="the model is lowered already"):
        jit_passes.quantize_script(joined, data["encode"], method="encode")
    for look in (
        lambda: jit_passes.compare(script, joined, data["encode"], method="rate"),
        lambda: jit_passes.provenance(joined),
        lambda: jit_passes.report(script, joined, data["encode"], tmp_path / "page.html"),
    ):
        with pytest.raises(jit_passes.JitPassesError, match="say method='decode' or method='enc"):
            look()
    jit_passes.report(script, joined, data["encode"], tmp_path / "page.html", method="encode")
    assert "encoder.0:conv2d" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "'decode' and 'encode' is" in str(jit_passes.coverage(joined))


def test_in_place_and_alone() -> None:
    """One method with its data as they are; the caller's module may become the result."""
    model = seeded(Coder)
    script, data = torch.jit.script(model), data_of(model)
    options: dict[str, Any] = {"methods": ["decode"], "target": "stock"}
    joined = jit_passes.quantize_script(script, data["decode"], **options)
    result = jit_passes.quantize_script(script, {"decode": data["decode"]}, inplace=True, **options)
    assert result is script
    z = data["decode"][1]
    assert torch.equal(joined.decode(z)[0], script.decode(z)[0])
    assert len(jit_passes.coverage(script, "decode").int8) == 2
    with torch.no_grad():
        assert torch.equal(script.encode(data["encode"][0]), model.encode(data["encode"][0]))


def test_a_rule_for_one_of_the_methods() -> None:
    """The rule says that other methods may have nothing of its kind."""
    model = seeded(Coder)
    script, data = torch.jit.script(model), data_of(model)
    rule: dict[str, Any] = {"module": "encoder.0", "keep_float": True}
    options: dict[str, Any] = {"methods": METHODS, "target": "stock"}
    unmatched = r"the method 'decode': .*matches nothing"
    with pytest.raises(jit_passes.JitPassesError, match=unmatched):
        jit_passes.quantize_script(script, data, config={"version": 1, "rules": [rule]}, **options)
    config = {"version": 1, "rules": [rule | {"allow_unmatched": True}]}
    joined = jit_passes.quantize_script(script, data, config=config, **options)
    assert [len(jit_passes.coverage(joined, name).int8) for name in METHODS] == [1, 2]


def test_a_file_loads_with_torch_alone(tmp_path: Path) -> None:
    model = seeded(Coder)
    data = data_of(model)
    joined = jit_passes.quantize_script(
        torch.jit.script(model), data, methods=METHODS, target="stock"
    )
    file = str(tmp_path / "coder.pt")
    joined.save(file)
    calls = [(name, data[name][0]) for name in METHODS] + [("forward", data["encode"][0])]
    torch.save(
        [{"file": file, "method": name, "args": (x,)} for name, x in calls],
        tmp_path / "manifest.pt",
    )
    run_fresh(tmp_path / "manifest.pt")
    with torch.no_grad():
        for (name, x), leaves in zip(calls, torch.load(tmp_path / "outputs.pt"), strict=True):
            found = getattr(joined, name)(x)
            assert torch.equal(leaves[0][1], found[0] if isinstance(found, tuple) else found)
    again = jit_passes.quantize_script(
        torch.jit.script(seeded(Coder)), data, methods=METHODS, target="stock"
    )
    assert saved(again) == saved(joined)


class Step(NamedTuple):
    """The result of a method, a class of the model's own code."""

    logits: Tensor
    state: Tensor


class Stepper(nn.Module):
    """Methods without data: a table, a recurrent layer, and state that one method has alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rnn, self.head = nn.Embedding(40, 16), nn.GRU(16, 24), nn.Linear(24, 40)
        self.seen = 0

    def forward(self, ids: Tensor) -> Step:
        y, h = self.rnn(self.table(ids))
        return Step(self.head(y), h)

    @torch.jit.export
    def step(self, id: Tensor, state: Tensor) -> Step:
        self.seen += 1
        y, h = self.rnn(self.table(id)[None], state)
        return Step(self.head(y[0]) * self.seen, h)


@pytest.mark.parametrize("target", TARGETS)
def test_without_data(target: str) -> None:
    """Each method counts in its own state; named tuples and weights in common are right."""
    model = seeded(Stepper)
    script = torch.jit.script(model)
    joined = jit_passes.quantize_script(script, methods=["forward", "step"], target=target)
    ids, state = torch.randint(40, (5, 3)), torch.zeros(1, 3, 24)
    loaded = torch.jit.load(io.BytesIO(saved(joined)))
    fresh = torch.jit.script(seeded(Stepper))
    with torch.no_grad():
        for found in (joined, loaded):
            assert close(found(ids).logits, model(ids).logits)
        for _ in range(3):
            wanted = fresh.step(ids[0], state)
            for found in (joined, loaded):
                step = found.step(ids[0], state)
                assert close(step.logits, wanted.logits) and close(step.state, wanted.state)
    assert script.seen == 0


class Cached(nn.Module):
    """A buffer under two names, one of which a method writes to."""

    def __init__(self, aliased: bool) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0
        self.register_buffer("cache", torch.zeros(2, 4))
        self.register_buffer("view", self.cache[:1] if aliased else torch.zeros(1, 4))

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.cache.copy_(y)
        return y

    @torch.jit.export
    def decode(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.view

    @torch.jit.export
    def count(self) -> int:
        self.calls += 1
        return self.calls

    @torch.jit.export
    def counted(self) -> int:
        return self.calls


@pytest.mark.parametrize("methods", [METHODS, ["encode"], ["decode"]])
@pytest.mark.parametrize("aliased", [False, True])
def test_state_in_common(methods: list[str], aliased: bool) -> None:
    """State that a method writes is there for others, under another name too, quantized or not."""
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    model = torch.jit.script(seeded(lambda: Cached(aliased)))
    joined = jit_passes.quantize_script(model, methods=methods, mode="dynamic", target="stock")
    assert hasattr(joined, "common_state") == aliased
    loaded = torch.jit.load(io.BytesIO(saved(joined)))
    with torch.no_grad():
        for found in (joined, loaded):  # in deep copies of PyTorch, no memory is under two names
            before, encoded = found.decode(y), found.encode(x)
            wanted = before + encoded[:1] if aliased else before
            torch.testing.assert_close(found.decode(y), wanted, rtol=0, atol=1e-6)
    assert not model.cache.any()


def test_a_number_that_another_method_changes() -> None:
    """The number is no constant of a method that reads it; two methods in float stay."""
    model = torch.jit.script(Cached(aliased=False).eval())
    for methods in (["counted"], ["count"], ["count", "counted"]):
        joined = jit_passes.quantize_script(model, methods=methods, target="stock")
        assert [joined.count(), joined.counted(), joined.count()] == [1, 1, 2]
        assert [model.counted(), joined.counted()] == [0, 2]
    apart = jit_passes.quantize_script(model, {"encode": [torch.randn(2, 4)]}, methods=["encode"])
    assert [apart.count(), apart.counted(), apart.count()] == [1, 1, 2]


@pytest.mark.parametrize("path", ["nothing", "", "scale.of", "common.nothing"])
def test_state_that_is_none(path: str) -> None:
    """The pass that keeps it says what is not there."""
    freeze = jit_passes.PassCall("freeze", state=[path])
    script = torch.jit.script(seeded(Coder))
    with pytest.raises(jit_passes.PassError, match=f"the module has no attribute '{path}'"):
        jit_passes.Pipeline("freeze", (freeze,)).run(script)


class Forked(nn.Module):
    """A method whose branches run on their own and read what another method changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.total = nn.Linear(4, 4), torch.zeros(4)

    def branch(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.total

    def forward(self, x: Tensor) -> Tensor:
        futures: list[torch.jit.Future[Tensor]] = []
        for _ in range(x.size(0)):
            futures.append(torch.jit.fork(self.branch, x))
        y = torch.zeros_like(x)
        for future in futures:
            y = y + torch.jit.wait(future)
        return y

    @torch.jit.export
    def add(self, x: Tensor) -> Tensor:
        self.total = self.total + x
        return self.total


def test_state_in_branches_of_their_own() -> None:
    """Branches cannot move; the error says which method, which attribute and what to do."""
    script = torch.jit.script(Forked().eval())
    message = "'forward' uses 'total', .* runs on its own .*: quantize one method alone"
    with pytest.raises(jit_passes.JitPassesError, match=message):
        jit_passes.quantize_script(script, methods=["add"], target="stock")
    alone = jit_passes.quantize_script(script, mode="dynamic", target="stock")
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert close(alone(x), script(x))


class Detector(nn.Module):
    """A detector of speech that hears a stream, one chunk a call, at two rates; `reset` ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.slow, self.fast = Ear(32), Ear(64)
        self.rate = 0

    def forward(self, x: Tensor, rate: int) -> Tensor:
        if self.rate != rate:
            self.reset()
        if len(self.memory.context) == 0:
            self.memory.context = torch.zeros(x.shape[0], 8)
        heard = torch.cat([self.memory.context, x], 1)
        ear_state = self.memory.state
        if rate == 16:
            y, state = self.fast(heard, ear_state)
        else:
            y, state = self.slow(heard, ear_state)
        self.memory.state = state
        self.memory.context = x[:, -8:]
        self.rate = rate
        return y

    @torch.jit.export
    def reset(self) -> None:
        self.memory.context, self.memory.state = torch.zeros(0), torch.zeros(0)
        self.rate = 0

    @torch.jit.export
    def last_rate(self) -> int:
        return self.rate


class Memory(nn.Module):
    """The rest of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.context, self.state = torch.zeros(0), torch.zeros(0)


class Ear(nn.Module):
    """Convolutions and a cell, which takes its last state or none."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv1d(1, 16, 8, 4), nn.ReLU(), nn.Conv1d(16, 24, 3, 2))
        self.cell, self.head = nn.LSTMCell(24, 24), nn.Conv1d(24, 1, 1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.convs(x[:, None])).mean(2)
        if len(state):
            h, c = self.cell(y, (state[0], state[1]))
        else:
            h, c = self.cell(y)
        return torch.sigmoid(self.head(torch.relu(h)[:, :, None])), torch.stack([h, c])


def heard(model: Any, chunks: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.stack([model(chunk, 16) for chunk in chunks])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["auto", "dynamic"])
@pytest.mark.parametrize("methods", [["forward"], ["forward", "reset"]])
def test_a_stream_and_its_reset(target: str, mode: str, methods: list[str]) -> None:
    """A method in float resets what the quantized one left, also behind a file."""
    script = torch.jit.script(seeded(Detector))
    chunks = [torch.randn(2, 64) for _ in range(6)]
    data = {"forward": [(chunk, 16) for chunk in chunks]}
    joined = jit_passes.quantize_script(
        script, data, methods=methods, target=target, mode=mode, progress=False
    )
    loaded = torch.jit.load(io.BytesIO(saved(joined)))
    wanted = heard(script, chunks)
    for found in (joined, copy.deepcopy(joined), loaded):
        first = heard(found, chunks)
        assert close(first, wanted, 30.0) and found.last_rate() == 16
        assert not torch.equal(heard(found, chunks), first)
        found.reset()
        assert found.last_rate() == 0
        assert torch.equal(heard(found, chunks), first)
    rows = {row.name: row for row in jit_passes.coverage(joined, "forward")}
    for name in ("fast.cell:lstm_cell", "fast.cell:lstm_cell#1"):
        assert (rows[name].dtype, rows[name].mode) == ("int8", "dynamic"), rows[name]
    assert list(joined.common_state.memory.state.shape) == [2, 2, 24]


def test_what_cannot_be() -> None:
    model = seeded(Coder)
    script, data = torch.jit.script(model), data_of(model, 1)
    for message, given, options in (
        ("one of the two", data, {"methods": METHODS, "method": "encode"}),
        ("a list of names of methods, got 'encode'", data, {"methods": "encode"}),
        (r"names of methods, got \[\]", data, {"methods": []}),
        ("no method 'encoder', only: ", data, {"methods": ["encoder"]}),
        (r"of several methods, calibration_data is a dict .*, \{'.*': \.\.\.\}, not of type list",
         data["encode"], {"methods": METHODS}),
        ("for 'encoded', which is none of .*did you mean 'encode'",
         {"encoded": []}, {"methods": METHODS}),
        ("the method 'decode': .*empty", {**data, "decode": []}, {"methods": METHODS}),
        ("the method 'decode': ranges come from",
         {"encode": data["encode"]}, {"methods": METHODS, "mode": "static"}),
    ):  # fmt: skip
        with pytest.raises(jit_passes.JitPassesError, match=message):
            jit_passes.quantize_script(script, given, **options)
    with pytest.raises(jit_passes.JitPassesError, match="'forward' picks modules as it runs"):
        jit_passes.quantize_script(torch.jit.script(Swaps().eval()), methods=["forward"])
    model.quantized_encode = 3
    with pytest.raises(jit_passes.JitPassesError, match="attribute 'quantized_encode' of its own"):
        jit_passes.quantize_script(torch.jit.script(model), data, methods=METHODS)


class Encoder(nn.Module):
    """A method that another one calls, and adds a layer to; embeddings and recurrent layers too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(400, 64)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.conv, self.up = nn.Conv1d(64, 64, 3, padding=1), nn.ConvTranspose1d(64, 64, 2, 2)
        self.head = nn.Linear(64, 3)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        y = self.layers(self.embedding(x)).transpose(1, 2)
        return self.up(torch.relu(self.conv(y)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x).mean(2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_common_weights_are_stored_once(target: str, mode: str) -> None:
    """A second method adds its code to a file and no weights, also to one that is saved again."""
    script = torch.jit.script(seeded(Encoder))
    data = [torch.randint(0, 400, (2, 12)) for _ in range(4)]
    rules = {"version": 1, "rules": [{"op": "embedding", "mode": "weight_only"}]}
    both = ["forward", "encode"]

    def quantized(**options: Any) -> torch.jit.ScriptModule:
        return jit_passes.quantize_script(
            script, target=target, mode=mode, config=rules, bias_correction=None, progress=False,
            **options,
        )  # fmt: skip

    joined = quantized(calibration_data=dict.fromkeys(both, data), methods=both)
    alone = {
        name: quantized(calibration_data=data, method=name, weight_rounding=None) for name in both
    }
    file = saved(joined)
    largest = script.layers[0].weight.numel()  # in bytes, as 8-bit codes, and less than any more
    assert len(file) - len(saved(alone["forward"])) < largest
    loaded = torch.jit.load(io.BytesIO(file))
    assert len(saved(loaded)) < len(file) + 1024
    with torch.no_grad():
        for found in (joined, loaded, copy.deepcopy(loaded)):
            for name in both:
                ours, theirs = getattr(found, name), getattr(alone[name], name)
                assert torch.equal(ours(data[0]), theirs(data[0]))


def test_state_of_methods_is_their_own() -> None:
    """Buffers of equal content stay apart: each method changes those of its own."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("ours", torch.zeros(8))
            self.register_buffer("theirs", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            self.ours += 1
            return self.linear(x) + self.ours

        @torch.jit.export
        def other(self, x: Tensor) -> Tensor:
            self.theirs += 2
            return self.linear(x) + self.theirs

    x = torch.randn(3, 8)
    script = torch.jit.script(seeded(Counts))
    joined = jit_passes.quantize_script(
        script, {"forward": [x], "other": [x]}, methods=["forward", "other"], target="stock",
        progress=False,
    )  # fmt: skip
    with torch.no_grad():
        first, second = joined(x), joined.other(x)
        assert torch.allclose(joined(x), first + 1) and torch.allclose(joined.other(x), second + 2)


@pytest.mark.parametrize("lazy", ["conjugate", "negative"])
def test_views_of_other_numbers_are_not_shared(lazy: str) -> None:
    """A conjugate and a negative have the bytes of what they are of."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.numbers = torch.arange(1.0, 9.0)
            if lazy == "conjugate":
                self.numbers = torch.complex(self.numbers, self.numbers)
            turn = torch.conj if lazy == "conjugate" else torch._neg_view
            self.turned = turn(self.numbers)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).sum() * self.numbers

        @torch.jit.export
        def other(self, x: Tensor) -> Tensor:
            return self.linear(x).sum() * self.turned

    x = torch.randn(3, 8)
    script = torch.jit.script(seeded(Turned))
    joined = jit_passes.quantize_script(
        script, {"forward": [x], "other": [x]}, methods=["forward", "other"], target="stock",
        progress=False,
    )  # fmt: skip
    with torch.no_grad():
        for name in ("forward", "other"):
            torch.testing.assert_close(
                getattr(joined, name)(x), getattr(script, name)(x), rtol=0.1, atol=0.1
            )
