"""Which keys may have a value that nobody else is to see."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(?i)secret|password|passphrase|token|credential|access[.-]?key|jaas|\.pem|keystore\.key|oauthbearer\.config"
)


def is_secret(key: str) -> bool:
    """Whether the value of a key may be secret: no message, log or table shows it.

    Example:
        >>> is_secret("systems.kafka.consumer.sasl.jaas.config"), is_secret("task.commit.ms")
        (True, False)
    """
    return _SECRET.search(key) is not None
