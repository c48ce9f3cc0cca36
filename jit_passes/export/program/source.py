"""A program of `torch.export` as source of TorchScript, a method for each module.

    %conv : aten.conv2d.default(%x, %w, None)

becomes `conv = self.layer.conv1.conv_(x)` in the model, and in its part `layer.conv1`

    def conv_(self, input_0: torch.Tensor):
        return torch.ops.aten.conv2d(input_0, self.weight, None)

An operator stands in the module that it comes from, so that names and rules of configurations fit
the model that was exported.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from ...errors import JitPassesError
from .structure import leaves_of, structure_of, type_of, type_of_structure

_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
    operator.floordiv: "//", operator.mod: "%", operator.pow: "**", operator.eq: "==",
    operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    operator.and_: "and", operator.or_: "or",
}  # fmt: skip
_PREFIX: dict[Any, str] = {
    operator.neg: "-", torch.sym_float: "float", torch.sym_int: "int", torch.sym_not: "not ",
    torch.sym_max: "max", torch.sym_min: "min", torch.sym_sum: "sum", round: "round",
    math.floor: "math.floor", math.ceil: "math.ceil", math.trunc: "int",
}  # fmt: skip
_METHODS = {"aten::sym_size": "size", "aten::sym_numel": "numel", "aten::sym_stride": "stride"}
_ITEM = ("aten::item", "aten::_local_scalar_dense")
# Assertions of a program about inputs that the graph does not show.
_CHECKS = re.compile(r"aten::(_assert|sym_constrain)")
_INDENT = "    "
_OF_TORCH = os.path.dirname(torch.__file__)


@dataclass(frozen=True)
class Method:
    """The source of a method.

    Attributes:
        name: of the method.
        heads: its arguments with their types, but `self`.
        body: its lines.
        path: the file that it comes from; "" for none.
        line: there.
    """

    name: str
    heads: list[str]
    body: list[str]
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        lines = [f"def {self.name}({', '.join(['self', *self.heads])}):"]
        return "\n".join([*lines, *(_INDENT + line for line in self.body), ""])


@dataclass
class Source:
    """The source of a program.

    Attributes:
        program: with its parameters as attributes.
        methods: by path of a module, definitions of its methods; "" is the model, with `forward`.
        classes: by path of a module, the name of its class.
    """

    program: GraphModule
    methods: dict[str, list[Method]] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, program: torch.export.ExportedProgram) -> Source:
        """Return the source of a program.

        Raises:
            JitPassesError: TorchScript has no form for a part of it.
        """
        module = program.module(check_guards=False)
        found = cls(module)
        info: Any = module.graph._codegen.pytree_info  # type: ignore[attr-defined]
        heads, body = found._arguments(info.orig_args, info.in_spec)
        names: dict[Node, str] = {}
        body += found._lines(module.graph, names, "")
        [result] = [node for node in module.graph.nodes if node.op == "output"]
        leaves = iter([found._value(leaf, names) for leaf in result.args[0]])
        body.append(f"return {structure_of(info.out_spec, leaves)}")
        found.methods.setdefault("", []).append(Method("forward", heads, body))
        return found

    def _arguments(self, names: Sequence[str], spec: Any) -> tuple[list[str], list[str]]:
        """Return the arguments of `forward`, and lines that take containers apart."""
        nodes = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("val") for node in nodes]
        left, inputs, heads, lines = iter(values), iter(nodes), [], []
        positional, by_name = spec.children()
        kinds = [*positional.children(), *by_name.children()]
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            if number == positional.num_children:
                heads.append("*")
            heads.append(f"{name}: {type_of_structure(kind, left)}")
            for leaf in leaves_of(kind, name):
                node = next(inputs)
                if node.name != leaf:
                    lines.append(f"{node.name} = {leaf}")
                if isinstance(value := node.meta.get("val"), bool | int | float | str):
                    lines.append(f"assert {leaf} == {value!r}, {leaf + ' is a constant'!r}")
        return heads, lines

    def _lines(self, graph: torch.fx.Graph, names: dict[Node, str], prefix: str) -> list[str]:
        """Return the lines that compute the nodes of a graph, which are named there."""
        lines: list[str] = []
        for node in graph.nodes:
            if node.op == "get_attr":
                names.setdefault(node, _attribute(str(node.target)))
            if node.op != "call_function" or _is_check(node):
                continue
            names[node] = f"{prefix}{node.name}"
            if node.target is torch.ops.higher_order.cond:
                lines += self._branches(node, names)
            elif node.target is torch.ops.higher_order.while_loop:
                lines += self._loop(node, names)
            elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
                given = [self._value(operand, names) for operand in node.args[2:]]
                lines += self._within(node.args[1], given, names[node])
            else:
                lines.append(f"{names[node]} = {self._call(node, names)}")
        return lines

    def _branches(self, node: Node, names: dict[Node, str]) -> list[str]:
        condition: Any
        operands: Any
        condition, *ways, operands = node.args
        given = [self._value(operand, names) for operand in operands]
        lines = []
        for word, way in zip(
            (f"if bool({self._value(condition, names)})", "else"), ways, strict=True
        ):
            lines += [f"{word}:", *_indented(self._within(way, given, names[node]))]
        return lines

    def _loop(self, node: Node, names: dict[Node, str]) -> list[str]:
        condition, body, *operands = node.args
        parts: Any = operands
        carried, outside = ([self._value(each, names) for each in part] for part in parts)
        result = names[node]
        given = [*(f"{result}[{k}]" for k in range(len(carried))), *outside]
        lines = self._within(condition, given, f"{result}_goes_on")
        lines += [f"if not bool({result}_goes_on[0]):", f"{_INDENT}break"]
        lines += self._within(body, given, result)
        return [f"{result} = ({', '.join(carried)},)", "while True:", *_indented(lines)]

    def _within(self, part: Any, given: Sequence[str], result: str) -> list[str]:
        """Return the lines of a graph within the graph; the last line sets its result."""
        inner = getattr(part.graph.owning_module, part.target)
        places = [each for each in inner.graph.nodes if each.op == "placeholder"]
        taken = dict(zip(places, given, strict=True))
        lines = self._lines(inner.graph, taken, f"{result}_{part.target}_")
        [end] = [each for each in inner.graph.nodes if each.op == "output"]
        ends = end.args[0] if isinstance(end.args[0], list | tuple) else end.args[:1]
        leaves = [self._value(leaf, taken) for leaf in ends]
        return [*lines, f"{result} = ({', '.join(leaves)},)"]

    def _call(self, node: Node, names: dict[Node, str]) -> str:
        """Return the call of an operator: of a method of the module that it comes from."""
        if not isinstance(node.target, torch._ops.OpOverload) or not _gives_values(node):
            return self._expression(node, lambda value: self._value(value, names))
        path, kind = _module_of(node)
        self.classes[path] = kind
        inner: dict[Node, str] = {}
        given: list[str] = []
        heads: list[str] = []
        for operand in node.all_input_nodes:
            target = str(operand.target) if operand.op == "get_attr" else ""
            if target and (not path or target.startswith(f"{path}.")):
                inner[operand] = _attribute(target.removeprefix(f"{path}."))
                continue
            inner[operand] = f"input_{len(heads)}"
            heads.append(f"{inner[operand]}: {type_of(operand.meta.get('val'))}")
            given.append(self._value(operand, names))
        body = self._expression(node, lambda value: self._value(value, inner))
        method = Method(f"{names[node]}_", heads, [f"return {body}"], *_line_of(node))
        self.methods.setdefault(path, []).append(method)
        owner = _attribute(path) if path else "self"
        return f"{owner}.{method.name}({', '.join(given)})"

    def _expression(self, node: Node, value: Callable[[Any], str]) -> str:
        target, operands = node.target, [value(argument) for argument in node.args]
        if target is operator.getitem:
            return f"{operands[0]}[{operands[1]}]"
        if target in _INFIX:
            return f"({operands[0]} {_INFIX[target]} {operands[1]})"
        if target in _PREFIX:
            return f"{_PREFIX[target]}({', '.join(operands)})"
        if not isinstance(target, torch._ops.OpOverload):
            raise JitPassesError(
                f"'{node.name}' of the program is {target}, which has no form in TorchScript here: "
                "export the model without it"
            )
        kind = target._schema.name
        if kind in _METHODS:
            return f"{operands[0]}.{_METHODS[kind]}({', '.join(operands[1:])})"
        if kind in _ITEM:
            return f"{type_of(node.meta.get('val'))}({operands[0]}.item())"
        if kind == "aten::convolution":
            stride: Any = node.args[3]
            return _convolution(*operands, dims=len(stride))
        if kind == "aten::_native_batch_norm_legit_no_training":
            *statistics, momentum, eps = operands
            given = ", ".join([*statistics, "False", momentum, eps, "False"])
            return f"(torch.ops.aten.batch_norm({given}),)"
        return f"torch.ops.{kind.replace('::', '.')}({', '.join(_operands(node, target, value))})"

    def _value(self, value: Any, names: Mapping[Node, str]) -> str:
        """Return the expression of an argument of a node."""
        if isinstance(value, Node):
            return names.get(value, value.name)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._value(item, names) for item in value)}]"
        if isinstance(value, float) and not -float("inf") < value < float("inf"):
            return f"float('{value}')"
        if isinstance(value, torch.device):
            return f"torch.device('{value}')"
        plain = bool | int | float | str | torch.dtype | torch.layout | torch.memory_format
        if value is None or isinstance(value, plain):
            return repr(value)
        raise JitPassesError(f"TorchScript has no constant for a {type(value).__name__}: {value!r}")


def _indented(lines: list[str]) -> list[str]:
    return [_INDENT + line for line in lines]


def _operands(
    node: Node, target: torch._ops.OpOverload, value: Callable[[Any], str]
) -> Iterator[str]:
    """Yield the arguments of a call, in the types that the operator's schema has."""
    by_name = target._schema.arguments[len(node.args) :]
    given = [*zip(target._schema.arguments, node.args, strict=False)]
    given += [(argument, node.kwargs[argument.name]) for argument in by_name
              if argument.name in node.kwargs]  # fmt: skip
    for number, (argument, operand) in enumerate(given):
        kind = str(argument.type)
        if "float" in kind:
            operand = tree_map(lambda x: float(x) if type(x) is int else x, operand)
        text = value(operand)
        # Without its type, TorchScript takes an empty list, and one of tensors, for another.
        if kind.startswith("List[") and (operand == [] or "Optional" in kind):
            text = f"torch.jit.annotate({kind.replace('Tensor', 'torch.Tensor')}, {text})"
        yield text if number < len(node.args) else f"{argument.name}={text}"


def _convolution(
    x: str, weight: str, bias: str, stride: str, padding: str, dilation: str, transposed: str,
    output_padding: str, groups: str, *, dims: int,
) -> str:  # fmt: skip
    """Return the convolution that `run_decompositions` has made the general one of."""
    first = f"{x}, {weight}, {bias}, {stride}, {padding}"
    if transposed == "True":
        return (
            f"torch.ops.aten.conv_transpose{dims}d({first}, {output_padding}, {groups}, {dilation})"
        )
    return f"torch.ops.aten.conv{dims}d({first}, {dilation}, {groups})"


def _attribute(path: str) -> str:
    """Return the expression of an attribute, whose path may have numbers in it."""
    found = "self"
    for name in path.split("."):
        found = f"{found}.{name}" if name.isidentifier() else f"getattr({found}, {name!r})"
    return found


def _gives_values(node: Node) -> bool:
    """Say whether `type_of` has a type for the operands and results of a node."""
    return all(each.meta.get("val") is not None for each in node.all_input_nodes)


def _line_of(node: Node) -> tuple[str, int]:
    """Return file and line of the code that a node comes from; ("", 0) where it is unknown.

    Lines of PyTorch's own modules tell nothing: the line that calls them does.
    """
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [(path, int(line)) for path, line in frames if not path.startswith((_OF_TORCH, "<"))]
    return own[-1] if own else ("", 0)


def _is_check(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and _CHECKS.match(schema.name) is not None


def _module_of(node: Node) -> tuple[str, str]:
    """Return path and class of the module that a node comes from; ("", "") for the model itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    if not re.fullmatch(r"\w+(\.\w+)*", path):
        return "", ""
    name = kind if isinstance(kind, str) else kind.__name__
    return path, name.rpartition(".")[2] or "Module"
