"""Requests to drain a run, as Samza's DrainNotification."""

from __future__ import annotations

import uuid as uuids
from dataclasses import dataclass
from enum import Enum

from penstock.errors import ConfigError

NEXT_RUN = "*"
"""The next run, in place of a run id. No run has this id."""


class DrainMode(Enum):
    """The way in which a run drains.

    Example:
        >>> [mode.value for mode in ps.DrainMode]
        ['DEFAULT', 'OPERATORS']
    """

    DEFAULT = "DEFAULT"
    """Everything in flight and everything that waits for a time is processed, then the run ends."""
    OPERATORS = "OPERATORS"
    """As DEFAULT for the operators that the request names. All others keep what waits in them, and their state. Samza
    has no such mode, and obeys no request for it."""


@dataclass(frozen=True, slots=True)
class DrainNotification:
    """A request to drain one run of a job.

    Args:
        uuid: the name of the request.
        run_id: the run that is to drain; no other run ever obeys the request. `*` is the run that comes next.
        drain_mode: how.
        operators: in the mode OPERATORS, the ids of the operators that drain; otherwise empty.

    Raises:
        ConfigError: a field is missing or has another type, or the operators do not fit the mode.

    Example:
        >>> import uuid
        >>> ps.DrainNotification.create(uuid.UUID(int=7), "3f2a").drain_mode.name
        'DEFAULT'
    """

    uuid: uuids.UUID
    run_id: str
    drain_mode: DrainMode
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.uuid, uuids.UUID):
            raise ConfigError(f"a drain notification needs a UUID, not {self.uuid!r}")
        if not isinstance(self.run_id, str) or not self.run_id:
            raise ConfigError(f"a drain notification needs the id of a run, not {self.run_id!r}")
        if not isinstance(self.drain_mode, DrainMode):
            raise ConfigError(f"a drain notification needs a DrainMode, not {self.drain_mode!r}")
        if not all(isinstance(each, str) and each for each in self.operators):
            raise ConfigError(f"a drain notification names operators by their ids, not {self.operators!r}")
        if bool(self.operators) != (self.drain_mode is DrainMode.OPERATORS):
            raise ConfigError(
                f"a drain notification in the mode {self.drain_mode.value} has the operators {self.operators!r}; only "
                "the mode OPERATORS has some, and needs them"
            )

    @classmethod
    def create(cls, uuid: uuids.UUID, run_id: str) -> DrainNotification:
        """A notification in the mode DEFAULT.

        Args:
            uuid: the name of the request.
            run_id: the run that is to drain.

        Raises:
            ConfigError: an argument is missing or has another type.
        """
        return cls(uuid, run_id, DrainMode.DEFAULT)
