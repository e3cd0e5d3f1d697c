"""Identities with which driver and workers prove to containers who they are."""

from __future__ import annotations

from penstock.wire.tls import TlsIdentity, new_identity


class CallerIdentities:
    """The newest identity, and earlier ones that containers may still ask for. None without TLS."""

    def __init__(self, *, tls: bool) -> None:
        self.current = new_identity("client") if tls else None
        self._known = {} if self.current is None else {self.current.certificate: self.current}
        self._fresh = True

    @property
    def is_due(self) -> bool:
        """True once half of the newest identity's time has passed."""
        return self.current is not None and self.current.is_old

    def of(self, callers: str | None) -> TlsIdentity | None:
        """The identity for a port whose callers must have this certificate; the newest if that is not known."""
        return self._known.get(callers or "", self.current)

    def begin_epoch(self) -> None:
        """Make a new identity, unless the first one has not been used yet."""
        if not self._fresh:
            self.renew()
        self._fresh = False

    def renew(self) -> None:
        """Make a new identity, and forget expired ones."""
        if self.current is not None:
            self.current = new_identity("client")
            self._known = {name: each for name, each in self._known.items() if not each.is_over}
            self._known[self.current.certificate] = self.current
