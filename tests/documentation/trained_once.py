"""Runs a tutorial as `python tutorial` does, but networks that several of them train train once.

    python tests/documentation/trained_once.py FOLDER TUTORIAL

`train` of `digits.py` has one result for a network, its weights, its data and its options. The
first tutorial keeps it in the folder, with the state of the random numbers; the next one loads it.
A model that trains with quantization is not kept: it is what its tutorial is about.
"""

from __future__ import annotations

import hashlib
import io
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Train = Callable[..., nn.Module]


def digest(*parts: Any) -> str:
    """Return a name for what `torch.save` writes of these."""
    file = io.BytesIO()
    torch.save(parts, file)
    return hashlib.sha256(file.getvalue()).hexdigest()[:32]


def once(train: Train, folder: Path) -> Train:
    """Return `train`, which keeps in the folder what it has made of a network in Python."""

    def trained(model: nn.Module, data: Any, **options: Any) -> nn.Module:
        if isinstance(model, torch.jit.ScriptModule):
            return train(model, data, **options)
        before = (str(model), dict(model.state_dict()), tuple(data), sorted(options.items()))
        path = folder / f"{digest(*before, torch.get_rng_state())}.pt"
        if path.exists():
            state, numbers = torch.load(path)
            model.load_state_dict(state)
            torch.set_rng_state(numbers)
            return model.eval()
        train(model, data, **options)
        partial = path.with_suffix(f".{os.getpid()}")
        torch.save((model.state_dict(), torch.get_rng_state()), partial)
        partial.rename(path)  # others find all of it or nothing
        return model

    return trained


def run(folder: Path, tutorial: Path) -> None:
    """Run the tutorial, in this process."""
    sys.argv = [str(tutorial)]
    sys.path[0] = str(tutorial.parent)
    import digits

    digits.train = once(digits.train, folder)
    runpy.run_path(str(tutorial), run_name="__main__")


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
