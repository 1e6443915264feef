"""Planted bugs with their sound twins: the laws report the bug and pass the twin.

All of them take ten minutes: `python -m benchmarks testing_planted`, or the profile
`thorough`. Here each table has one row.
"""

import pytest
from support.helpers import THOROUGH, slow_unless
from testing.planted import ROOMS
from testing.planted.row import broken_laws

ROWS = {row.name: row for rows in ROOMS.values() for row in rows}
FIRST = [rows[0].name for rows in ROOMS.values()]


@pytest.mark.parametrize(
    "name", slow_unless(FIRST[1:3], list(ROWS) if THOROUGH else FIRST)
)
def test_a_planted_bug_is_told(name):
    row = ROWS[name]
    assert bool(broken_laws(row, row.bug)) == (not row.missed)


@pytest.mark.parametrize(
    "name", slow_unless(FIRST[1:2], list(ROWS) if THOROUGH else FIRST[:3])
)
def test_its_sound_twin_is_not(name):
    assert broken_laws(ROWS[name], ROWS[name].sound) == set()


def test_each_bug_has_a_name_of_its_own():
    assert len(ROWS) == sum(map(len, ROOMS.values()))
