"""The keyed count in Quix Streams: a process of a consumer group. Its state is in RocksDB and a changelog topic."""

from __future__ import annotations

from typing import Any

from counting import EVERY, begin
from quixstreams import Application


def main() -> None:
    """Run until the process is killed."""
    given, work, counted = begin()
    app = Application(
        broker_address=given["brokers"],
        consumer_group=given["group"],
        auto_offset_reset="earliest",
        commit_interval=given["commit_s"],
        state_dir=work / f"state-{given['process']}",
        loglevel="WARNING",
    )
    events = app.topic(given["topic"], key_deserializer="str", value_deserializer="json")
    counts = app.topic(given["output"], key_serializer="str", value_serializer="json")

    def count(value: dict[str, Any], state: Any) -> tuple[str, int]:
        number: int = state.get("count", 0) + 1
        state.set("count", number)
        counted.messages += 1
        return value["key"], number

    def echo(value: dict[str, Any], state: Any) -> dict[str, Any]:
        state.set("count", state.get("count", 0) + 1)
        return value

    frame = app.dataframe(events).apply(echo if given["echo"] else count, stateful=True)
    if not given["echo"]:
        frame = frame.filter(lambda found: (found[1] + ord(found[0][-1])) % EVERY == 0)
        frame = frame.apply(lambda found: {"count": found[1]})
    frame.to_topic(counts)
    app.run()


if __name__ == "__main__":
    main()
