"""send_to: writes each message to an output stream."""

from __future__ import annotations

from penstock.api.graph import SendToSpec
from penstock.runtime.operators.base import PassingOperator


class SendTo(PassingOperator[SendToSpec]):
    """The channel to the output takes the messages as they are."""
