"""The JSON Schema of a run file's lines; ``schema.json`` beside this file is what it prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec
from everyrank.reports.model import SCHEMA, AnyLine


def text() -> str:
    """The schema, made of the shapes themselves."""
    made = msgspec.json.schema(AnyLine)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a run file of everyrank, schema {SCHEMA}",
    }
    return msgspec.json.format(msgspec.json.encode({**head, **made}), indent=2).decode() + "\n"


def command(arguments: Sequence[str]) -> int:
    """Print the JSON Schema that each line of a run file keeps."""
    argparse.ArgumentParser("everyrank schema", description=command.__doc__).parse_args(arguments)
    sys.stdout.write(text())
    return 0
