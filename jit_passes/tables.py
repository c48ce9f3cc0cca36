"""Tables of reports for notebooks, and their numbers for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], before: str = "", after: str = ""
) -> str:
    """Return a table as HTML, between lines of text."""
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows
    )
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
    return f"{_lines(before)}{table}{_lines(after)}"


def for_json(value: Any) -> Any:
    """Return a value for JSON, which has no infinity and no NaN: None stands for these."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(text: str) -> str:
    return f"<p>{'<br>'.join(map(escape, text.splitlines()))}</p>" if text else ""
