"""Tests of applications and of your own components: a runner without Spark, fault injection, and contract suites.

`TestRunner` runs an application in the test's process. The contract suites are in `system_contract`,
`state_backend_contract`, `engine_contract` and `object_store_contract`; `faulty_store` and `slow_store` have object
stores that fail and wait; `in_process` has the parts below `TestRunner`.
"""

from penstock.testing.clock import SettableClock
from penstock.testing.runner.checked_operators import ChangedMessageError
from penstock.testing.runner.checked_store import StaleValueError, UnwrittenChangeError
from penstock.testing.runner.runner import TestRunner
from penstock.testing.runner.streams import OutputMessage

__all__ = [
    "ChangedMessageError",
    "OutputMessage",
    "SettableClock",
    "StaleValueError",
    "TestRunner",
    "UnwrittenChangeError",
]
