"""The record's file: JSON with an entry a line, so that a diff shows what changed."""

import json
from pathlib import Path

RECORD = Path(__file__).with_name("record.json")


def read(path=RECORD):
    """Return the sections of a record; of a file that does not exist, none."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(sections, path=RECORD):
    """Write some sections; those that are not given stay as they are."""
    whole = read(path) | sections
    blocks = [f"{json.dumps(name)}: {_block(whole[name])}" for name in sorted(whole)]
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def _block(entries):
    rows = [
        f"  {json.dumps(name)}: {json.dumps(entries[name], sort_keys=True)}"
        for name in sorted(entries)
    ]
    return "{\n" + ",\n".join(rows) + "\n}"
