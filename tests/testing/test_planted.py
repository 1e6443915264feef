"""Planted bugs with their sound twins: the laws report the bug and pass the twin."""

import jax
import pytest
from support.helpers import THOROUGH, slow_unless
from testing.planted import TABLES
from testing.planted.row import broken_laws

ROWS = {row.name: (row, laws) for rows, laws in TABLES.values() for row in rows}
FIRST = [rows[0].name for rows, _ in TABLES.values()]


@pytest.mark.parametrize("name", ROWS)
def test_a_planted_bug_is_reported(name):
    row, laws = ROWS[name]
    options = {} if laws is None or THOROUGH else {"only": laws}
    try:
        assert bool(broken_laws(row, row.bug, **options)) == (not row.missed)
    finally:  # one of the bugs changes it
        jax.config.update("jax_default_matmul_precision", None)


# All of them take ten minutes: `python -m benchmarks testing_planted`, or `thorough`.
@pytest.mark.parametrize(
    "name", slow_unless(FIRST[1:2], list(ROWS) if THOROUGH else FIRST)
)
def test_its_sound_twin_is_not(name):
    row, _ = ROWS[name]
    assert broken_laws(row, row.sound) == set()


def test_each_bug_has_a_name_of_its_own():
    assert len(ROWS) == sum(len(rows) for rows, _ in TABLES.values())
