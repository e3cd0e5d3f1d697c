"""A user's job as the subject of a simulation: its lives, and what has to hold in the end."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from penstock.admin.state.serdes import aggregate_states
from penstock.api.serdes import Serde
from penstock.api.ssp import SystemStream
from penstock.base.plugins import PICKLERS, load
from penstock.base.wording import counted, listed
from penstock.config.load import load_config
from penstock.config.settings import DEFAULT_SYSTEM, SystemKeys
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import WAITING_STORES, StoreLayout
from penstock.start.part import complete
from penstock.testing.runner.streams import OutputMessage
from penstock.testing.simulation import machine
from penstock.testing.simulation.calls import CallFinder, users_frame
from penstock.testing.simulation.choices import Choices
from penstock.testing.simulation.faults import Rates
from penstock.testing.simulation.life import JobUnderTest, Outcome
from penstock.testing.simulation.preparation import REFERENCE, UsersJob
from penstock.testing.simulation.results import Reference, Results, text_of
from penstock.testing.simulation.storage import Fed

T = TypeVar("T")
_PER_MILLE = 60
"""So many of a thousand messages come late or twice, of an input whose messages may."""


class UsersSubject:
    """Makes the lives with faults of a user's job, one for each seed."""

    def __init__(self, path: str) -> None:
        self.given: UsersJob = UsersJob.read(path)
        machine.allow_network(self.given.network)
        self.told: list[str] = []
        self.limit_s, self.memory_bytes = self.given.limit_s, self.given.memory_bytes
        self._reference = Path(path).parent / REFERENCE
        self.ship: Callable[[object], bytes] = load(PICKLERS["spark"])

    def graph(self) -> ApplicationGraph:
        """A new copy of the application, with its code and what that keeps."""
        graph: ApplicationGraph = pickle.loads(self.given.graph)  # noqa: S301 - the parent process made it
        return graph

    def job(self, choices: Choices) -> JobUnderTest:
        config = self._config(
            batch=(4, 1, 20)[choices.draw(3)],
            commit_ms=(3000, 500, 10_000)[choices.draw(3)],
        )
        containers = (2, 1, 3)[choices.draw(3)]
        feed = self._feed(choices)
        at_once = max(1, min(8, len(feed) // 8))  # few messages come one by one, so that something happens between them
        job = JobUnderTest(self.graph, config, self.given.streams, feed, at_once, containers, ship=self.ship)
        return self._job(job)

    def _job(self, job: JobUnderTest) -> JobUnderTest:
        """Without commands that change the results: a drain, for example, closes windows early. Side inputs are there
        from the beginning: what a message finds in their stores depends on time."""
        read = {op.stream for op in self.graph().inputs}
        feed, before = ([each for each in job.feed if (each[0] in read) is is_input] for is_input in (True, False))
        job = replace(job, feed=feed, before=before)
        return replace(job, may_drain=False, may_go_back=False, may_repartition=False)

    def rates(self, choices: Choices) -> Rates:
        rates = Rates().scaled((1.0, 0.2, 3.0)[choices.draw(3)])
        return replace(rates.known_to_users(), kill_s=(4.0, 12.0, 30.0)[choices.draw(3)])

    def broken(self, outcome: Outcome) -> list[str]:
        found = self._broken_invariants(outcome)
        if self.given.compares and self._reference.exists():
            reference = json.loads(self._reference.read_bytes())
            compared = [(kind, name) for kind, name in reference["compared"]]
            found += Reference(Results.of(reference["results"]), compared, {}).broken(self.results(outcome))
        return found

    def asked(self, request: dict[str, Any]) -> tuple[UsersSubject, Choices, int]:
        variant = request.get("variant", 0)
        choices = Choices.of_seed(-variant) if variant else Choices.of_list(())
        return CalmSubject(self, request), choices, request.get("seed", 0)

    def profile(self) -> Any:
        return None

    def more(self, outcome: Outcome) -> dict[str, Any]:
        return {}

    # What was read and written.

    def results(self, outcome: Outcome) -> Results:
        """Outputs and stores in words."""
        decoded = Decoded(self.graph(), self.given, outcome)
        outputs = {
            name: [(text_of(each.key), text_of(each.value)) for each in messages]
            for name, messages in decoded.outputs().items()
        }
        stores = {
            store: {f"{text_of(key)} of task {task}": text_of(value) for task, key, value in entries}
            for store, entries in decoded.stores().items()
            if not store.endswith(WAITING_STORES)
        }
        return Results(outputs, stores)

    def _broken_invariants(self, outcome: Outcome) -> list[str]:
        functions: Sequence[Callable[..., object]] = pickle.loads(self.given.invariants)  # noqa: S301
        if not functions:
            return []
        decoded = Decoded(self.graph(), self.given, outcome)
        stores = {
            store: {key: value for _, key, value in entries}
            for store, entries in decoded.stores().items()
            if not store.endswith(WAITING_STORES)
        }
        found: list[str] = []
        for function in functions:
            name = getattr(function, "__name__", repr(function))
            try:
                told = function(
                    _Named("input", decoded.inputs()), _Named("output", decoded.outputs()), _Named("store", stores)
                )
            except (Exception, SystemExit) as error:
                place = _last_place(error)
                found.append(f"invariant `{name}`: {type(error).__name__}: {str(error) or 'it does not hold'}{place}")
            else:
                if isinstance(told, str) and told:
                    found.append(f"invariant `{name}`: {told}")
                elif told is not None:
                    advice = "use `assert`, or return a text if it does not hold"
                    found.append(f"invariant `{name}` returned {told!r}: {advice}")
        return found

    # What is fed.

    def _config(self, *, batch: int, commit_ms: int) -> dict[str, object]:
        return {
            **self.given.config,
            "job.batch.max.messages": batch,
            "job.batch.target.ms": 0,
            "task.commit.ms": commit_ms,
        }

    def _feed(self, choices: Choices) -> list[Fed]:
        given = self.given
        rng = random.Random(choices.draw(1 << 16))  # noqa: S311 - reproducible, not secret
        feed: list[Fed] = list(given.feed)
        if choices.draw(2):
            feed = _interleaved(feed, rng)
        for streams, delay in ((given.doubled, False), (given.late, True)):
            if streams and choices.draw(4):
                feed = self._disturbed(feed, streams, rng, move=delay)
        return feed

    def _disturbed(
        self, feed: Sequence[Fed], streams: frozenset[SystemStream], rng: random.Random, *, move: bool
    ) -> list[Fed]:
        """Some messages of these streams come later: they themselves, or a second time."""
        found: list[Fed] = []
        waiting: list[tuple[int, Fed]] = []
        number_of = Counter[object]()
        for number, each in enumerate(feed):
            hit = each[0] in streams and rng.randrange(1000) < _PER_MILLE
            if hit:
                later = rng.choice((0, 1, 5, 20))
                waiting.append((number + later, each))
                when = f"{counted(later, 'message')} later" if later else "at once"
                if later or not move:
                    self.told.append(
                        f"message {number_of[each[:2]]} of input `{each[0]}` partition {each[1]} comes "
                        f"{when if move else f'again, {when}'}"
                    )
            number_of[each[:2]] += 1
            if not (hit and move):
                found.append(each)
            found += [late for at, late in waiting if at <= number]
            waiting = [(at, late) for at, late in waiting if at > number]
        return found + [late for _, late in waiting]


class CalmSubject(UsersSubject):
    """Lives without faults. Of their request, `variant` chooses other batches and a time that passes otherwise, and
    `watch` has calls reported that are not the same in each life."""

    def __init__(self, whole: UsersSubject, request: Mapping[str, Any]) -> None:
        self.given = whole.given
        self.limit_s, self.memory_bytes = whole.limit_s, whole.memory_bytes
        self.ship = whole.ship
        self.told = []
        self._variant: int = request.get("variant", 0)
        self._finder = CallFinder() if request.get("watch") else None

    def job(self, choices: Choices) -> JobUnderTest:
        config = self._config(batch=(4, 1, 7, 1000)[self._variant % 4], commit_ms=3000)
        finder = self._finder
        graph = self.graph if finder is None else lambda: finder.watched(self.graph())
        ship = self.ship if finder is None else None
        feed: list[Fed] = list(self.given.feed)
        if self._variant:
            feed = _interleaved(feed, random.Random(self._variant))  # noqa: S311
        containers = 2 if self._variant % 2 == 0 else 1
        return self._job(
            JobUnderTest(graph, config, self.given.streams, feed, containers=containers, fed=True, ship=ship)
        )

    def rates(self, choices: Choices) -> Rates:
        return replace(Rates().scaled(0).known_to_users(), slow=30 if self._variant else 0)

    def profile(self) -> Any:
        return None if self._finder is None else self._finder.profile

    def broken(self, outcome: Outcome) -> list[str]:
        return self._broken_invariants(outcome)

    def more(self, outcome: Outcome) -> dict[str, Any]:
        results = self.results(outcome)
        calls = [] if self._finder is None else [each.as_json() for each in self._finder.found.values()]
        return {"results": {"outputs": results.outputs, "stores": results.stores}, "calls": calls}


class UnknownNameError(ConfigError, KeyError):
    """An invariant asks for an input, output or store that the application does not have."""

    def __str__(self) -> str:  # and not as KeyError shows its text
        return str(self.args[0])


class _Named(dict[str, T]):
    """Values by name. The error for another name says which there are."""

    def __init__(self, noun: str, values: Mapping[str, T]) -> None:
        super().__init__(values)
        self._noun = noun

    def __missing__(self, name: object) -> T:
        known = listed([f"`{each}`" for each in sorted(self)]) or f"no {self._noun}"
        raise UnknownNameError(f"there is no {self._noun} `{name}`; the application has {known}")


class Decoded:
    """Messages and entries as the application has them."""

    def __init__(self, graph: ApplicationGraph, given: UsersJob, outcome: Outcome) -> None:
        names = {stream.system for stream in given.streams} - {DEFAULT_SYSTEM}
        keys = {**given.config, **{SystemKeys.factory.full(name): "memory" for name in names}}
        self._graph = complete(graph, load_config(overrides=keys, environ={}, default_job_name="job"))
        self._outcome = outcome

    def inputs(self) -> dict[str, list[OutputMessage]]:
        """Input → its messages."""
        return {str(op.stream): self._messages(op.stream, op.key_serde, op.value_serde) for op in self._graph.inputs}

    def outputs(self) -> dict[str, list[OutputMessage]]:
        """Output → its messages."""
        outputs = self._graph.outputs
        return {str(each.stream): self._messages(each.stream, each.key_serde, each.value_serde) for each in outputs}

    def stores(self) -> dict[str, list[tuple[int, Any, Any]]]:
        """Store → (task, key, value) of its entries, as of the last checkpoint."""
        log = self._outcome.log
        record = None if log is None else log.latest
        specs = {spec.name: spec for spec in self._graph.written_stores}
        found: dict[str, list[tuple[int, Any, Any]]] = {name: [] for name in specs}
        for name, entries in self._outcome.stores.items():
            if record is not None and name in specs:
                spec = specs[name]
                values = aggregate_states(StoreLayout.parse(record.stores[name]).value) or spec.value_serde
                found[name] = [(task, _read(spec.key_serde, key), _read(values, value)) for task, key, value in entries]
        return found

    def _messages(self, stream: SystemStream, keys: Serde[Any], values: Serde[Any]) -> list[OutputMessage]:
        return [
            OutputMessage(_read(keys, key), _read(values, value), partition, offset, timestamp, *headers)
            for partition, records in sorted(self._outcome.streams.get(_shown(stream), {}).items())
            for offset, (timestamp, key, value, *headers) in enumerate(records)
        ]


def _shown(stream: SystemStream) -> str:
    return stream.stream if stream.system == "m" else str(stream)


def _read(serde: Serde[Any], data: bytes | None) -> Any:
    """The decoded value; the bytes themselves where the serde does not read them, as the job found."""
    if data is None:
        return None
    try:
        return serde.from_bytes(data)
    except Exception:
        return data


def _interleaved(feed: Sequence[Fed], rng: random.Random) -> list[Fed]:
    """The same messages, those of different partitions in another order."""
    queues: dict[object, list[Fed]] = {}
    for each in feed:
        queues.setdefault((each[0], each[1]), []).append(each)
    turns = [own for own in queues.values() for _ in own]
    rng.shuffle(turns)
    heads = {id(own): iter(own) for own in queues.values()}
    return [next(heads[id(own)]) for own in turns]


def _last_place(error: BaseException) -> str:
    """The line of the user's code that raised."""
    trace = error.__traceback__
    frame = None
    while trace is not None:
        if users_frame(trace.tb_frame) is trace.tb_frame:
            frame = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return frame or ""
