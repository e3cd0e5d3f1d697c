"""Tests of applications and of your own components: a runner without Spark, fault injection, and contract suites.

`TestRunner` runs an application in the test's process. The contract suites are in `system_contract`,
`state_backend_contract`, `engine_contract` and `object_store_contract`; `faulty_store` has object stores that
fail and wait; `in_process` has the parts below `TestRunner`. Nothing else in Penstock imports them.
"""

from typing import TYPE_CHECKING

from penstock.base import lazy_names

if TYPE_CHECKING:
    from penstock.testing.clock import SettableClock as SettableClock
    from penstock.testing.runner.checks import ChangedMessageError as ChangedMessageError
    from penstock.testing.runner.checks import CutsDifferError as CutsDifferError
    from penstock.testing.runner.checks import StaleValueError as StaleValueError
    from penstock.testing.runner.checks import UnwrittenChangeError as UnwrittenChangeError
    from penstock.testing.runner.runner import TestRunner as TestRunner
    from penstock.testing.runner.streams import OutputMessage as OutputMessage
    from penstock.testing.simulation.preparation import SimulationInputs as SimulationInputs
    from penstock.testing.simulation.results import FailedLife as FailedLife
    from penstock.testing.simulation.results import SimulationFailedError as SimulationFailedError
    from penstock.testing.simulation.results import SimulationReport as SimulationReport
    from penstock.testing.simulation.simulate import simulate as simulate
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)


del TYPE_CHECKING, lazy_names
