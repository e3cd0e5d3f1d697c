"""The decisions of one schedule: a list of small numbers, drawn from a seed or replayed.

A schedule is nothing but its decisions, so a list that is shorter or smaller is another schedule. In each decision, 0
is the mildest outcome: no fault, no switch. Behind its end, a replayed list is all zeros.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


class Choices:
    """Where a simulation takes every decision from.

    Example:
        >>> first = Choices.of_seed(7)
        >>> drawn = [first.draw(10) for _ in range(3)]
        >>> again = Choices.of_list(first.made)
        >>> drawn == [again.draw(10) for _ in range(3)], again.draw(10)
        (True, 0)
    """

    def __init__(self, next_number: Callable[[int], int]) -> None:
        self._next = next_number
        self.made: list[int] = []
        """The decisions so far."""

    @classmethod
    def of_seed(cls, seed: int) -> Choices:
        """Decisions drawn from a seed."""
        return cls(random.Random(seed).randrange)  # noqa: S311 - reproducible, not secret

    @classmethod
    def of_list(cls, numbers: Sequence[int]) -> Choices:
        """Decisions that were made before. A number that is too large for its place is taken modulo the outcomes."""
        left = iter(numbers)
        return cls(lambda outcomes: next(left, 0) % outcomes)

    def draw(self, outcomes: int) -> int:
        """A number from 0 to `outcomes` - 1."""
        if outcomes <= 1:
            return 0
        number = self._next(outcomes)
        self.made.append(number)
        return number

    def happens(self, per_mille: int) -> bool:
        """True in about so many of a thousand cases; False is the mild outcome."""
        return per_mille > 0 and self.draw(1000) >= 1000 - per_mille


def shrink(made: Sequence[int], fails: Callable[[Sequence[int]], bool], tries: int = 200) -> list[int]:
    """A list of decisions that still fails and has fewer that are not 0.

    Args:
        made: the decisions of a schedule that fails.
        fails: runs the schedule of a list; True if it fails in the same way.
        tries: the most calls of `fails`.

    Example:
        >>> shrink([3, 0, 5, 7, 2], lambda made: len(made) > 2 and made[2] == 5)
        [0, 0, 5]
    """
    best, left = list(made), tries
    size = max(1, len(best) // 2)
    while size and left:
        changed = False
        start = len(best) - size
        while start >= 0 and left:
            if any(best[start : start + size]):
                candidate = [*best[:start], *[0] * min(size, len(best) - start), *best[start + size :]]
                left -= 1
                if fails(_trimmed(candidate)):
                    best, changed = _trimmed(candidate), True
            start -= size
        size = size if changed and size == 1 else size // 2
    return _trimmed(best)


def _trimmed(numbers: Sequence[int]) -> list[int]:
    """Without the zeros at the end, which follow by themselves."""
    end = len(numbers)
    while end and numbers[end - 1] == 0:
        end -= 1
    return list(numbers[:end])
