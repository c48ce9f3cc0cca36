"""Runs saved modules in a process that knows torch and nothing else.

    python -m tests.fresh MANIFEST

The manifest, written by torch.save, is a list of dicts with the file of a module, the method and
the arguments; beside it, `outputs.pt` receives what each module returned, leaf by leaf.
"""

import sys
from pathlib import Path

import torch

from tests.compare import call, leaves


def main(manifest: Path) -> None:
    """Loads and runs every module of `manifest`."""
    outputs = []
    for entry in torch.load(manifest, weights_only=True):
        module = torch.jit.load(entry["file"])
        with torch.no_grad():
            outputs.append(list(leaves(call(module, entry["args"], entry["method"]))))
    assert "jit_passes" not in sys.modules
    torch.save(outputs, manifest.with_name("outputs.pt"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
