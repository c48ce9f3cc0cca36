"""A file of scores, so that an interrupted run goes on where it was."""

from __future__ import annotations

import json
import os
from typing import Any

from ..errors import JitPassesError
from ..files import check_writable, path_of, read_bytes, write_whole, writing

FORMAT = "jit_passes scores 1"


class Journal:
    """Scores of variants by their plans; each is written to a file as soon as it is known.

    The first line names model, data and metric of the scores, each further line is of a
    variant. A last line that was cut off is left out.

    Args:
        path: the file, which may exist; None for none.
        about: the inputs of the scores; a file about other inputs is refused.

    Raises:
        JitPassesError: the file is of something else, or cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, about: dict[str, Any]) -> None:
        self._path = None if path is None else path_of(path)
        self._header = {"format": FORMAT, **about}
        self.scores: dict[str, float] = {}
        if path is None:
            return
        check_writable(path)
        try:
            lines = read_bytes(path).decode().splitlines() if self._found() else []
        except UnicodeDecodeError:
            raise self._wrong("it is not text in UTF-8") from None
        self._read(lines)
        complete = [json.dumps(self._header), *map(_line, self.scores.items())]
        write_whole(path, "".join(f"{line}\n" for line in complete))

    def add(self, plan: str, score: float) -> None:
        """Note the score of a variant."""
        self.scores[plan] = score
        if self._path is not None:
            with writing(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(f"{_line((plan, score))}\n")

    def _found(self) -> bool:
        assert self._path is not None
        return self._path.exists() and self._path.stat().st_size > 0

    def _read(self, lines: list[str]) -> None:
        rows = []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except ValueError:
                if line is not lines[-1]:
                    raise self._wrong("a line in it is no JSON") from None
        if not rows:
            if lines:
                raise self._wrong("it does not begin as one")
            return
        header, *scores = rows
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise self._wrong("it does not begin as one")
        for name, value in self._header.items():
            if header.get(name) != value:
                theirs = header.get(name)
                raise JitPassesError(
                    f"{self._path} has scores of another run: {name} {_short(theirs)} there, and "
                    f"{_short(value)} here; name another file, or delete this one"
                )
        for row in scores:
            if not isinstance(row, dict) or not isinstance(row.get("score"), int | float):
                raise self._wrong("a line in it has no score")
            self.scores[str(row.get("plan"))] = float(row["score"])

    def _wrong(self, why: str) -> JitPassesError:
        return JitPassesError(f"{self._path} is no file of scores: {why}; name another file")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:30]}...{text[-30:]}"


def _line(entry: tuple[str, float]) -> str:
    return json.dumps({"plan": entry[0], "score": entry[1]})  # infinities as Infinity
