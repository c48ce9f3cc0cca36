"""Keep jit_passes/_C.pyi true to the extension: `make stub` corrects it, `make lint` checks it.

pybind11 writes a signature into each docstring. The stub has one function for each, with as many
parameters, of types that are equal or more exact: where pybind11 knows only `object`, `tuple` or a
class of torch, the stub may say more, and what it says is kept.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jit_passes import _C

STUB = Path(__file__).resolve().parent.parent / "jit_passes" / "_C.pyi"
_SPELLING = [
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r"\b(?:collections\.abc|typing|jit_passes\._C)\.|\bjit_passes::", ""),
    (r"\b(?:torch|numpy)\.[\w.]+|\bobject\b|\bCapsule\b", "Any"),
]

_NARROWER = {"Sequence": "list", "Mapping": "dict"}

Found = dict[tuple[str, str], str]
"""A line of stub for each (class or "", name)."""


def _signature(name: str, doc: str) -> str:
    """Return one line of stub for pybind11's docstring; it may have more than one overload."""
    line = next(iter(doc.splitlines()), "")
    for pattern, spelling in _SPELLING:
        line = re.sub(pattern, spelling, line)
    if "Overloaded function." in doc or "->" not in line:
        return f"def {name}(*args: Any, **kwargs: Any) -> Any: ..."
    line = re.sub(r"^\w*\((?:self|arg0): \w+(?=, |\))", "(self", line) if "self: " in line else line
    return f"def {name}{line[line.index('(') :]}: ..."


def bindings() -> Found:
    """Return what the extension has."""
    found: Found = {}
    for name, value in vars(_C).items():
        if name.startswith("__"):
            continue
        if isinstance(value, type):
            found[name, ""] = f"class {name}: ..."
            for member, content in vars(value).items():
                if member.startswith("_"):
                    continue
                if isinstance(content, property):
                    kind = (content.fget.__doc__ or "-> Any").strip().rpartition("-> ")[2]
                    found[name, member] = f"@property\ndef {member}(self) -> {kind}: ..."
                else:
                    found[name, member] = _signature(member, content.__doc__ or "")
        elif callable(value):
            found["", name] = _signature(name, value.__doc__ or "")
        else:
            found["", name] = f"{name}: {type(value).__name__}"
    return found


def _statements(tree: ast.Module) -> Iterator[tuple[tuple[str, str], ast.stmt]]:
    """Yield what a stub declares, private aliases left out."""
    members: list[tuple[str, ast.stmt]] = []
    for top in tree.body:
        members.append(("", top))
        if isinstance(top, ast.ClassDef):
            yield (top.name, ""), top
            members += [(top.name, statement) for statement in top.body]
    for owner, statement in members:
        if isinstance(statement, ast.FunctionDef):
            yield (owner, statement.name), statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield (owner, statement.target.id), statement


def _refines(said: ast.expr | None, bound: ast.expr | None, aliases: dict[str, str]) -> bool:
    """Return whether the stub's type is pybind11's, or a more exact one."""
    if bound is None or said is None:
        return bound is said
    text, known = ast.unparse(said), ast.unparse(bound)
    for alias, meaning in aliases.items():
        text = re.sub(rf"\b{alias}\b", meaning, text)
    if isinstance(bound, ast.BinOp):  # a union: each of several, in the same order
        parts = [ast.parse(part, mode="eval").body for part in _alternatives(text)]
        others = [ast.parse(part, mode="eval").body for part in _alternatives(known)]
        return _all_refine(parts, others, {})
    if known == "Any" or text == known:
        return True
    if isinstance(bound, ast.Name):  # a bare container
        return known in ("dict", "list", "tuple", "set", "Callable") and text.startswith(
            f"{known}["
        )
    if isinstance(bound, ast.Subscript):
        expanded = ast.parse(text, mode="eval").body
        return (
            isinstance(expanded, ast.Subscript)
            and ast.unparse(expanded.value)
            in (container := ast.unparse(bound.value), _NARROWER.get(container))
            and _all_refine(_items(expanded.slice), _items(bound.slice), aliases)
        )
    return False


def _alternatives(text: str) -> list[str]:
    """Return the parts of a union, brackets kept together."""
    expression: ast.expr = ast.parse(text, mode="eval").body
    found: list[str] = []
    while isinstance(expression, ast.BinOp):
        found.insert(0, ast.unparse(expression.right))
        expression = expression.left
    return [ast.unparse(expression), *found]


def _items(slice_: ast.expr) -> list[ast.expr | None]:
    return list(slice_.elts) if isinstance(slice_, ast.Tuple) else [slice_]


def _all_refine(
    said: list[ast.expr | None], bound: list[ast.expr | None], aliases: dict[str, str]
) -> bool:
    return len(said) == len(bound) and all(
        _refines(one, other, aliases) for one, other in zip(said, bound, strict=True)
    )


def _agrees(said: Any, bound: str, aliases: dict[str, str]) -> bool:
    other: Any = ast.parse(bound).body[0]
    if [ast.dump(d) for d in getattr(said, "decorator_list", ())] != [
        ast.dump(d) for d in getattr(other, "decorator_list", ())
    ]:
        return False
    if type(said) is not type(other) or isinstance(said, ast.ClassDef):
        return type(said) is type(other)
    if isinstance(said, ast.AnnAssign):
        return _refines(said.annotation, other.annotation, aliases)
    if other.args.vararg:
        return True  # overloads: only the name is checked
    names = [argument.arg for argument in other.args.args]
    same_names = len(names) == len(said.args.args) and all(
        re.fullmatch(r"arg\d+", name) or name == argument.arg
        for name, argument in zip(names, said.args.args, strict=True)
    )
    return same_names and _all_refine(
        [argument.annotation for argument in said.args.args] + [said.returns],
        [argument.annotation for argument in other.args.args] + [other.returns],
        aliases,
    )


def _indented(text: str, indent: str) -> list[str]:
    return [indent + line for line in text.splitlines()]


def correct(text: str, bound: Found) -> tuple[str, list[str]]:
    """Return the stub as it should be, and what is wrong with it, one sentence each."""
    lines, tree = text.splitlines(), ast.parse(text)
    aliases = {
        ast.unparse(statement.targets[0]): ast.unparse(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
    }
    said = dict(_statements(tree))
    wrong = []
    for key, statement in sorted(said.items(), key=lambda item: -item[1].lineno):
        first = (*getattr(statement, "decorator_list", ()), statement)[0]
        place, end = first.lineno - 1, statement.end_lineno or statement.lineno
        title = ".".join(filter(None, key))
        indent = "    " if key[0] and key[1] else ""
        if key not in bound:
            wrong.append(f"{title} is not in the extension")
            del lines[place:end]
        elif not _agrees(statement, bound[key], aliases):
            wrong.append(f"{title} is `{bound[key]}` in the extension")
            lines[place:end] = _indented(bound[key], indent)
    missing = [key for key in bound if key not in said]
    for owner in sorted({owner for owner, _ in missing}):
        added = [bound[key] for key in missing if key[0] == owner and key[1]]
        members = [line for text in added for line in _indented(text, "    ")]
        wrong += [f"`{line}` is missing" for line in added]
        start = next((i for i, line in enumerate(lines) if line == f"class {owner}:"), None)
        if not owner:
            lines += added
        elif start is None:
            lines += ["", f"class {owner}:", *(members or ["    ..."])]
        else:
            lines[start + 1 : start + 1] = members
    return "\n".join([*lines, ""]), wrong


def main() -> None:
    text, wrong = correct(STUB.read_text(), bindings())
    if "--check" not in sys.argv:
        STUB.write_text(text)
    for sentence in wrong:
        print(f"_C.pyi: {sentence}")
    if wrong and "--check" in sys.argv:
        sys.exit("Run 'make stub', and give the types that pybind11 does not know.")


if __name__ == "__main__":
    main()
