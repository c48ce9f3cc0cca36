"""Faults of a call's arguments, as far as their kinds, dtypes and devices tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ..errors import count_of, nearest
from ..graph.view import GraphView
from ..passes.subject import wrap


class Advice(NamedTuple):
    """Why a method does not run a batch, and the Python that helps; "" where nothing tells."""

    cause: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


def advice(
    method: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    said: str,
    *,
    of_batch: bool = False,
) -> Advice:
    """Say why a method does not run with arguments, and how to mend that.

    Args:
        method: of a ScriptModule, inlined.
        args: positional arguments.
        kwargs: keyword arguments.
        said: the error of PyTorch.
        of_batch: whether they are a batch, which `input_fn` may make, or `example_inputs`.
    """
    schema = method.schema.arguments[1:]
    if found := _of_names([argument.name for argument in schema], args, kwargs, of_batch):
        return found
    types = {argument.name: str(argument.type) for argument in schema}
    given: dict[str, Any] = {**dict(zip(types, args, strict=False)), **kwargs}
    for name, value in given.items():
        if types[name].startswith("Tensor") and not isinstance(value, torch.Tensor):
            cause = f"'{name}' is {_kind(value)}, and the model takes a tensor"
            return Advice(cause, _tensor(name, value, of_batch))
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    weights = list(_weights(method))
    stored = (_of_storage(name, value, weights) for name, value in tensors.items())
    if found := next(filter(None, stored), None):
        return found
    if "index out of range" in said:
        return Advice(next(filter(None, (_of_range(n, v) for n, v in tensors.items())), ""))
    if "type" not in said:
        return Advice()
    dtypes = (_of_dtype(name, value, weights, said) for name, value in tensors.items())
    return next(filter(None, dtypes), Advice())


def _of_names(
    names: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any], of_batch: bool
) -> Advice | None:
    if len(args) > len(names):
        count = len(names)
        many = f"has {len(args)} parts, and the model takes {count_of(count, 'argument')}"
        if not of_batch:
            return Advice(f"example_inputs {many}", f"pass a tuple of {count}")
        first = "batch[0]" if count == 1 else f"tuple(batch[:{count}])"
        labels = f"where labels come with the inputs, pass input_fn=lambda batch: {first}"
        return Advice(f"it {many}", labels)
    for name in kwargs:
        if name not in names:
            there = nearest(str(name), names)
            return Advice(
                f"the model has no argument '{name}': {there}. A dict is arguments by name; for a "
                f"model that takes a dict, {_called(of_batch)} is a tuple, (dict,)"
            )
    return None


def _called(of_batch: bool) -> str:
    """Return the subject of a sentence about all arguments."""
    return "a batch" if of_batch else "example_inputs"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    root = type(value).__module__.partition(".")[0]
    text = type(value).__name__
    if root == "numpy":
        return f"{'an array' if text == 'ndarray' else 'a number'} of NumPy"
    name = {"PIL": " of Pillow", "pandas": " of pandas"}.get(root, "")
    return f"{'an' if text[0] in 'aeiouAEIOU' else 'a'} {text}{name}"


def _tensor(name: str, value: Any, of_batch: bool) -> str:
    """Return how to make a tensor of something else."""
    root = type(value).__module__.partition(".")[0]
    if root == "numpy" and hasattr(value, "__array__"):
        if value.dtype.kind not in "biuf":
            return f"numbers are needed, and these are {value.dtype}"
        cast = ".float()" if value.dtype.kind == "f" and value.dtype.itemsize != 4 else ""
        make = "from_numpy" if type(value).__name__ == "ndarray" else "as_tensor"
        return f"pass torch.{make}({name}){cast}"
    if root == "PIL":
        return f"pass torchvision.transforms.functional.to_tensor({name})[None], with its scaling"
    if root == "pandas":
        return f"pass torch.from_numpy({name}.to_numpy('float32'))"
    if isinstance(value, list):
        loader = (
            "a DataLoader gives lists, of inputs and labels: pass input_fn=lambda batch: batch[0]; "
        )
        return f"{loader if of_batch else ''}several arguments are a tuple"
    if isinstance(value, bool | int | float):
        return f"pass torch.tensor({name})"
    form = "a tensor, a tuple of arguments, or a dict of arguments by name"
    return f"{_called(of_batch)} is {form}"


def _weights(method: Any) -> Iterator[torch.Tensor]:
    """Yield the weights of a model, whether they are parameters or constants by now."""
    nodes = GraphView.of_graph(method.graph).nodes
    constants = (value.constant for node in nodes for value in node.outputs)
    for tensor in (*wrap(method.owner).parameters(), *constants):
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dim() > 1:
            yield tensor


def _of_storage(name: str, value: torch.Tensor, weights: list[torch.Tensor]) -> Advice | None:
    if value.layout != torch.strided:
        return Advice(f"'{name}' is sparse", f"pass {name}.to_dense()")
    if value.is_meta:
        return Advice(f"'{name}' is on the meta device, where tensors have no numbers")
    places = {weight.device for weight in weights}
    if places and value.device not in places:
        place = next(iter(places))
        cause = f"'{name}' is on {value.device}, and the model on {place}"
        return Advice(cause, f"pass {name}.to('{place}')")
    return None


def _of_range(name: str, value: torch.Tensor) -> str:
    if value.dtype not in (torch.int64, torch.int32) or not value.numel():
        return ""
    low, high = (int(end) for end in value.aminmax())
    return f"'{name}' holds numbers from {low} to {high}, and a table has fewer rows"


def _of_dtype(
    name: str, value: torch.Tensor, weights: list[torch.Tensor], said: str
) -> Advice | None:
    dtype = str(value.dtype).removeprefix("torch.")
    if value.is_floating_point() and "indices" in said:
        cause = f"'{name}' is {dtype}, and the model looks it up in a table"
        return Advice(cause, f"pass {name}.long()")
    others = {weight.dtype for weight in weights} - {value.dtype}
    if not others or (not value.is_floating_point() and "indices" in said):
        return None
    other = str(next(iter(others))).removeprefix("torch.")
    both = f"'{name}' is {dtype}, and the weights are {other}"
    if torch.float32 in others:
        scaled = "" if value.is_floating_point() else ", scaled as in training"
        return Advice(both, f"pass {name}.float(){scaled}")
    return Advice(both, "quantize a model in float32, model.float()")
