"""A plugin of pytest that takes the rule out that the environment names.

It runs the tests of rules that no life misses, because another rule holds as well: each has to fail without its own.
"""

from __future__ import annotations

from tests.simulation.rules import remove_asked

remove_asked()
