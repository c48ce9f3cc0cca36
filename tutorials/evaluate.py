"""Evaluates saved modules the way a deployment would: with torch, and nothing of jit_passes.

    python tutorials/evaluate.py FLOAT.pt INT8.pt DATA.pt

`DATA.pt` holds `{"x": images, "y": labels}`. One line of JSON goes to standard output: for
`float` and `int8` each the logits, the top-1 in percent and the median latency in milliseconds.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor

BATCHES = (1, 64)
ROUNDS = 60
WARM_UP = 10  # TorchScript specializes and optimizes its graph during the first calls


def main(float_path: str, int8_path: str, data_path: str) -> None:
    """Evaluates both modules and prints the JSON."""
    torch.set_num_threads(1)  # what one core does; steady, too, where others use the machine
    data = torch.load(data_path, weights_only=True)
    float_module = torch.jit.load(float_path).eval()
    modules = {
        # The fastest form in which torch itself runs the float module.
        "float": torch.jit.optimize_for_inference(torch.jit.freeze(float_module)),
        "int8": torch.jit.load(int8_path),
    }
    with torch.inference_mode():
        results = {name: accuracy(module, data) for name, module in modules.items()}
        for batch in BATCHES:
            for name, milliseconds in latencies(modules, data["x"][:batch]).items():
                results[name][f"latency_{batch}"] = milliseconds
    assert "jit_passes" not in sys.modules
    print(json.dumps(results))


def accuracy(module: torch.jit.ScriptModule, data: dict[str, Tensor]) -> dict[str, Any]:
    """Returns the logits of every image, and how many of them are right."""
    logits = torch.cat([module(images) for images in data["x"].split(64)])
    right = (logits.argmax(1) == data["y"]).double().mean().item()
    return {"logits": logits.tolist(), "top1": 100 * right}


def latencies(modules: dict[str, torch.jit.ScriptModule], images: Tensor) -> dict[str, float]:
    """Returns the median time of one call of each module, in milliseconds.

    The modules take turns, so that a machine that slows down for a while slows down all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in modules}
    for step in range(WARM_UP + ROUNDS):
        for name, module in modules.items():
            start = time.perf_counter()
            module(images)
            if step >= WARM_UP:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
