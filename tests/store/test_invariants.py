"""Invariants of a store at every step: written, mended, grown, killed, damaged, shared.

They hold over a folder, and over a bucket in memory.
"""

import dataclasses
import random
import shutil
import threading

import numpy as np
import pytest
from support.bucket import Bucket, Stepped, opened_by_zarr
from support.helpers import THOROUGH

from eqx_pipe._sweep.store import (
    FAILED,
    MISSING,
    OK,
    Chunks,
    Folder,
    Origin,
    StoreLayout,
    Variable,
    grow,
    lay_out,
    open_store,
    settle,
)

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

STRIDE = 1 if THOROUGH else 5
XS, YS = [0.0, 2.0, 4.0], [float(y) for y in range(7)]


class Kill(BaseException):
    """The process ends."""


@pytest.fixture(params=["folder", "bucket"])
def files(request, tmp_path):
    if request.param == "bucket":
        return Bucket()
    (tmp_path / "r").mkdir()
    return Folder(tmp_path / "r")


def copied(files, tmp_path, number):
    """Return a copy of some files."""
    if isinstance(files, Bucket):
        return Bucket(files.keys)
    shutil.copytree(files.path, tmp_path / f"copy{number}")
    return Folder(tmp_path / f"copy{number}")


def layout(xs=XS, ys=YS, split=1, count=3):
    return StoreLayout(
        dims=("x", "y"),
        chunks=Chunks((len(xs), len(ys)), split, count),
        coordinates={"x": (("x",), np.array(xs), {}), "y": (("y",), np.array(ys), {})},
        variables=[
            Variable("v", np.dtype("f4")),
            Variable("w", np.dtype("i4"), (2,), ("w.0",)),
        ],
        status="status",
        attributes={},
        record={},
    )


def truth(xs, ys):
    v = (np.array(xs)[:, None] * 100 + np.array(ys)).astype("f4")
    return [v.reshape(-1), np.stack([v, v + 1], -1).astype("i4").reshape(-1, 2)]


def rows_of(store, number):
    first, last = store.chunks.span(number)
    xs, ys = store.coordinate("x"), store.coordinate("y")
    return [leaf[first:last].copy() for leaf in truth(xs, ys)]


def fill(store, number, failed=(), lacking=()):
    values = rows_of(store, number)
    status = np.full(len(values[0]), OK, np.int8)
    failed = [row for row in failed if row < len(status)]
    status[failed] = FAILED
    status[[row for row in lacking if row < len(status)]] = MISSING
    for leaf in values:
        leaf[status != OK] = 0
    store.commit(number, values, status, {"no": np.array(failed, int)})


def mend(store, number, again=()):
    manifest = store.manifest(number)
    if manifest is None:
        raise FileNotFoundError("another writer has begun the chunk anew")
    rows = np.flatnonzero(manifest.status != OK)
    values = [leaf[rows] for leaf in rows_of(store, number)]
    status = np.where(np.isin(rows, again), FAILED, OK).astype(np.int8)
    for leaf in values:
        leaf[status != OK] = 0
    store.mend(number, rows, values, status, {"still": rows[status == FAILED]})


def check(files):
    """Raise unless rows have their values, for us and for xarray; count those."""
    store = open_store("sweep", files)
    gaps, errors, _ = store.account()
    failed = set(np.concatenate([np.zeros(0, int), *errors.values()]).tolist())
    for number in range(len(store.chunks)):
        manifest = store.manifest(number)
        if manifest is None:
            continue
        first, _ = store.chunks.span(number)
        ok, right = manifest.status == OK, rows_of(store, number)
        for k, leaf in enumerate(right):
            assert np.array_equal(store.read(number, k)[ok], leaf[ok])
        without = first + np.flatnonzero(manifest.status == FAILED)
        assert set(without.tolist()) <= failed  # each has a text
        assert ok.all() or number in store.odd()
    zarr = opened_by_zarr(files)
    data = xarray.open_zarr(zarr, chunks=None).load()
    ok = data["status"].values.reshape(-1) == OK
    for name, leaf in zip("vw", truth(data["x"], data["y"]), strict=True):
        found = data[name].values.reshape(leaf.shape)
        assert np.array_equal(found[ok], leaf[ok])
    return ok.reshape(data["status"].shape)


def complete(files):
    """Do what the next run does: compute what is missing, damaged or failed."""
    settle(files)
    store = open_store("sweep", files)
    done = np.flatnonzero(store.done()).tolist()
    broken = {number for number in done if not store.is_sound(number)}
    for number in broken | {*store.lost(store.done())}:
        store.discard(number)
    for number in np.flatnonzero(~store.done()).tolist():
        fill(store, number)
    for number in store.odd():
        if (store.manifest(number).status != OK).any():
            mend(store, number)
    assert check(files).all() and not store.lost(store.done())
    assert not files.exists(".growing")


def killed_at_each_step(call, *args):
    """Run a call again and again, killed at its first step, its second, and so on.

    At some of the steps alone, unless there is time.
    """
    for number in range(random.randint(1, STRIDE), 300, STRIDE):
        left = [number]

        def step(left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Kill

        try:
            call(step, *args)
        except Kill:
            yield number
        else:
            return
    raise AssertionError("it never ends")


def test_a_kill_at_any_step_of_commits_and_mends(files):
    def work(step):
        lay_out(files, layout())
        store = open_store("sweep", Stepped(files, step))
        for number in range(4):
            fill(store, number, failed=(0, 1) if number % 2 else (), lacking=[2])
        for again in ([1], [1], []):
            for number in store.odd():
                if (store.manifest(number).status != OK).any():
                    before = check(files)
                    mend(store, number, again)
                    assert np.all(check(files)[before])

    for _ in killed_at_each_step(work):
        check(files)
        complete(files)
        files.remove("zarr.json")
        files.put(".growing", b"")
        settle(files)


def test_a_kill_while_a_store_is_created_leaves_none_or_all_of_it(files):
    def work(step):
        lay_out(Stepped(files, step), layout())

    for _ in killed_at_each_step(work):
        assert files.exists("zarr.json") == bool(files.names("")) or files.exists(
            ".growing"
        )
    check(files)


GROWTHS = {
    "on the dim that is cut": (XS, [*YS, 7.0, 8.0], True),
    "on a leading dim": ([*XS, 6.0], YS, True),
    "in between": ([0.0, 1.0, 2.0, 3.0, 4.0], YS, False),
}


def origin(xs, ys):
    each = [
        np.array([old.index(v) if v in old else -1 for v in new])
        for old, new in ((XS, xs), (YS, ys))
    ]
    return Origin(tuple(each), (len(XS), len(YS)))


@pytest.mark.parametrize("which", GROWTHS)
def test_a_kill_at_any_step_of_a_growth(files, tmp_path, which):
    xs, ys, appends = GROWTHS[which]
    lay_out(files, layout())
    begun = open_store("sweep", files)
    for number in range(7):
        fill(begun, number, failed=[1] if number % 2 else [])
    before, sizes = check(files), set()

    def work(step, number=0):
        mine = copied(files, tmp_path, random.random())
        copies.append(mine)
        store = open_store("sweep", Stepped(mine, step))
        grow(store, layout(xs, ys), origin(xs, ys), not appends)
        settle(store.files)

    copies = []
    for _ in killed_at_each_step(work):
        now = check(copies[-1])
        sizes.add(now.shape)
        assert now.sum() == before.sum()  # nothing is lost, nothing is invented
        if now.shape == before.shape:
            again = open_store("sweep", copies[-1])
            grow(again, layout(xs, ys), origin(xs, ys), not appends)
        complete(copies[-1])
    assert sizes == {before.shape, (len(xs), len(ys))}
    complete(copies[-1])


@pytest.mark.parametrize("which", GROWTHS)
def test_what_was_open_before_a_growth_shows_its_own_points(files, which):
    xs, ys, appends = GROWTHS[which]
    lay_out(files, layout())
    store = open_store("sweep", files)
    for number in range(len(store.chunks)):
        fill(store, number)
    data = xarray.open_zarr(opened_by_zarr(files), chunks=None)
    grow(store, layout(xs, ys), origin(xs, ys), not appends)
    assert np.array_equal(data["v"].values.reshape(-1), truth(XS, YS)[0])
    complete(files)
    for number in range(len(store.chunks)):
        try:
            found = store.read(number, 0, known=True)
        except OSError as error:
            assert "has grown" in str(error) and not appends
        else:
            first, last = store.chunks.span(number)
            assert np.array_equal(found, truth(XS, YS)[0][first:last])


class InTurns:
    """Lets two threads make their steps in an order that is drawn."""

    def __init__(self, seed):
        self.rng, self.turns = random.Random(seed), threading.Condition()
        self.waiting, self.done, self.errors = set(), 0, []

    def step(self, who):
        with self.turns:
            self.waiting.add(who)
            self.turns.notify_all()
            self.turns.wait_for(lambda: who not in self.waiting)

    def run(self, *writers):
        def work(who, writer):
            try:
                writer(lambda: self.step(who))
            except OSError:  # told, and computed again by the next run
                pass
            except BaseException as error:
                self.errors.append(error)
            with self.turns:
                self.done += 1
                self.turns.notify_all()

        threads = [threading.Thread(target=work, args=x) for x in enumerate(writers)]
        for thread in threads:
            thread.start()
        with self.turns:
            while self.done < len(writers):
                self.turns.wait_for(
                    lambda: len(self.waiting) + self.done == len(writers)
                )
                if self.waiting:
                    self.waiting.remove(self.rng.choice(sorted(self.waiting)))
                    self.turns.notify_all()
        assert not self.errors


@pytest.mark.parametrize("seed", range(30))
def test_two_writers_of_one_chunk_are_right_or_told(files, seed):
    lay_out(files, layout())
    store = open_store("sweep", files)
    fill(store, 0, failed=(0, 1, 2))

    def own(step):
        return dataclasses.replace(store, files=Stepped(files, step, reads=True))

    other = (lambda step: mend(own(step), 0, [1])) if seed % 2 else None
    other = other or (lambda step: fill(own(step), 0))
    InTurns(seed).run(lambda step: mend(own(step), 0, [0]), other)
    if store.is_done(0) and store.is_sound(0):
        check(files)
    complete(files)


def test_another_file_in_the_place_of_one_is_told(files):
    """Exchanged, older, cut, empty, or with another bit; and a mark that is gone."""
    lay_out(files, layout())
    store = open_store("sweep", files)
    for number in range(len(store.chunks)):
        fill(store, number, failed=[1] if number == 4 else [])
    old = files.get("v/c.1.1")
    mend(store, 4)
    fill(store, 0, failed=[0])
    keys = ["v/c.0.1", "w/c.0.1.0", "status/c.0.1", "status/c.1.1", "v/c.1.1"]
    for key in keys:
        number = store.chunks.at([int(n) for n in key.split(".")[1:3]])
        data, rng = files.get(key), random.Random(key)
        others = [b"", data[:-1], files.get("v/c.2.2"), files.get("status/c.2.2")]
        others += [old] if key == keys[-1] else []
        for _ in range(40):
            flipped = bytearray(data)
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            others.append(bytes(flipped))
        for other in others:
            files.put(key, other)
            if store.is_sound(number):  # a bit that pads the last byte of a stream
                assert key.startswith("status") and check(files).any()
                continue
            with pytest.raises(OSError, match=key):
                [store.read(number, k) for k in range(2)]
        files.put(key, data)
        assert store.is_sound(number)
    # A file is deleted, and the next run computes its chunk again.
    for key in keys:
        files.remove(key)
    complete(files)
    fill(store, 0, failed=[0])
    files.remove(f".odd/{store.record['cut']}.0.0")
    with pytest.raises(OSError, match=r"\.odd/.*0\.0"):
        store.read(0, 0)


def test_metadata_and_coordinates_are_read_whole_or_told(files):
    lay_out(files, layout())
    for key in ("zarr.json", "x/c.0", "y/c.0"):
        data, rng = files.get(key), random.Random(key)
        for _ in range(60):
            flipped = bytearray(data)
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            files.put(key, bytes(flipped))
            with pytest.raises((ValueError, OSError), match=key):
                store = open_store("sweep", files)
                rows_of(store, 0)
        files.put(key, data)
    files.put("x/c.0", files.get("y/c.0"))
    with pytest.raises(OSError, match="x/c.0"):
        open_store("sweep", files).coordinate("x")


def test_long_and_many_errors_are_kept_and_mended(files):
    lay_out(files, layout(split=0, count=3))
    store = open_store("sweep", files)
    values = rows_of(store, 0)
    rows = np.arange(len(values[0]))
    errors = {f"{k}" * 50_000: rows[k::7] for k in range(7)}
    store.commit(0, values, np.full(len(rows), FAILED, np.int8), errors)
    found = store.manifest(0).errors
    assert found.keys() == errors.keys()
    assert all(np.array_equal(found[text], at) for text, at in errors.items())
    check(files)
    store.mend(0, rows, values, np.full(len(rows), OK, np.int8))
    assert store.manifest(0).errors == {} and check(files).all()
