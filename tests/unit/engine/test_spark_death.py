"""What is said when Spark's JVM has died: found in the chain of an error, whatever that chain looks like."""

from __future__ import annotations

from itertools import pairwise

import pytest
from py4j.protocol import ERROR, STRING_TYPE, Py4JError, get_return_value

from penstock.engine.gateway import SparkDiedError, spark_died
from penstock.errors import ContainerLostError


def chain(*errors: BaseException) -> BaseException:
    """Each error is the cause of the one before."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def test_a_broken_connection_anywhere_in_the_chain_counts() -> None:
    died = spark_died(chain(ContainerLostError("lost"), RuntimeError(), ConnectionRefusedError()), "7-1")
    assert isinstance(died, SparkDiedError)
    assert "checkpoint 7-1" in str(died)


@pytest.mark.parametrize(
    ("answer", "is_dead"),
    [
        (ERROR, True),  # what py4j makes of a connection that breaks while it waits for an answer
        (ERROR + STRING_TYPE + r"java.lang.NoSuchMethodError: gone\n at x", False),
    ],
)
def test_a_call_that_got_no_answer_is_a_broken_connection(answer: str, is_dead: bool) -> None:
    with pytest.raises(Py4JError) as caught:
        get_return_value(answer, None, "None", "org.apache.spark.api.python.SimplePythonFunction")
    assert (spark_died(caught.value, "7-1") is not None) == is_dead


@pytest.mark.parametrize("length", [1, 2, 3])
def test_an_error_may_be_in_its_own_chain(length: int) -> None:
    """One that was raised again while another one was handled that it had caused."""
    errors = [ContainerLostError(str(number)) for number in range(length)]
    assert spark_died(chain(*errors, errors[0]), "7-1") is None
