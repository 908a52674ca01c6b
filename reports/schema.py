"""Print the JSON Schema of a run file's lines. setup.py writes it to ``schema.json`` beside this file."""

from __future__ import annotations

import msgspec
from everyrank.reports.runfile.model import SCHEMA, AnyLine


def text() -> str:
    """Return the schema, made from the classes of `model`."""
    schema = msgspec.json.schema(AnyLine)
    # The schema describes the lines of this version. Readers ignore the keys of later versions.
    for shape in schema["$defs"].values():
        shape["additionalProperties"] = False
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a run file of everyrank, schema {SCHEMA}",
    }
    return msgspec.json.format(msgspec.json.encode({**head, **schema}), indent=2).decode() + "\n"
