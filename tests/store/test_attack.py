"""Random damage and kills: the right values, or an error that names store and file."""

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

    return {"mutations": attack.mutations, "kills": kills.kills}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "count"), [("mutations", 40), ("kills", 3)])
def test_stores_are_right_or_told(attacks, what, count):
    bad = []
    attacks[what](count * (25 if THOROUGH else 1), 0, bad.append)
    assert not bad, bad[0]
