"""The program that calls `penstock.admin`, for the audit log."""

from __future__ import annotations

from contextvars import ContextVar

PROGRAM: ContextVar[str] = ContextVar("penstock-program", default="python")
"""The command line, without secrets; `python` where a program calls the functions."""
