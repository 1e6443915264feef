"""Invariants of a store at every step: written, mended, grown, killed, shared.

Simulated histories check them with crashes, lost requests and processes that run at the
same time; `python -m tests.support.simulate` plays more.
"""

import numpy as np
import pytest
from support import simulate
from support import small_store as small
from support.bucket import opened_by_zarr
from support.helpers import THOROUGH

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

SLOW = pytest.mark.slow


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=SLOW)])
def test_simulated_histories_lose_nothing_and_are_completed(count):
    wrong = []
    found = simulate.histories(count * (20 if THOROUGH else 1), report=wrong.append)
    assert not wrong, wrong
    assert sum(counts["histories"] for counts in found.values()) >= count
    assert all(counts["commits"] for counts in found.values())
    assert sum(counts["Kill"] for counts in found.values())


@pytest.mark.slow
def test_the_simulator_finds_a_rule_that_is_broken(monkeypatch):
    """A status file before the values, a creation that replaces, any flight, in a
    bucket values that are put whatever is there, and workers that write parts."""

    def too_early(store, number, values, status, errors=None, rows=None):
        if rows is None:
            digests = [store.digest(number, k, x) for k, x in enumerate(values)]
            version = simulate.store.Version(status, digests, errors or {})
            simulate.commit._put_status(store, number, [version], None)
        commit(store, number, values, status, errors, rows)

    commit = simulate.commit.commit_chunk
    monkeypatch.setattr(simulate.fill, "commit_chunk", too_early)
    wrong = []
    simulate.histories(150, modes=("plain",), report=wrong.append)
    assert wrong
    monkeypatch.undo()
    wrong.clear()
    monkeypatch.setattr(
        simulate.View, "put_new", lambda view, *file: view.put(*file) is None
    )
    simulate.histories(150, modes=("plain",), report=wrong.append)
    assert wrong
    monkeypatch.undo()
    wrong.clear()

    def unchecked(flying, number):
        data = flying._store.files.get(f".flights/{min(flying._at(number))}")
        leaves, header = simulate.flight_files._leaves.unpack(data)
        return simulate.flight_files._flight_of(header, leaves)

    monkeypatch.setattr(simulate.flight_files.Flights, "_valid", unchecked)
    simulate.histories(150, modes=("plain",), report=wrong.append)
    assert wrong
    monkeypatch.undo()
    wrong.clear()

    def replaces(view, key, data, tag):
        if "status" not in key:
            tag = simulate.tag_of(view.world.at(key))
        return view.step("swap", key, data, tag)

    monkeypatch.setattr(simulate.View, "swap", replaces)
    simulate.histories(150, modes=("rounding bucket",), report=wrong.append)
    assert wrong
    monkeypatch.undo()
    wrong.clear()

    def in_parts(job, index, costs, target):
        filling, rows = target.filling(), np.asarray(index) - job.call.first
        ((_, values, verdict, _),) = job.compute(index, costs, None)
        number = int(filling.store.chunks.holding(np.array(index[0])))
        for half in (slice(None, None, 2), slice(1, None, 2)):
            status = np.where(verdict.ok, simulate.OK, simulate.FAILED).astype(np.int8)[
                half
            ]
            errors = {"no": rows[half][status == simulate.FAILED]}
            leaves = [leaf[half] for leaf in values]
            filling.keep(number, rows[half], leaves, status, errors)

    monkeypatch.setattr(simulate.worker, "_written", in_parts)
    simulate.histories(40, 80, modes=("workers",), report=wrong.append)
    assert wrong


@pytest.mark.parametrize("which", small.GROWTHS)
def test_what_was_open_before_a_growth_shows_its_own_points(tmp_path, which):
    files, (xs, ys, appends) = small.Folder(tmp_path), small.GROWTHS[which]
    store = small.created(files)
    for number in range(len(store.chunks)):
        small.fill(store, number)
    data = xarray.open_zarr(opened_by_zarr(files), chunks=None)
    small.grown(files, xs, ys, appends)
    own = small.truth(small.XS, small.YS)[0]
    assert np.array_equal(data["v"].values.reshape(-1), own)
    small.complete(files)
    for number in range(len(store.chunks)):
        try:
            found = store.read(number, 0, must_exist=True)
        except OSError as error:
            assert "has grown" in str(error) and not appends
        else:
            first, last = store.chunks.span(number)
            assert np.array_equal(found, own[first:last])
