"""Secrets: signatures with the keys of a root, and texts that show no secret.

A signature proves that its writer has the key, and wrote for this place. Secrets are hidden where texts are made: in
errors, failures of applications and lines of logs, and in the command line that the audit log shows.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache

ID_BYTES = 8
MAC_BYTES = hashlib.sha256().digest_size
PROGRAM: ContextVar[str] = ContextVar("penstock-program", default="python")
"""The program that the audit log names: the command line, without secrets; `python` where a program calls functions."""


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The keys with which the objects of a root are signed, and Penstock's records in Kafka; without any, nothing is.

    Example:
        >>> RootKeys(), RootKeys("the key of this root, 32 characters or more").all
        (RootKeys(), ('the key of this root, 32 characters or more',))
    """

    current: str | None = field(default=None, repr=False)
    """Signs and verifies."""
    previous: str | None = field(default=None, repr=False)
    """Verifies older signatures."""

    @property
    def all(self) -> tuple[str, ...]:
        """The keys that verify; the first one signs."""
        return tuple(key for key in (self.current, self.previous) if key is not None)


class RootSigner:
    """The keys of a root, by their ids. An id names its key, and says nothing about it.

    Example:
        >>> signer = RootSigner(RootKeys("the key of this root, 32 characters or more"))
        >>> len(signer.current), signer.mac(b"here", signer.current).digest_size
        (8, 32)
    """

    def __init__(self, keys: RootKeys) -> None:
        """`keys`: the first one signs; each of them verifies. There is at least one."""
        self._keys = {_id_of(key): key.encode() for key in reversed(keys.all)}
        self.current = _id_of(keys.all[0])

    @property
    def ids(self) -> tuple[bytes, ...]:
        return tuple(reversed(self._keys))

    def mac(self, place: bytes, named: bytes) -> hmac.HMAC:
        """The HMAC with SHA-256 by the key of the id `named`, to be updated with the content of the place."""
        return hmac.new(self._keys[named], len(place).to_bytes(4, "big") + place, hashlib.sha256)


def _id_of(key: str) -> bytes:
    return hmac.new(key.encode(), b"the name of this key", hashlib.sha256).digest()[:ID_BYTES]


HIDDEN = "..."
"""Stands where a secret was."""

_IN_NAMES = re.compile(
    r"(?i)secret|password|passwd|passphrase|passcode|token|credential|jaas|\.pem|keystore\.key|webhook"
    r"|connection[._-]?string|auth\.user\.info|oauthbearer\.config"
    r"|(access|account|aes|api|auth|cipher|cmk|consumer|customer|decryption|encryption|fernet|functions|hmac|kms|licen[cs]e|master|private|root|rsa|shared"
    r"|signing|sse|ssh|storage|subscription|symmetric|unseal)[._-]?key(?!board)|(client|server|ssl|tls)[._-]?key$"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ANYWHERE = frozenset({"sas", "dsn", "jwt", "cookie", "cookies", "otp", "hmac", "authorization", "bearer", "creds"})
"""Words of names whose values are secret, whatever else is in the name."""
_ENDINGS = ("pass", "pwd", "pw", "passwort", "dsn", "jwt")
_NO_ENDINGS = frozenset({"bypass", "compass"})
_LAST = frozenset({"auth", "oauth", "private", "signature", "sig", "pat", "pin"})
"""Words that say so at the end of a name only: `auth` has a secret, `auth.type` has none."""
_QUALIFIERS = frozenset({
    "previous", "old", "new", "next", "current", "value", "text", "default", "primary", "secondary", "backup",
    "base64", "b64", "hex", "json", "data", "header", "string", "info", "code", "user", "bytes", "pem", "jwk",
})  # fmt: skip
"""Words at the end of a name that leave its meaning."""
_SHORT_IN_QUERIES = frozenset({"sig", "signature", "key", "code", "pw", "pat", "hmac", "auth", "s", "k"})
"""Parameters of URLs that are secret there, such as the `sig` of a signed address."""


@lru_cache(1024)
def is_secret(name: str) -> bool:
    """True if the value of a key may be secret: no message, log or table shows it.

    Example:
        >>> is_secret("systems.kafka.consumer.sasl.jaas.config"), is_secret("app.kms.key"), is_secret("task.commit.ms")
        (True, True, False)
    """
    if _IN_NAMES.search(name) is not None:
        return True
    words = [each.lower() for each in _WORD.findall(name)]
    if any(each in _ANYWHERE or (each.endswith(_ENDINGS) and each not in _NO_ENDINGS) for each in words):
        return True
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _QUALIFIERS):
        words.pop()
    return bool(words) and (words[-1] in _LAST or words[-1].endswith("auth"))


_STOP = r"\s\"'`<>"
_AUTHORITY = re.compile(rf"(?:(?<=:)|(?<![^{_STOP}=(\[,]))//")
_USER = re.compile(rf"[^{_STOP}/?#\\]{{0,1000}}@")
_LONG_USER = re.compile(rf"[^{_STOP}/?#\\@:]{{0,200}}:(?![0-9]{{1,5}}(?:[/?#,]|$))[^{_STOP}\\@]{{0,300}}@")
"""A user with a password that has `/`, `?` or `#`, which should have been encoded."""
_BEFORE_HOSTS = ("abfs:", "abfss:", "wasb:", "wasbs:")
"""Schemes in which a container stands where others have a user."""
_ORACLE = re.compile(rf"(?i)(?<=oracle:)((?:thin|oci8?):)[^{_STOP}@/]{{1,200}}/[^{_STOP}@]{{1,200}}(?=@)")
_PAIR = re.compile(r"(?<![\w.%-])([\w.%-]{1,150})(\\?[\"']?\s{0,3}=\s{0,3}|\\?[\"']\s{0,3}:\s{0,3})")
_QUOTED = re.compile(r"\\?\"(?:[^\"\\\n]|\\.)*\"?|\\?'(?:[^'\\\n]|\\.)*'?")
_BARE = re.compile(rf"[^&;{_STOP}]+")
_HEADER = re.compile(
    r"(?i)(\b(?:proxy-)?authorization[\"']?\s{0,3}[:=,]\s{0,3}[\"']?(?!bearer TOKEN\b)"
    rf"(?:(?:basic|bearer|digest|negotiate|token)\s+)?)[^{_STOP},;]+"
    r"|(\bbearer\s+)(?=[\w.~+/-]*[0-9])[\w.~+/=-]{12,}"
)
_JWT = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{2,}\.[\w-]*")
_PEM = re.compile(r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?!\.\.\.)[^-]*(?:-----END [A-Z0-9 ]{0,40}-----)?")
_CODE = re.compile(r"[A-Za-z_][\w.]*[(\[]")
_REFERENCE = re.compile(r"(?:file|env|cmd):|\$\{")
_SIGNS = ("=", "//", "@", "earer", "uthorization", "eyJ", "PRIVATE KEY", '":', "':")
"""A text without any of these has no secret that could be found."""


def without_secrets(text: str) -> str:
    """The text with `...` in place of secrets: users and passwords in URLs, secret parameters of URLs, values of
    secret names (`password=...`, in JSON too), headers that log in, private keys. The time grows with the length alone.

    Example:
        >>> without_secrets("no route to postgres://me:hunter2@db.example.org/sales?sslmode=require&password=hunter2")
        'no route to postgres://...@db.example.org/sales?sslmode=require&password=...'
    """
    if not any(sign in text for sign in _SIGNS):
        return text
    text = _replaced(text, _secret_users(text))
    text = _ORACLE.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}", text)
    text = _replaced(text, _secret_values(text))
    text = _JWT.sub(HIDDEN, text)
    return _PEM.sub(rf"\1{HIDDEN}", text)


def _replaced(text: str, places: Iterator[tuple[int, int]]) -> str:
    parts, done = [], 0
    for begin, end in places:
        if begin >= done:
            parts += [text[done:begin], HIDDEN]
            done = end
    return text if not parts else "".join([*parts, text[done:]])


def _secret_users(text: str) -> Iterator[tuple[int, int]]:
    """Where users stand in URLs, without their `@`."""
    for found in _AUTHORITY.finditer(text):
        begin = found.end()
        user = _USER.match(text, begin) or _LONG_USER.match(text, begin)
        if user is None:
            continue
        has_container = text[max(0, begin - 8) : begin - 2].endswith(_BEFORE_HOSTS)
        if len(user[0]) > 1 and (":" in user[0] or not has_container):
            yield begin, user.end() - 1


def _secret_values(text: str) -> Iterator[tuple[int, int]]:
    """Where the values of secret names stand."""
    place = 0
    while (found := _PAIR.search(text, place)) is not None:
        place = found.end()
        in_query = text[found.start() - 1 : found.start()] in ("?", "&")
        if not (is_secret(found[1]) or (in_query and found[1].lower() in _SHORT_IN_QUERIES)):
            continue
        value = _QUOTED.match(text, place) or _BARE.match(text, place)
        if value is None or _is_harmless(value[0]) or (" =" in found[2] and _CODE.match(value[0])):
            continue
        quote = len(value[0]) - len(value[0].lstrip("\\\"'"))
        closed = 1 if quote and value[0][-1:] in "\"'" and len(value[0]) > quote else 0
        yield value.start() + quote, value.end() - closed
        place = value.end()


def _is_harmless(value: str) -> bool:
    """True for no value, one that is hidden already, and one that says where the secret is."""
    bare = value.strip("\\\"'")
    return bare in ("", HIDDEN, "None", "null", "true", "false") or _REFERENCE.match(bare) is not None
