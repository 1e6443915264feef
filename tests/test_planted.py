"""Planted bugs with their sound twins: the kit tells the one, and passes the other.

All of them take ten minutes: `python -m benchmarks testing_planted`, or the profile
`thorough`. Here some are tried of each table.
"""

import pytest
from conftest import THOROUGH
from planted import ROOMS
from planted.row import broken_laws

MISSED = {"noise of the default dtype"}
"""What is not told; why is said in `docs/testing_planted.md`."""

ROWS = {row.name: row for rows in ROOMS.values() for row in rows}
SOME = list(ROWS) if THOROUGH else list(ROWS)[::5]


@pytest.mark.one_of(7)
@pytest.mark.parametrize("name", SOME)
def test_a_planted_bug_is_told(name):
    assert bool(broken_laws(ROWS[name], ROWS[name].bug)) == (name not in MISSED)


@pytest.mark.one_of(19)
@pytest.mark.parametrize("name", SOME)
def test_its_sound_twin_is_not(name):
    assert broken_laws(ROWS[name], ROWS[name].sound) == set()


def test_each_bug_has_a_name_of_its_own():
    assert len(ROWS) == sum(map(len, ROOMS.values()))
