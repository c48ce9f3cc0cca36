"""Executors of the command: processes of this machine, or a cluster of Dask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

import click

from ..errors import JitPassesError, first_line
from ..workers import Workers

SECONDS = 10  # to find the scheduler


@contextlib.contextmanager
def pool_of(workers: int, dask: str | None) -> Iterator[Executor | None]:
    """Give an executor; None for this process.

    Args:
        workers: processes of this machine.
        dask: address of a scheduler of Dask; None for none.

    Raises:
        click.UsageError: both are given.
        JitPassesError: Dask is not installed, or there is no scheduler at that address.
    """
    if dask is not None:
        if workers != 1:
            raise click.UsageError("--workers or --dask, not both")
        with _client_of(dask) as client:
            yield client.get_executor()
    elif workers == 1:
        yield None
    else:
        with Workers(workers) as pool:
            yield pool


def _client_of(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise JitPassesError(
            "--dask needs the package distributed: pip install 'jit_passes[dask]', or distributed"
        ) from error
    try:
        return Client(address, timeout=SECONDS)
    except (OSError, ValueError, TypeError) as error:  # a timeout is an OSError
        raise JitPassesError(
            f"--dask {address}: no scheduler of Dask answers there, as tcp://host:8786: "
            f"{first_line(error)}"
        ) from error
