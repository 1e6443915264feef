"""Random damage and kills: the right values, or an error that names store and file."""

import functools
from pathlib import Path

import pytest
from support.helpers import THOROUGH

pytest.importorskip("xarray")
pytest.importorskip("zarr")


@pytest.fixture
def attacks(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    # By the name that its processes know: stores know callbacks by their module.
    from tests.support import attack, kills

    return {
        "mutations": attack.mutations,
        "trainings": functools.partial(attack.mutations, targets=attack.trained),
        "checkpoints": attack.checkpoints,
        "kills": kills.kills,
    }


FAST = [("mutations", 10), ("trainings", 5), ("checkpoints", 1)]
SLOW = [("mutations", 100), ("trainings", 50), ("kills", 5)]


@pytest.mark.parametrize(
    ("what", "count"),
    [*FAST, *(pytest.param(*x, marks=pytest.mark.slow) for x in SLOW)],
)
def test_stores_are_right_or_told(attacks, what, count):
    bad = []
    attacks[what](count * (10 if THOROUGH else 1), 0, bad.append)
    assert not bad, bad[0]
