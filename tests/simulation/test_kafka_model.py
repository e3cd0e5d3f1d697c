"""The model of Kafka's client shows what the client shows of a real broker."""

from __future__ import annotations

import pytest

from penstock.testing.kafka_broker import KafkaBroker
from tests.simulation.kafka.bench import ModelBench, RealBench
from tests.simulation.kafka.scenarios import SCENARIOS, SLOW, Scenario

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("scenario", [*SCENARIOS, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_the_model_shows_what_a_broker_shows(scenario: Scenario, kafka_broker: KafkaBroker) -> None:
    model = ModelBench()
    scenario(model)
    real = RealBench(kafka_broker, model.seen)
    with real.proxy:
        scenario(real)
    assert dict(enumerate(model.seen)) == dict(enumerate(real.seen))
