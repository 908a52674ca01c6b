"""Print the JSON Schema of a run file's lines. setup.py writes it to ``schema.json`` beside this file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec
from everyrank.reports.command import answer, hand_over
from everyrank.reports.runfile.model import SCHEMA, AnyLine


def text() -> str:
    """Return the schema, made from the classes of `model`."""
    made = msgspec.json.schema(AnyLine)
    # The schema describes the lines of this version. Readers ignore the keys of later versions.
    for shape in made["$defs"].values():
        shape["additionalProperties"] = False
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a run file of everyrank, schema {SCHEMA}",
    }
    return msgspec.json.format(msgspec.json.encode({**head, **made}), indent=2).decode() + "\n"


def command(arguments: Sequence[str]) -> int:
    """Print the JSON Schema of a run file's lines."""
    argparse.ArgumentParser("everyrank schema", description=command.__doc__).parse_args(arguments)

    def show() -> int:
        hand_over(text(), None, [])
        return 0

    return answer("schema", show)
