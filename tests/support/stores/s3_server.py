"""An S3 server in memory: `python s3_server.py <address> <bucket>`.

It makes the bucket, prints its port and ends when its standard input is closed, so with its parent process. One
request is served at a time: S3 decides a conditional write at once, moto looks first and writes then.
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

PAGE = 7
"""A listing answers with so many keys at most, so that every test reads several pages."""


def main() -> None:
    """Serve until standard input ends."""
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(PAGE)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    address, bucket = sys.argv[1:]
    server = make_server(address, 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection(address, server.server_port, timeout=60)
    connection.request("PUT", f"/{bucket}")
    assert connection.getresponse().status == 200
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
