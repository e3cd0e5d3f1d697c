"""The server of the dashboard: pages, events, look-ups and actions."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import orjson

from penstock.admin.jobs import FoundJob
from penstock.admin.program import PROGRAM
from penstock.dashboard.access import HEADERS, Access
from penstock.dashboard.actions import ACTIONS, Action
from penstock.dashboard.lookups import LOOKUPS
from penstock.dashboard.watch import OpenJob, Page, Watches
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

STREAMS = 64
"""Pages that get events at once; further ones are refused."""
CONNECTIONS = 256
LOOK_S = 0.25
BEAT_S = 15.0
"""The most time between two events: a client that is gone is noticed by then."""
PATIENCE_S = 20.0
"""A client that takes nothing for so long, or sends no request, is cut off."""
_LARGEST = 65_536
"""Bytes of a request's body."""
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PACKAGES = ("starlette", "uvicorn", "plotly")


class Dashboard:
    """Serves pages from separate threads until it is closed."""

    def __init__(
        self, watches: Watches, open_job: OpenJob, *, host: str, port: int, token: str | None = None, home: str = ""
    ) -> None:
        """Listen. Port 0 is any free one.

        Args:
            watches: the pages. They are closed with the server.
            open_job: opens the job of a name, for look-ups and actions.
            host: the address to listen on.
            port: the port.
            token: what changes need, and reading from elsewhere; None makes one.
            home: the job that is shown first; empty for the list.

        Raises:
            ConfigError: nothing can listen there, or a package is missing.
        """
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"the dashboard needs {', '.join(missing)}: `pip install 'penstock-streams[dashboard]'` installs them"
            )
        import uvicorn

        self.token = secrets.token_urlsafe(18) if token is None else token
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
        except OSError as error:
            raise ConfigError(
                f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}. Choose a free port, and an "
                "address of this host"
            ) from error
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._home = home
        self._watches = watches
        self._closing = threading.Event()
        self._application = app = _Application(watches, open_job, Access(host, self.token), home, self._closing)
        config = uvicorn.Config(
            app.routes(),
            http=_impatient(),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="penstock-dashboard", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address, without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    @property
    def url_with_token(self) -> str:
        """The address for a browser. What follows `#` is not sent to the server, and so is in no log."""
        return f"{self.url}#token={self.token}"

    def close(self) -> None:
        """End the server and all that it began."""
        self._closing.set()
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
        self._watches.close()

    def _run(self) -> None:
        PROGRAM.set("dashboard")
        self._server.run(sockets=[self._socket])


class _Application:
    def __init__(
        self, watches: Watches, open_job: OpenJob, access: Access, home: str, closing: threading.Event
    ) -> None:
        self._watches = watches
        self._open_job = open_job
        self._access = access
        self._home = home
        self._closing = closing
        self.streams = 0
        """The clients that get events now."""

    def routes(self) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Route

        routes = [
            Route("/", self._index),
            Route("/static/{name}", self._static),
            Route("/plotly.js", self._plotly),
            Route("/api/home", self._home_page),
            Route("/api/events", _Events(self._events)),
            Route("/api/look/{what}", self._look_up, methods=["POST"]),
            Route("/api/do/{what}", self._act, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _index(self, request: Request) -> Response:
        return _file("page.html")

    async def _static(self, request: Request) -> Response:
        return _file(request.path_params["name"])

    async def _plotly(self, request: Request) -> Response:
        from starlette.responses import Response

        script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
        return Response(script, media_type="text/javascript", headers={**HEADERS, "Cache-Control": "max-age=86400"})

    async def _home_page(self, request: Request) -> Response:
        if (refused := self._refused(request, changes=False)) is not None:
            return refused
        return _answer({"job": self._home})

    async def _look_up(self, request: Request) -> Response:
        lookup = LOOKUPS.get(request.path_params["what"])
        return await self._call(request, changes=False, call=lookup)

    async def _act(self, request: Request) -> Response:
        action = ACTIONS.get(request.path_params["what"])
        return await self._call(request, changes=True, call=None if action is None else partial(_act, action))

    async def _call(self, request: Request, *, changes: bool, call: Callable[..., Any] | None) -> Response:
        """Call with the job that the request names, in a thread."""
        if (refused := self._refused(request, changes=changes)) is not None:
            return refused
        if call is None:
            return _answer({"error": "there is no such request"}, 404)
        try:
            given = await _body(request)
            name = str(given["job"])
        except (ValueError, KeyError, TypeError):
            return _answer({"error": "an object of JSON that names a job is expected"}, 400)

        def run() -> Any:
            with self._open_job(name) as job:
                return call(job, given)

        try:
            return _answer(await asyncio.get_running_loop().run_in_executor(None, copy_context().run, run))
        except PenstockError as error:
            return _answer({"error": str(error)}, 409)

    def _refused(self, request: Request, *, changes: bool) -> Response | None:
        found = self._access.refuses(request.method, request.headers, changes=changes)
        return None if found is None else _answer({"error": found.reason}, found.status)

    async def _events(self, request: Request, send: Send) -> None:
        """The page of a job, whenever it has changed. A client that is slow gets the newest page next, and not all."""
        refused = self._refused(request, changes=False)
        page = None if refused is not None else self._watches.page(request.query_params.get("job", ""))
        if page is None or self.streams >= STREAMS:
            answer = refused or _answer({"error": "too many pages are open: close some of them"}, 503)
            await answer(request.scope, request.receive, send)
            return
        self.streams += 1
        try:
            await self._send_pages(request, page, send)
        except (TimeoutError, OSError):
            return  # the client is gone, or takes nothing
        finally:
            self.streams -= 1

    async def _send_pages(self, request: Request, page: Page, send: Send) -> None:
        async def write(message: dict[str, Any]) -> None:
            await asyncio.wait_for(send(message), PATIENCE_S)

        gone = asyncio.ensure_future(_gone(request))
        headers = {**HEADERS, "Content-Type": "text/event-stream"}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        try:
            await write({"type": "http.response.start", "status": 200, "headers": raw})
            seen, quiet = 0, 0.0
            while not self._closing.is_set() and not gone.done():
                self._watches.page(request.query_params.get("job", ""))  # somebody still looks
                version, document = page.version, page.document
                if version != seen:
                    event = b"data: " + orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"
                    await write({"type": "http.response.body", "body": event, "more_body": True})
                    seen, quiet = version, 0.0
                elif quiet >= BEAT_S:
                    await write({"type": "http.response.body", "body": b": beat\n\n", "more_body": True})
                    quiet = 0.0
                await asyncio.sleep(LOOK_S)
                quiet += LOOK_S
            await write({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()


class _Events:
    """An endpoint that sends by itself: Starlette's own streams wait for a slow client without an end."""

    def __init__(self, serve: Callable[[Request, Send], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request

        await self._serve(Request(scope, receive), send)


def _act(action: Action, job: FoundJob, given: Mapping[str, Any]) -> dict[str, Any]:
    """Say what the action would do or, once it is confirmed, do it."""
    confirmed = given.get("confirmed") is True
    return {"lines": (action.do if confirmed else action.plan)(job, given), "done": confirmed}


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _LARGEST:
            raise ValueError("too long")
    found = json.loads(data)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


def _file(name: str) -> Response:
    from starlette.responses import Response

    place = files("penstock.dashboard") / "static" / name
    kind = _KINDS.get(name.rpartition(".")[2])
    if kind is None or not place.is_file():
        return _answer({"error": "there is no such page"}, 404)
    return Response(place.read_bytes(), media_type=kind, headers=HEADERS)


def _answer(content: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(orjson.dumps(content), status, media_type="application/json", headers=HEADERS)


def _impatient() -> Any:
    """The protocol of a connection, which is closed if no request comes."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(PATIENCE_S, self._give_up)

        def _give_up(self) -> None:
            if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
                self.transport.close()

    return Impatient
