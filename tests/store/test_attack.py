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


ATTACKS = [("mutations", 40), ("trainings", 20), ("checkpoints", 1), ("kills", 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "count"), ATTACKS)
def test_stores_are_right_or_told(attacks, what, count):
    bad = []
    attacks[what](count * (25 if THOROUGH else 1), 0, bad.append)
    assert not bad, bad[0]
