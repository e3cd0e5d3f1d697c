"""For tests of applications and of components that users write: a runner without Spark, contract suites."""

from penstock.testing.checked_operators import ChangedMessageError
from penstock.testing.checked_store import StaleValueError, UnwrittenChangeError
from penstock.testing.runner import OutputMessage, TestRunner

__all__ = ["ChangedMessageError", "OutputMessage", "StaleValueError", "TestRunner", "UnwrittenChangeError"]
