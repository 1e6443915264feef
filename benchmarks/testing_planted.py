"""Of bugs that were planted, how many does the kit tell, and by which law?

Each is asked with the options as they are by default, at arguments at which it shows;
its sound twin is asked the same, and must keep all laws. The bugs are in
`tests/testing/planted`. `--page FILE` writes the table as a page in Markdown.
"""

import importlib
import sys
from collections import Counter
from pathlib import Path

DEVICES = 2
ROUNDS = 1
QUICK = {"only": ("the sign of a jvp",)}

_TESTS = Path(__file__).parents[1] / "tests"


def _rooms():
    sys.path.insert(0, str(_TESTS))
    try:
        return importlib.import_module("testing.planted").ROOMS
    finally:
        sys.path.remove(str(_TESTS))


def verdict(row):
    """The laws that a bug breaks, and those that its twin does."""
    from testing.planted.row import broken_laws

    return {
        "bug": row.name,
        "reference": row.reference,
        "why": row.missed,
        "told by": sorted(broken_laws(row, row.bug)),
        "false alarms": sorted(broken_laws(row, row.sound)),
    }


def main(run, *, page=""):
    found = []
    for room, rows in _rooms().items():
        chosen = {*run.chosen(row.name for row in rows)}
        for row in rows:
            if row.name in chosen:
                found.append({"room": room, **verdict(row)})
                told, alarms = found[-1]["told by"], found[-1]["false alarms"]
                texts = {"told_by": ", ".join(told), "alarms": ", ".join(alarms)}
                run.row(case=row.name, **texts)
    told = sum(bool(row["told by"]) for row in found)
    alarms = sum(bool(row["false alarms"]) for row in found)
    run.note(f"{told} of {len(found)} are told; {alarms} false alarms")
    if page:
        Path(page).write_text(text_of(found))


def text_of(found):
    """The page: numbers, law by room, and each bug with the laws that tell it."""
    plain = [row for row in found if not row["reference"]]
    told = sum(bool(row["told by"]) for row in plain)
    by_reference = [row for row in found if row["reference"]]
    also = sum(bool(row["told by"]) for row in by_reference)
    alarms = sum(bool(row["false alarms"]) for row in found)
    all_of_them = "all" if also == len(by_reference) else f"{also} of them"
    lines = [
        _HEAD,
        f"Of {len(plain)} bugs **{told}** are told by default "
        f"({100 * told / len(plain):.0f} %). {len(by_reference)} more are consistent, "
        f"and wrong: {all_of_them} are told once `reference=` says what is "
        f"right. Of the {len(found)} sound twins "
        f"{alarms or 'not one'} broke a law.\n",
        "## Law by kind of bug\n",
        *_matrix(found),
        "\n## What is not told\n",
        *(_missed(found) or ["Nothing."]),
        "\n## Each bug, and the laws that tell it\n",
    ]
    for room in dict.fromkeys(row["room"] for row in found):
        lines += [f"### {room}\n", "| bug | told by |", "|---|---|"]
        for row in found:
            if row["room"] == room:
                laws = ", ".join(f"`{law}`" for law in row["told by"]) or "**not**"
                given = ", by a reference" if row["reference"] else ""
                lines.append(f"| {row['bug']}{given} | {laws} |")
        lines.append("")
    return "\n".join(lines)


_HEAD = """# Planted bugs

To know what the laws of `eqx_pipe.testing` see, bugs were planted in small functions,
layers, axes, reducers and sources, each with a sound twin: first planted, and only
then looked at. Some are of kinds that other tests had missed; some are faults that JAX,
brax, diffrax, jaxopt and optax once had and mended, planted again. They are in
`tests/testing/planted`, with the number of the thread.

At first look 196 of 206 were told. Ten twins broke a law: seven were not sound
themselves (a derivative that was missing, or wrong at a point; a table of float32),
and three showed two faults of the laws, which were mended. This page shows the whole
catalogue, measured before it was thinned to one bug for each law and mechanism;
`python -m benchmarks testing_planted --page FILE` measures the present one. Three bugs
that laws of single rules and of keys reported are missed since laws share one trace: a
rule that is wrong for symbolic zeros, keys that are folded in alike, and bits of a key
that are wrapped again. An empty interval, a parameter that is rounded, and noise of the
default dtype are told since then.
"""


def _matrix(found):
    laws = Counter(law for row in found for law in row["told by"])
    rooms = list(dict.fromkeys(row["room"] for row in found))
    short = [room.split(" ")[0].strip(",").lower() for room in rooms]
    lines = [f"| law | {' | '.join(short)} | all |", "|---" * (len(rooms) + 2) + "|"]
    for law, count in laws.most_common():
        each = [
            sum(law in row["told by"] for row in found if row["room"] == room)
            for room in rooms
        ]
        lines.append(
            f"| `{law}` | {' | '.join(str(n or '') for n in each)} | {count} |"
        )
    told = [
        (
            sum(bool(r["told by"]) for r in found if r["room"] == room),
            sum(r["room"] == room for r in found),
        )
        for room in rooms
    ]
    whole = f"{sum(t for t, _ in told)} of {len(found)}"
    each = " | ".join(f"{t} of {n}" for t, n in told)
    return [*lines, f"| told | {each} | {whole} |"]


def _missed(found):
    return [
        f"- **{row['bug'].capitalize()}** ({row['room'].lower()}): {row['why']}."
        for row in found
        if not row["told by"]
    ]
