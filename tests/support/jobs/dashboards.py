"""The dashboard of the jobs in a folder, and its requests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock import admin
from penstock.dashboard.server import Dashboard
from penstock.dashboard.watch import Watches

TOKEN = "the-token-of-a-test"


@contextmanager
def dashboard(host: str = "127.0.0.1") -> Iterator[Dashboard]:
    """The dashboard of the jobs in PENSTOCK_HOME."""
    served = Dashboard(Watches(admin.open_job, admin.open_all_jobs), admin.open_job, host=host, port=0, token=TOKEN)
    try:
        yield served
    finally:
        served.close()


def request(
    served: Dashboard, path: str, body: object = None, *, token: str | None = TOKEN, **headers: str
) -> tuple[int, Any, Mapping[str, str]]:
    """The status of an answer, its JSON, and its headers. With a body it is a POST; token None is a stranger's."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    if body is not None:
        sent.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, sent)
        answer = connection.getresponse()
        content = answer.read()
        is_json = answer.getheader("Content-Type") == "application/json"
        return answer.status, json.loads(content) if is_json else content, dict(answer.getheaders())
    finally:
        connection.close()


@contextmanager
def events(served: Dashboard, job: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The pages of a job as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request("GET", f"/api/events?job={job}", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()

    def pages() -> Iterator[dict[str, Any]]:
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    try:
        yield pages()
    finally:
        connection.close()
