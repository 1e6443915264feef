"""What a store knows of its chunks: logs that are cut, mixed, shared and damaged."""

import os
import random
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from support.stores import one_device, stored

import eqx_pipe as ep
from eqx_pipe._store.chunks import Chunks
from eqx_pipe._store.ledger import Ledger

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

CHUNKS = Chunks((3, 7), 1, 2)
SPACE = ep.Linspace(0, 1, 9)

NOTES = st.lists(
    st.tuples(
        st.sampled_from(["all", "part-0-of-2", "part-1-of-2"]),
        st.integers(0, len(CHUNKS) - 1),
        st.sampled_from([None, (True, True), (True, False), (False, False)]),
    ),
    max_size=12,
)


def noted(folder, notes):
    """What chunks are there, and with which failed rows, by a plain dict."""
    found = {}
    for writer, number, ok in notes:
        first, last = CHUNKS.span(number)
        rows = None if ok is None else np.array(ok[: last - first])
        ledger = Ledger(folder, CHUNKS, writer)
        if ok is not None or ledger.is_done(number):
            ledger.note(number, rows)
        found[number] = rows
    return {n: rows for n, rows in found.items() if rows is not None}


def points(ranges):
    return [i for a, b in ranges.tolist() for i in range(a, b)]


@settings(max_examples=20)
@given(NOTES, st.randoms(use_true_random=False))
def test_the_logs_together_are_what_was_written_last(notes, rng):
    """Whoever wrote it, and whatever a kill has left at the end of a log."""
    with tempfile.TemporaryDirectory() as folder:
        early = Ledger(Path(folder), CHUNKS)
        expected = noted(Path(folder), notes)
        for name in os.listdir(folder):
            text = Path(folder, name).read_bytes()
            torn = text.splitlines()[-1]
            with open(Path(folder, name), "ab") as log:
                log.write(torn[: rng.randrange(len(torn))])
        early.refresh()
        for ledger in (early, Ledger(Path(folder), CHUNKS, "other")):
            assert np.flatnonzero(ledger.done()).tolist() == sorted(expected)
            there = [i for n in sorted(expected) for i in range(*CHUNKS.span(n))]
            assert points(ledger.runs()) == there
            lost = [
                CHUNKS.span(n)[0] + row
                for n in sorted(expected)
                for row in np.flatnonzero(~expected[n])
            ]
            assert points(ledger.failures()) == lost
        assert early.digest() == ledger.digest()
        # The next line begins anew, behind what is left of the torn one.
        number = rng.randrange(len(CHUNKS))
        ok = np.ones(np.diff(CHUNKS.span(number)), bool)
        for writer in os.listdir(folder):
            Ledger(Path(folder), CHUNKS, writer).note(number, ok)
            assert Ledger(Path(folder), CHUNKS).is_done(number)


def test_a_line_that_is_damaged_says_nothing(tmp_path):
    ledger = Ledger(tmp_path, CHUNKS)
    ledger.note(3, np.array([True, False]))
    text, rng = (tmp_path / "all").read_bytes(), random.Random(0)
    for _ in range(200):
        place = rng.randrange(1, len(text) - 1)
        byte = bytes([rng.randrange(256)])
        if byte == text[place : place + 1]:
            continue
        (tmp_path / "all").write_bytes(text[:place] + byte + text[place + 1 :])
        assert not Ledger(tmp_path, CHUNKS).done().any()
    # Nor one of a larger store.
    more = Ledger(tmp_path, Chunks((30, 7), 1, 2), "part-0-of-2")
    more.note(100, np.ones(2, bool))
    (tmp_path / "all").write_bytes(text)
    assert np.flatnonzero(Ledger(tmp_path, CHUNKS).done()).tolist() == [3]


@pytest.mark.parametrize("lengths", [(5,), (3, 7), (2, 3, 4)])
def test_files_have_the_names_that_zarr_gives_them(lengths, tmp_path):
    names = [f"d{i}" for i in range(len(lengths))]
    space = {d: ep.Linspace(0, 1, n) for d, n in zip(names, lengths, strict=True)}
    fn = lambda p: jnp.stack([sum(p.values()), jnp.float32(1)])  # noqa: E731
    asked = {"store": tmp_path / "r", "batch_size": 1, "mesh": one_device()}
    ep.sweep(fn, space, **asked)
    store = stored(tmp_path / "r")
    numbers = range(len(store.chunks))
    by_zarr = [str(next(store._files(n)).relative_to(store.path)) for n in numbers]
    assert by_zarr == [f"value/{name}/0" for name in store.chunks.names()]
    assert store.lost(set(by_zarr)) == [] and len(by_zarr) > 1
    assert store.lost(set(by_zarr[1:])) == [0] and store.lost(set()) == [*numbers]


def filled(path, **asked):
    return ep.sweep(
        jnp.sin, SPACE, store=path, batch_size=2, mesh=one_device(), **asked
    )


def test_a_ledger_that_is_gone_or_damaged_loses_no_values(tmp_path):
    path = tmp_path / "runs.zarr"
    expected = filled(path).values[:]
    log = path / ".ledger" / "all"
    text = log.read_bytes()
    log.write_bytes(text[: len(text) // 2] + b"\0" * 20)
    half = ep.SweepResult.load(path)
    assert 0 < half.ok.sum() < 9 and np.isnan(half.values[~half.ok]).all()
    assert np.array_equal(filled(path).values, expected)
    log.unlink()
    assert not ep.SweepResult.load(path).ok.any()
    assert np.array_equal(filled(path).values, expected)
    shutil.rmtree(path / ".ledger")
    with pytest.raises(ValueError, match="lacks its ledger.*cp -r"):
        filled(path)
    assert np.array_equal(
        ep.SweepResult.load(path).values, expected
    )  # as xarray reads it


def test_the_status_that_others_read_is_brought_up_to_date(tmp_path):
    path = tmp_path / "runs.zarr"
    filled(path, shard=(0, 2))
    half = xarray.open_zarr(path)["status"].values
    assert (
        np.array_equal(half == 1, ep.SweepResult.load(path).ok) and 0 < half.sum() < 9
    )
    filled(path)
    file = path / "status" / "c" / "0"
    whole = file.read_bytes()
    # By the next call, if it computes anything or not: a killed one leaves an old one.
    for spoil in (file.unlink, (path / ".published").unlink):
        spoil()
        if file.exists():
            file.write_bytes(b"")
        filled(path)
        assert file.read_bytes() == whole


def test_a_copy_by_hard_links_has_a_ledger_of_its_own(tmp_path):
    filled(tmp_path / "r", shard=(0, 2))
    before = (tmp_path / "r" / ".ledger" / "part-0-of-2").read_bytes()
    shutil.copytree(tmp_path / "r", tmp_path / "copy", copy_function=os.link)
    store = stored(tmp_path / "copy")
    store.ledger.writer = "part-0-of-2"
    store.discard(0)
    assert (tmp_path / "r" / ".ledger" / "part-0-of-2").read_bytes() == before
    assert (
        filled(tmp_path / "copy").ok.all()
        and not ep.SweepResult.load(tmp_path / "r").ok[2]
    )


def test_what_cannot_be_read_is_looked_for_from_the_end(tmp_path, monkeypatch):
    """As far as chunks in a row are sound: after a loss of power any may be empty."""
    from eqx_pipe._sweep.sinks import stored as sink

    monkeypatch.setattr(sink, "_LOOK_AGAIN_CHUNKS", 1)
    path = tmp_path / "runs.zarr"
    expected = filled(path).values[:]
    for n in (4, 3, 1):
        (path / "value" / "c" / str(n)).write_bytes(b"")
    (path / "value" / "c" / "0").unlink()
    again = filled(path)
    assert np.array_equal(again.values[4:], expected[4:])
    with pytest.raises(OSError, match="Delete it"):
        again.values[:]
