"""The server of the dashboard: pages, events, look-ups and actions."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import cache, partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import orjson

from penstock.base.secrets import PROGRAM, without_secrets
from penstock.dashboard.access import AT_ONCE, HEADERS, WAITING, Access, AddressFile, guarded_protocol
from penstock.dashboard.requests import ACTIONS, LOOKUPS
from penstock.dashboard.watch import OpenJob, Page, Watches
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)
T = TypeVar("T")

STREAMS = 64
"""Pages that get events at once; further ones are refused."""
CALLS = 8
"""Look-ups and actions at once; further ones are refused."""
LOOK_S = 0.25
BEAT_S = 5.0
"""The most time between two events: pages know by then that nothing has changed, or that the server is gone."""
_LARGEST = 65_536
"""Bytes of a request's body."""
_TOKEN = re.compile(r"[!-~]{16,}")
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PACKAGES = ("starlette", "uvicorn", "plotly")


class Dashboard:
    """Serves pages from separate threads until it is closed."""

    def __init__(
        self,
        watches: Watches,
        open_job: OpenJob,
        *,
        host: str,
        port: int,
        token: str | None = None,
        home: str = "",
        address_file: Path | None = None,
    ) -> None:
        """Listen. Port 0 is any free one.

        Args:
            watches: the pages. They are closed with the server.
            open_job: opens the job of a name, for look-ups and actions.
            host: the address to listen on.
            port: the port.
            token: what every request about jobs needs; None makes one.
            home: the job that is shown first; empty for the list.
            address_file: a file for the address, where it is not printed. A token that was given is in no file.

        Raises:
            ConfigError: nothing can listen there, a package is missing, the token is too short, or the file cannot be
                written.
        """
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"the dashboard needs {', '.join(missing)}: `pip install 'penstock-streams[dashboard]'` installs them"
            )
        if token is not None and _TOKEN.fullmatch(token) is None:
            raise ConfigError(
                "the dashboard's token can be guessed or typed wrongly: at least 16 letters, digits and signs are "
                "expected, without blanks, such as `openssl rand -hex 16` prints"
            )
        self.token = secrets.token_urlsafe(18) if token is None else token
        self._is_chosen = token is not None
        self._socket = _listening(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._file = self._written(address_file)
        self._watches = watches
        self._closing = threading.Event()
        access = Access(host, self.token)
        self._application = _Application(watches, open_job, access, home, self._closing)
        self._server = _server(self._application.routes(), access)
        self._thread = threading.Thread(target=self._run, name="penstock-dashboard", daemon=True)
        self._thread.start()

    def _written(self, file: Path | None) -> AddressFile | None:
        if file is None or self._is_chosen:
            return None
        try:
            return AddressFile(file, self.url_with_token)
        except ConfigError:
            self._socket.close()
            raise

    @property
    def url(self) -> str:
        """The address, without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    @property
    def url_with_token(self) -> str:
        """The address for a browser. What follows `#` is not sent to the server, and so is in no log."""
        return f"{self.url}#token={quote(self.token, safe='')}"

    @property
    def logged_url(self) -> str:
        """The address for a log, and the file that has the token."""
        return self.url if self._file is None else f"{self.url} (with its token in `{self._file.path}`)"

    @property
    def printed_url(self) -> str:
        """The address for a terminal, and for no log. It has the token, unless the user has chosen that."""
        return self.url if self._is_chosen else self.url_with_token

    def close(self, *, wait: bool = True) -> None:
        """End the server and all that it began.

        Args:
            wait: return only when its thread has ended.
        """
        if self._file is not None:
            self._file.remove()
        self._closing.set()
        self._server.should_exit = True
        self._watches.close()
        if wait:
            self._thread.join(10)
            self._socket.close()

    def _run(self) -> None:
        PROGRAM.set("dashboard")
        self._server.run(sockets=[self._socket])


def _listening(host: str, port: int) -> socket.socket:
    """Raises ConfigError if nothing can listen there."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the dashboard cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}. Choose a "
            "free port, and an address of this host"
        ) from error


def _server(routes: Any, access: Access) -> Any:
    """The server of the routes. A connection keeps its place once `access` knows it."""
    import uvicorn  # an extra

    config = uvicorn.Config(
        routes,
        http=guarded_protocol(access.knows),
        proxy_headers=False,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        backlog=AT_ONCE,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it would report calls that its end cuts off

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for each in sockets or ():
                each.listen(WAITING)

    return Server(config)


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
        self._calls = threading.BoundedSemaphore(CALLS)

    def routes(self) -> Any:
        from starlette.applications import Starlette  # an extra, here and below
        from starlette.routing import Route

        routes = [
            Route("/", self._index),
            Route("/static/{name}", self._static),
            Route("/plotly.js", self._plotly),
            Route("/api/home", self._home_page),
            Route("/api/events", self._events),
            Route("/api/look/{what}", self._look_up, methods=["POST"]),
            Route("/api/do/{what}", self._act, methods=["POST"]),
        ]
        made = Starlette(routes=routes)
        made.router.redirect_slashes = False  # it would answer with an address made of what the client says
        return made

    async def _index(self, request: Request) -> Response:
        return _file("page.html")

    async def _static(self, request: Request) -> Response:
        return _file(request.path_params["name"])

    async def _plotly(self, request: Request) -> Response:
        from starlette.responses import Response

        headers = {**HEADERS, "Cache-Control": "max-age=86400", "Content-Encoding": "gzip"}
        return Response(_charts(), media_type="text/javascript", headers=headers)

    async def _home_page(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        return _answer({"job": self._home})

    async def _look_up(self, request: Request) -> Response:
        lookup = LOOKUPS.get(request.path_params["what"])
        return await self._call(request, lookup)

    async def _act(self, request: Request) -> Response:
        action = ACTIONS.get(request.path_params["what"])
        return await self._call(request, None if action is None else action.answer)

    async def _call(self, request: Request, call: Callable[..., Any] | None) -> Response:
        """Call with the job that the request names, in a thread."""
        if (refused := self._refused(request)) is not None:
            return refused
        if call is None:
            return _answer({"error": "there is no such request"}, 404)
        try:
            given = await _body(request)
            name = given["job"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return _answer({"error": "an object of JSON that names a job is expected"}, 400)
        if not self._calls.acquire(blocking=False):
            return _answer({"error": "too many look-ups at once: try again in a moment"}, 503)

        def run() -> Any:
            with self._open_job(name) as job:
                return call(job, given)

        try:
            return _answer(await in_thread(run, self._calls.release))
        except PenstockError as error:
            return _answer({"error": str(error)}, 409)
        except Exception as error:
            logger.exception("the dashboard could not answer a request")
            return _answer({"error": without_secrets(f"{type(error).__name__}: {error}")}, 500)

    def _refused(self, request: Request) -> Response | None:
        found = self._access.refuses(request.method, request.headers.raw)
        return None if found is None else _answer({"error": found.reason}, found.status)

    async def _events(self, request: Request) -> Response:
        """The page of a job, whenever it has changed. A client that is slow gets the newest page next, and not all."""
        from starlette.responses import StreamingResponse

        job = request.query_params.get("job", "")
        if (refused := self._refused(request)) is not None:
            return refused
        if (problem := await self._problem_of(job)) is not None:
            return _answer({"error": problem}, 404)
        page = self._watches.page(job)
        if page is None or self.streams >= STREAMS:
            return _answer({"error": "too many pages are open: close some of them"}, 503)
        return StreamingResponse(self._pages(page, job), media_type="text/event-stream", headers=HEADERS)

    async def _problem_of(self, job: str) -> str | None:
        """Why a page of the job cannot be watched. Only a job that is there gets a thread that looks at it."""
        if not job or self._watches.knows(job):
            return None

        def look() -> None:
            with self._open_job(job):
                pass

        try:
            await in_thread(look)
        except PenstockError as error:
            return str(error)
        return None

    async def _pages(self, page: Page, job: str) -> AsyncIterator[bytes]:
        self.streams += 1
        try:
            seen, quiet = (page, 0), 0.0
            while not self._closing.is_set():
                page = self._watches.page(job) or page  # somebody still looks
                now, document = (page, page.version), page.document
                if now != seen and page.version:
                    yield _event({**document, "looked_ms": page.looked_ms})
                    seen, quiet = now, 0.0
                elif quiet >= BEAT_S:
                    yield _event({"looked_ms": page.looked_ms})
                    quiet = 0.0
                await asyncio.sleep(LOOK_S)
                quiet += LOOK_S
        finally:
            self.streams -= 1


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"


async def in_thread(call: Callable[[], T], after: Callable[[], None] = lambda: None) -> T:
    """The result of a call in a thread that does not keep the process from ending. `after` is called behind it."""
    loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    context = copy_context()

    def give(set_result: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_result(value)

    def run() -> None:
        try:
            found: Any = context.run(call)
            outcome = partial(give, done.set_result, found)
        except BaseException as error:
            outcome = partial(give, done.set_exception, error)
        finally:
            after()
        with suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(outcome)

    threading.Thread(target=run, name="penstock-dashboard-call", daemon=True).start()
    return await done  # type: ignore[no-any-return]


async def _body(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _LARGEST:
            raise ValueError("too long")
    found = json.loads(data)
    if not isinstance(found, dict) or not all(_is_plain(value) for value in found.values()):
        raise TypeError("not an object of texts")
    return found


def _is_plain(value: object) -> bool:
    """True for what pages send: texts, switches, and the lines of a plan."""
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="replace").decode() == value
    return isinstance(value, bool) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


@cache
def _charts() -> bytes:
    return gzip.compress((files("plotly") / "package_data" / "plotly.min.js").read_bytes(), mtime=0)


@cache
def _page_files() -> Mapping[str, bytes]:
    """The files of the page by name: no path is made of what a stranger sends."""
    folder = files("penstock.dashboard") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _KINDS}


def _file(name: str) -> Response:
    from starlette.responses import Response

    content = _page_files().get(name)
    if content is None:
        return _answer({"error": "there is no such page"}, 404)
    return Response(content, media_type=_KINDS[name.rpartition(".")[2]], headers=HEADERS)


def _answer(content: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    headers = HEADERS if status != 401 else {**HEADERS, "WWW-Authenticate": "Bearer"}
    return Response(orjson.dumps(content), status, media_type="application/json", headers=headers)
