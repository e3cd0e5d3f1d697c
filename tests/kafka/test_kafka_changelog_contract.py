"""The changelog stream backend keeps the contract of every state backend on Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import StateBackendFactory
from penstock.state.backends.changelog_stream import ChangelogStreamFactory
from penstock.system.base import OffsetRange, System
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.state_backend_contract import STORES, BackendHarness, StateBackendContract
from penstock.testing.state_backend_harness import EngineName

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class TestOnKafka(StateBackendContract):
    @pytest.fixture
    def factory(self) -> StateBackendFactory:
        return ChangelogStreamFactory()

    @pytest.fixture
    def engine(self) -> EngineName:
        return "memory"

    @pytest.fixture
    def systems(self, kafka_broker: KafkaBroker) -> Mapping[str, System]:
        options = {"consumer.bootstrap.servers": kafka_broker.bootstrap_servers}
        return {"kafka": KafkaSystem.configured("kafka", options)}

    @pytest.fixture
    def overrides(self, kafka_broker: KafkaBroker) -> Mapping[str, object]:
        unique = uuid.uuid4().hex[:8]
        streams = {f"stores.{store}.changelog": f"kafka.{store}-{unique}" for store in STORES}
        return {**kafka_broker.system_config("kafka"), **streams}

    @pytest.fixture
    def harness(
        self,
        factory: StateBackendFactory,
        objects: ObjectStore,
        tmp_path: Path,
        engine: EngineName,
        systems: Mapping[str, System],
        overrides: Mapping[str, object],
    ) -> Iterator[BackendHarness]:
        with closing(BackendHarness(factory, objects, tmp_path, engine, systems, overrides)) as harness:
            harness.paths = JobPaths(f"contract-{uuid.uuid4().hex[:8]}", "1")  # the brokers remember epochs by it
            yield harness
        assert not harness.copies

    @pytest.mark.parametrize("seed", range(1))  # the brokers collect, not the backend
    def test_what_is_retained_still_restores(self, harness: BackendHarness, seed: int) -> None:
        super().test_what_is_retained_still_restores(harness, seed)

    def written(self, harness: BackendHarness) -> object:
        system = harness.systems["kafka"]
        found = {}
        with closing(system.admin()) as admin, closing(system.reader()) as reader:
            for store in STORES:
                stream = harness.config.store(store).changelog.stream
                for partition, ends in admin.offsets(stream).items():
                    if ends.oldest < ends.upcoming:
                        ssp = SystemStreamPartition("kafka", stream, partition)
                        whole = OffsetRange(ssp, ends.oldest, ends.upcoming)
                        found[ssp] = [each for messages in reader.read(whole, 1000) for each in messages]
        return found
