"""Registries of schemas as a wing: a start asks them for the schemas that the application's serdes need."""

from __future__ import annotations

from penstock.wing import Wing

SCHEMAS_WING = Wing("schemas", start="penstock.schemas.serde:SchemasStart")
