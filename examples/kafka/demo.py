"""The demo of Kafka: a job from topic to topic with exactly-once output, while all its processes are killed.

The demo starts a broker. It kills driver, container, Spark worker and broker with `kill -9` while the job runs. Then
the job runs with a latency target, and the demo measures how long flights take.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

from examples.running import HOME, PENSTOCK, Crashes, Kind
from penstock.errors import ConfigError, NotFoundError
from penstock.testing.kafka_broker import KAFKA_VERSION, KafkaBroker, require_kafka

PARTITIONS = 8
OUTPUTS = ("aircraft-totals", "carrier-totals")
STORES = ("aircraft", "carriers")
LIVE = {"job.latency.target.ms": 50, "task.commit.ms": 100}
"""The job's settings for low latency: exactly-once output is visible with a commit."""
STOP_S = 60.0
KINDS: list[Kind] = ["driver", "container", "worker", "broker"]


def main() -> None:
    """Run the demo. Exit status 1 if there is no broker, a step fails, or an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="repeat the kills of an earlier run")
    parser.add_argument("--flights", type=int, default=None, help="write only this many flights")
    parser.add_argument("--batch", type=int, default=24_000, help="the most flights in a batch (default 24000)")
    parser.add_argument("--rate", type=int, default=500, help="flights a second for the latency (default 500)")
    parser.add_argument("--seconds", type=float, default=10, help="how long they are sent (default 10)")
    parser.add_argument("--kills", type=int, default=len(KINDS), help="how many processes to kill (default 4)")
    arguments = parser.parse_args()
    home = (HOME / "demo-kafka").resolve()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    os.environ["PENSTOCK_HOME"] = str(home)
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
    step(f"a broker of Kafka {KAFKA_VERSION} starts; the first time, its files are downloaded")
    try:
        require_kafka()
    except (NotFoundError, ConfigError) as error:
        sys.exit(f"this demo needs a Kafka broker, and cannot start one: {' '.join(str(error).split())}")
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the broker is closed
    try:
        with KafkaBroker() as broker:
            config = on_broker(broker, home, arguments.flights, arguments.batch, arguments.kills, seed)
            measure_latency(broker, config, arguments.flights, arguments.rate, arguments.seconds)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    print("the broker is stopped and its data removed", flush=True)


def on_broker(broker: KafkaBroker, home: Path, flights: int | None, batch: int, kills: int, seed: int) -> Path:
    """Write the flights, run the job while its processes are killed, and verify its output. Returns the job's
    configuration."""
    from examples.kafka.topics import create, write_flights
    from examples.kafka.verify import verify

    options = broker.client_options()
    for topic in ("flights", *OUTPUTS):
        create(options, topic, PARTITIONS)
    count = write_flights(options, "flights", flights)
    step(f"{count:,} flights are in the topic `flights` at {broker.bootstrap_servers}; the job reads them")
    config = home / "kafka.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in configuration(broker, batch).items()))
    Crashes("flights", (*run_command(config), "--until", "latest"), broker).run(KINDS[:kills], seed)
    step("state and outputs are compared with a plain computation; a `read_committed` reader counts the messages")
    verify(options, config, flights)
    return config


def measure_latency(broker: KafkaBroker, config: Path, flights: int | None, rate: int, seconds: float) -> None:
    """Run the job with a latency target, without an end, and send it more flights."""
    from examples.flights.data import expected_totals
    from examples.kafka.latency import Latencies, measure

    target = [f"{key}={value}" for key, value in LIVE.items()]
    step(f"the job runs again, with {', '.join(target)}; flights come one by one")
    before = Counter({aircraft: total["flights"] for aircraft, total in expected_totals(flights)[1].items()})
    latencies = Latencies(broker.client_options(), PARTITIONS, before)
    job = subprocess.Popen([*run_command(config), *chain.from_iterable(("-c", each) for each in target)])
    try:
        measure(latencies, job, rate, seconds)
        job.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(STOP_S)
        if job.returncode != 0:
            sys.exit(job.returncode or f"the job did not end within {STOP_S:.0f} s")
    finally:
        job.kill()
        job.wait()
        latencies.close()


def run_command(config: Path) -> tuple[str, ...]:
    """The command that runs the job with this configuration."""
    return (*PENSTOCK, "run", "examples/kafka/app.py:app", "--config", str(config))


def configuration(broker: KafkaBroker, batch: int) -> dict[str, object]:
    """The configuration of the job: exactly-once output, and the changelogs of its stores in Kafka."""
    return {
        **broker.system_config("kafka"),
        **{f"streams.kafka.{output}.output.guarantee": "exactly-once" for output in OUTPUTS},
        "stores.backup.factories": "changelog-stream",
        **{f"stores.{store}.changelog": f"kafka.flights-{store}-changelog" for store in STORES},
        "job.batch.max.messages": batch,
        "job.lease.ms": 3000,
        "job.retry.max": 20,
        "task.commit.ms": 500,
    }


def step(text: str) -> None:
    """Announce the next step."""
    print(f"\n--- {text}", flush=True)


if __name__ == "__main__":
    main()
