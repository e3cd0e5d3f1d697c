"""The meaning of obstore's errors: retry or give up, the remedy, and the service's own words."""

from __future__ import annotations

import re
from enum import Enum

from obstore import exceptions as obstore_errors

NOT_FOUND = (obstore_errors.NotFoundError, FileNotFoundError)
TAKEN = (
    obstore_errors.AlreadyExistsError,
    FileExistsError,
    obstore_errors.PreconditionError,
    obstore_errors.NotModifiedError,
)
CHANGED = (*TAKEN, *NOT_FOUND)
_DENIED = (obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError, PermissionError)
_UNSUPPORTED = (obstore_errors.NotSupportedError, obstore_errors.UnknownConfigurationKeyError, NotImplementedError)

_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>|specified bucket does not exist")
_NO_CREDENTIALS = re.compile(r"latest/api/token|latest/meta-data|computeMetadata|job/identity|Missing \w*Key")
_LATE = "<Code>RequestTimeout</Code>"
"""S3's 400 for a body that came too slowly."""
_FORBIDDEN = re.compile(r"status code: 40[13]")
_REFUSED = re.compile(r"status code: (?!408|409|412|425|429)4\d\d|incorrectly configured region")
_SAID = re.compile(r"<Code>(?P<code>[^<]*)</Code>(?:\s*<Message>(?P<message>[^<]*)</Message>)?")
_SYSTEM = re.compile(r'message: "([^"]+)"')
_DETAILS = "\n\nDebug source:"


class Cause(Enum):
    """The cause of a failed call, with the remedy."""

    NO_BUCKET = "The bucket does not exist: create it, or correct `job.root`"
    NO_CREDENTIALS = (
        "There are no credentials in the environment, and the machine provides none: set them, for example "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for the driver and for the executors"
    )
    DENIED = "Check the credentials in the environment and the rights they carry"
    PLAIN_HTTP = (
        "If the endpoint begins with http://, allow it with AWS_ALLOW_HTTP=true (GOOGLE_ALLOW_HTTP, AZURE_ALLOW_HTTP)"
    )
    UNSUPPORTED = "The store must support conditional writes"
    REFUSED = "The service rejects the request: check endpoint, region and `job.root`"
    PASSING = "Retries did not help. Check that the service is up, and reachable at the endpoint in the environment"

    @property
    def may_pass(self) -> bool:
        return self is Cause.PASSING


def cause_of(error: Exception) -> Cause:
    """Classify an error of obstore. An unknown one may pass."""
    text = str(error)
    if _NO_BUCKET.search(text):
        return Cause.NO_BUCKET
    first = text.partition("\n")[0]
    if isinstance(error, _DENIED) or _FORBIDDEN.search(first):  # obstore has no separate kind for a listing
        return Cause.DENIED
    if isinstance(error, _UNSUPPORTED):
        return Cause.UNSUPPORTED
    if _NO_CREDENTIALS.search(first):
        return Cause.NO_CREDENTIALS
    if "HTTP error: builder error" in first:
        return Cause.PLAIN_HTTP
    return Cause.REFUSED if _REFUSED.search(first) and _LATE not in text else Cause.PASSING


def reason(error: Exception) -> str:
    """The error in one line: obstore's own first one, and the words of the service or the system."""
    told, _, details = str(error).partition(_DETAILS)
    first = told.partition("\n")[0].partition("<?xml")[0].rstrip(" :.")
    said = _SAID.search(told)
    if said:
        return f"{first}: {': '.join(part.strip().rstrip('.') for part in said.groups() if part)}"
    system = _SYSTEM.search(details)
    return f"{first}: {system[1]}" if system else first
