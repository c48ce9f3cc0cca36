"""Every form of data gives the batches that the same tensors give in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from torch import Tensor

import jit_passes
from jit_passes import JitPassesError
from jit_passes.command_line.counting import count_batches
from jit_passes.command_line.data import Samples, data_of, random_data, read
from jit_passes.command_line.images import Images
from tests.command_line.running import (  # noqa: F401  fixtures
    Net,
    Run,
    images,
    model_fixture,
    run_fixture,
    saved,
)

Writer = Callable[[Path, Tensor], Path]


def written(path: Path, write: Callable[[Path], object]) -> Path:
    write(path)
    return path


def write_safetensors(path: Path, x: Tensor) -> Path:
    save = pytest.importorskip("safetensors.torch").save_file
    return written(path / "x.safetensors", lambda p: save({"images": x}, p))


def write_folder(path: Path, x: Tensor) -> Path:
    """Two files, taken in the order of their names."""
    for name, part in (("b.npy", x[5:]), ("a.npy", x[:5])):
        np.save(path / name, part.numpy())
    (path / "notes.txt").write_text("of no matter")
    return path


FORMS: dict[str, Writer] = {
    "npy": lambda p, x: written(p / "x.npy", lambda f: np.save(f, x.numpy())),
    "npz": lambda p, x: written(p / "x.npz", lambda f: np.savez(f, images=x.numpy())),
    "npz_unnamed": lambda p, x: written(p / "x.npz", lambda f: np.savez(f, x.numpy())),
    "tensor": lambda p, x: written(p / "x.pt", lambda f: torch.save(x, f)),
    "dict": lambda p, x: written(p / "x.pt", lambda f: torch.save({"images": x}, f)),
    "tuple": lambda p, x: written(p / "x.pt", lambda f: torch.save((x,), f)),
    "batches": lambda p, x: written(p / "x.pth", lambda f: torch.save(list(x.split(5)), f)),
    "big_endian": lambda p, x: written(
        p / "x.npz", lambda f: np.savez(f, images=x.numpy().astype(">f4"))
    ),
    "long_double": lambda p, x: written(
        p / "x.npy", lambda f: np.save(f, x.numpy().astype(np.longdouble))
    ),
    "double": lambda p, x: written(p / "x.npy", lambda f: np.save(f, x.double().numpy())),
    "safetensors": write_safetensors,
    "folder": write_folder,
}


def first_of(batch: object) -> Tensor:
    if isinstance(batch, dict):
        (batch,) = batch.values()
    elif isinstance(batch, tuple):
        (batch,) = batch
    assert isinstance(batch, Tensor) and batch.dtype == torch.float32
    return batch


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, model: Path, tmp_path: Path) -> None:
    """Five samples a batch, twice over; the limit counts batches."""
    folder = tmp_path / "data"
    folder.mkdir()
    path, method = FORMS[form](folder, images()), torch.jit.load(model).forward
    data = data_of(path, 5, None, None, method)
    for _ in range(2):
        found = [first_of(batch) for batch in data]
        assert torch.equal(torch.cat(found), images())
        sizes = [5, 5, 2]
        assert [len(batch) for batch in found] == sizes
    if form != "folder":
        assert len(data) == 3
    limited = data_of(path, 5, 2, None, method)
    assert torch.equal(torch.cat([first_of(batch) for batch in limited]), images()[:10])


def test_arguments_without_axis(model: Path, tmp_path: Path) -> None:
    """Arguments without an axis go with every batch, as numbers."""
    path = tmp_path / "x.npz"
    np.savez(path, images=images().numpy(), factor=np.array(0.5))
    batches = list(data_of(path, 5, None, None, torch.jit.load(model).forward))
    assert [batch["factor"] for batch in batches] == [0.5] * 3
    torch.jit.load(model)(**batches[0])


@pytest.mark.parametrize("suffix", ["npy", "npz", "pt", "safetensors"])
def test_files_of_other_forms(suffix: str, tmp_path: Path) -> None:
    """Text, and what is no tensors."""
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"x.{suffix}"
    path.write_text("no tensors")
    with pytest.raises(JitPassesError, match=rf"x\.{suffix}"):
        read(path)


def test_nothing_is_executed(tmp_path: Path) -> None:
    """Pickles that would call something are refused, in .pt and in .npy."""

    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.write_text, (tmp_path / "sprung", ""))

    torch.save(Trap(), tmp_path / "x.pt")
    np.save(tmp_path / "x.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    for name in ("x.pt", "x.npy"):
        with pytest.raises(JitPassesError):
            read(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (Samples("f", (torch.zeros(3), torch.zeros(4))), "0 3, 1 4"),
        (Samples("f", (torch.zeros(0, 3),)), "no samples"),
        (Samples("f", named={}), "no samples"),
        (Samples("f", (torch.tensor(3.0),)), "no samples"),
    ],
)
def test_counts(samples: Samples, words: str) -> None:
    with pytest.raises(JitPassesError, match=words):
        samples.count()


@pytest.mark.parametrize(
    "texts", [("3x",), ("x=3x4:float99",), ("a=3x4", "3x4"), ("3*4",)], ids=str
)
def test_bad_random(texts: tuple[str, ...], model: Path) -> None:
    with pytest.raises(click.UsageError, match="--random"):
        random_data(texts, 1, torch.jit.load(model).forward)


def test_random_without_samples(model: Path) -> None:
    with pytest.raises(click.UsageError, match="--random 0x3x8x8: there are no samples in it"):
        random_data(("0x3x8x8",), 1, torch.jit.load(model).forward)


@pytest.mark.filterwarnings("ignore:'torch.load' received a zip file:UserWarning")
def test_a_model_in_place_of_data(model: Path, tmp_path: Path) -> None:
    """Scripted, or pickled; PyTorch's advice to load it without care is not repeated."""
    with pytest.raises(JitPassesError, match="this is a model, and data are tensors") as caught:
        read(model)
    assert "weights_only" not in str(caught.value)
    torch.save(torch.nn.Linear(2, 2), tmp_path / "eager.pt")
    with pytest.raises(JitPassesError, match="it holds objects, and data are tensors") as caught:
        read(tmp_path / "eager.pt")
    assert "weights_only" not in str(caught.value)


def test_random(tmp_path: Path) -> None:
    """Normal floats, integers 0 and 1; the same each time."""

    class Embeds(torch.nn.Module):
        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            return ids + x

    method = torch.jit.load(saved(tmp_path / "m.pt", Embeds())).forward
    data = random_data(("x=64x64", "ids=64x64:int64"), 2, method)
    first, second = data
    assert first["ids"].dtype == torch.int64 and set(first["ids"].unique().tolist()) == {0, 1}
    assert abs(float(first["x"].mean())) < 0.06 and abs(float(first["x"].std()) - 1) < 0.06
    assert not torch.equal(first["x"], second["x"])
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(data, (first, second), strict=True))


def test_images(model: Path, tmp_path: Path) -> None:
    """A picture of two halves: the middle is cropped, channels and scale are those asked for."""
    pil = pytest.importorskip("PIL.Image")
    folder = tmp_path / "photos"
    folder.mkdir()
    pixels = np.zeros((20, 40, 3), dtype=np.uint8)
    pixels[:, 20:] = (255, 128, 64)
    pil.fromarray(pixels).save(folder / "a.png")
    pil.fromarray(pixels[:, ::-1]).save(folder / "b.bmp")
    chosen = Images((8, 14), (0.5, 0.25, 0.0), (0.5, 0.5, 0.25))
    data = data_of(folder, 4, None, chosen, torch.jit.load(model).forward)
    ((batch,),) = data
    assert batch.shape == (2, 3, 8, 14) and len(data) == 1
    color = (torch.tensor([255, 128, 64]) / 255 - torch.tensor([0.5, 0.25, 0])) / torch.tensor(
        [0.5, 0.5, 0.25]
    )
    black = torch.tensor([0, 0, 0]) - torch.tensor([1, 0.5, 0])
    for left, right, picture in ((black, color, batch[0]), (color, black, batch[1])):
        # The border is blurred over two pixels on each side.
        assert torch.allclose(picture[:, :, :5], left.reshape(3, 1, 1).expand(3, 8, 5), atol=1e-6)
        assert torch.allclose(picture[:, :, 9:], right.reshape(3, 1, 1).expand(3, 8, 5), atol=1e-6)


def test_images_need_what_the_model_was_trained_with(run: Run, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_text("no picture")
    arguments = ("quantize", model, "--data", folder, "-o", tmp_path / "o.pt")
    done = run(*arguments)
    assert done.code == 3 and "--mean" in done.err
    assert run(*arguments, "--image-size", 8).code == 2
    assert run(*arguments, "--image-size", "8x", "--mean", 0, "--std", 1).code == 2
    broken = run(*arguments, "--image-size", 8, "--mean", 0, "--std", 1)
    assert broken.code == 3 and ("a.jpg" in broken.err or "Pillow" in broken.err)
    np.save(folder / "a.npy", images().numpy())
    assert "both" in run(*arguments).err


def save_all(folder: Path) -> None:
    """Files of 5, 3, 4, 2 and 1 samples in all forms but safetensors, and a list of 2 batches."""
    folder.mkdir()
    x = torch.randn(5, 3, 8, 8)
    np.save(folder / "a.npy", x.numpy())
    np.savez(folder / "b.npz", x[:3].numpy())
    np.savez_compressed(folder / "c.npz", images=x[:4].double().numpy())
    torch.save({"images": x[:2]}, folder / "d.pt")
    torch.save((x[:1],), folder / "e.pth")
    torch.save([x[:1], x[:4]], folder / "f.pt")


@pytest.mark.parametrize(("size", "total"), [(2, 3 + 2 + 2 + 1 + 1 + 2), (100, 5 + 2)])
def test_a_folder_knows_its_batches(tmp_path: Path, model: Path, size: int, total: int) -> None:
    """Without reading more than headers, so that a progress bar has a total."""
    save_all(tmp_path / "data")
    method = torch.jit.load(model).forward
    data = data_of(tmp_path / "data", size, None, None, method)
    assert len(data) == total == len(list(data))
    assert len(data_of(tmp_path / "data", size, 3, None, method)) == 3


def test_files_that_do_not_say(tmp_path: Path, model: Path) -> None:
    """A file that cannot be read is told when it is read, and until then nothing is counted."""
    folder = tmp_path / "data"
    save_all(folder)
    (folder / "g.npy").write_bytes(b"no array")
    data = data_of(folder, 2, None, None, torch.jit.load(model).forward)
    with pytest.raises(TypeError, match="not known"):
        len(data)
    with pytest.raises(JitPassesError, match=r"no file of the form \.npy"):
        list(data)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no array", "it is damaged, or another file"),
        (b"PK\x03\x04 cut", ""),
        (None, "it holds objects of Python"),
    ],
)
def test_damaged_arrays(suffix: str, content: bytes | None, why: str, tmp_path: Path) -> None:
    """The advice is how to write a file, and not NumPy's, to load objects that may be harmful."""
    path = tmp_path / f"x{suffix}"
    if content is None:
        save = np.savez if suffix == ".npz" else np.save
        save(path, np.array([{}]))
    else:
        path.write_bytes(content)
    call = "np.savez(path, x=samples)" if suffix == ".npz" else "np.save(path, samples)"
    with pytest.raises(JitPassesError, match=re.escape(f"; write numbers with {call}")) as error:
        read(path)
    text = str(error.value)
    assert f"{path}: this is no file of the form {suffix} with tensors: {why}" in text
    assert "pickle" not in text and "unsafely" not in text


def test_no_more_files_are_counted_than_are_read(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "data"
    save_all(folder)
    (folder / "g.npy").write_bytes(b"no array")
    method = torch.jit.load(model).forward
    assert len(data_of(folder, 2, 4, None, method)) == 4
    with pytest.raises(TypeError, match="not known"):
        len(data_of(folder, 2, 12, None, method))


@pytest.mark.parametrize("shown", [False, True])
def test_batches_are_counted_for_a_bar_alone(
    shown: bool, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count opens all files."""
    save_all(tmp_path / "data")
    loaded = torch.jit.load(model)
    data = data_of(tmp_path / "data", 2, None, None, loaded.forward)
    counted: list[tuple[object, ...]] = []

    def count(*arguments: object) -> int:
        counted.append(arguments)
        return 11

    monkeypatch.setattr("jit_passes.command_line.data.count_batches", count)
    jit_passes.calibrate(jit_passes.prepare(loaded), data, progress=shown)
    assert len(counted) == shown


def test_plain_numbers_beside_tensors(tmp_path: Path) -> None:
    """Plain numbers have no axis of samples, and each batch gets them."""
    torch.save({"x": torch.randn(5, 3), "scale": 2.5, "flag": True}, tmp_path / "a.pt")
    torch.save((torch.randn(4, 3), 2.5, True), tmp_path / "b.pt")
    assert count_batches(sorted(tmp_path.iterdir()), 2) == 5


def test_safetensors_are_counted(tmp_path: Path) -> None:
    write_safetensors(tmp_path, torch.randn(5, 3, 8, 8))
    assert count_batches(sorted(tmp_path.iterdir()), 2) == 3
