"""The error for a store that none of its backends could restore."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from penstock.config.load import load_config
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.state import restore
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.engines.memory import MemoryEngine

STRONGEST_FIRST: tuple[type[PenstockError], ...] = (RetryableError, ConfigError, IncompatibleError, CorruptError)
NAMES = ("one", "two", "three")


def outcomes() -> Iterator[Sequence[type[PenstockError]]]:
    kinds = (*STRONGEST_FIRST, NotFoundError)
    return (each for count in (1, 2, 3) for each in product(kinds, repeat=count))


def test_the_error_is_that_of_the_backend_that_may_still_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that may pass comes first, then a refusal, then a format of another version. Only what is left is
    damage. All backends are tried and named, in any order."""
    config = load_config(overrides={"job.name": "job"}, environ={})
    context = BackendContext(open_store("memory://restores"), JobPaths("job", "1"), 0, ("s",), 1, config)
    progress = RestoreProgress(threading.Event(), lambda _: None)
    for kinds in outcomes():
        failures = iter([kind(f"failure {number}") for number, kind in enumerate(kinds)])

        def failing(*_: object, failures: Iterator[PenstockError] = failures) -> MemoryEngine:
            raise next(failures)

        monkeypatch.setattr(restore, "_restore", failing)
        wanted = NAMES[: len(kinds)]
        markers = {name: {"s": "marker"} for name in wanted}
        with pytest.raises(PenstockError) as caught:
            restore.restore_store(_always(context), 0, "s", wanted, markers, tmp_path, MemoryEngine, progress)
        assert type(caught.value) is next((kind for kind in STRONGEST_FIRST if kind in kinds), CorruptError), kinds
        assert all(f"{name}: failure {number}" in str(caught.value) for number, name in enumerate(wanted))


def _always(context: BackendContext) -> Callable[[str], BackendContext]:
    return lambda _: context
