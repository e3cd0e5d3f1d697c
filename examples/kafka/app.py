"""The flights of `examples/flights`, from Kafka to Kafka: only the system of the streams differs."""

from __future__ import annotations

from examples.flights.app import application

app = application("kafka")
