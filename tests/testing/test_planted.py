"""Planted bugs with their sound twins: the kit tells the one, and passes the other.

All of them take ten minutes: `python -m benchmarks testing_planted`, or the profile
`thorough`. Here two are tried of each table.
"""

import pytest
from support.helpers import THOROUGH
from testing.planted import ROOMS
from testing.planted.row import broken_laws

ROWS = {row.name: row for rows in ROOMS.values() for row in rows}
SOME = (
    list(ROWS)
    if THOROUGH
    else [
        row.name for rows in ROOMS.values() for row in (rows[0], rows[len(rows) // 2])
    ]
)


@pytest.mark.one_of(6, rest=1)
@pytest.mark.parametrize("name", SOME)
def test_a_planted_bug_is_told(name):
    row = ROWS[name]
    assert bool(broken_laws(row, row.bug)) == (not row.missed)


@pytest.mark.one_of(18)
@pytest.mark.parametrize("name", SOME)
def test_its_sound_twin_is_not(name):
    assert broken_laws(ROWS[name], ROWS[name].sound) == set()


def test_each_bug_has_a_name_of_its_own():
    assert len(ROWS) == sum(map(len, ROOMS.values()))
