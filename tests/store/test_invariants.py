"""Invariants of a store at every step: written, mended, grown, killed, shared.

They hold over a folder, and over a bucket in memory.
"""

import dataclasses
import random
import shutil
import threading

import numpy as np
import pytest
from support import small_store as small
from support.bucket import Bucket, Folder, Stepped, opened_by_zarr
from support.helpers import THOROUGH

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

STRIDE = 1 if THOROUGH else 5


class Kill(BaseException):
    """The process ends."""


def copied(files, tmp_path, number):
    """Return a copy of some files."""
    if isinstance(files, Bucket):
        return Bucket(files.keys)
    shutil.copytree(files.path, tmp_path / f"copy{number}")
    return Folder(tmp_path / f"copy{number}")


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
        small.created(files)
        store = small.opened(Stepped(files, step))
        for number in range(4):
            small.fill(store, number, failed=(0, 1) if number % 2 else (), lacking=[2])
        for again in ([1], [1], []):
            for number in store.odd():
                if (store.manifest(number).status != small.OK).any():
                    before = small.check(files)
                    small.mend(store, number, again)
                    assert np.all(small.check(files)[before])

    for _ in killed_at_each_step(work):
        small.check(files)
        small.complete(files)
        files.remove("zarr.json")
        files.put(".growing", b"")
        small.settle(files)


def test_a_kill_while_a_store_is_created_leaves_none_or_all_of_it(files):
    def work(step):
        small.created(Stepped(files, step))

    for _ in killed_at_each_step(work):
        assert files.exists("zarr.json") == bool(files.names("")) or files.exists(
            ".growing"
        )
    small.check(files)


GROWTHS = {
    "on the dim that is cut": (small.XS, [*small.YS, 7.0, 8.0], True),
    "on a leading dim": ([*small.XS, 6.0], small.YS, True),
    "in between": ([0.0, 1.0, 2.0, 3.0, 4.0], small.YS, False),
}


@pytest.mark.parametrize("which", GROWTHS)
def test_a_kill_at_any_step_of_a_growth(files, tmp_path, which):
    xs, ys, appends = GROWTHS[which]
    begun = small.created(files)
    for number in range(7):
        small.fill(begun, number, failed=[1] if number % 2 else [])
    before, sizes = small.check(files), set()

    def work(step, number=0):
        mine = copied(files, tmp_path, random.random())
        copies.append(mine)
        store = small.opened(Stepped(mine, step))
        small.grown(store, xs, ys, appends)
        small.settle(store.files)

    copies = []
    for _ in killed_at_each_step(work):
        now = small.check(copies[-1])
        sizes.add(now.shape)
        assert now.sum() == before.sum()  # nothing is lost, nothing is invented
        if now.shape == before.shape:
            again = small.opened(copies[-1])
            small.grown(again, xs, ys, appends)
        small.complete(copies[-1])
    assert sizes == {before.shape, (len(xs), len(ys))}
    small.complete(copies[-1])


@pytest.mark.parametrize("which", GROWTHS)
def test_what_was_open_before_a_growth_shows_its_own_points(files, which):
    xs, ys, appends = GROWTHS[which]
    store = small.created(files)
    for number in range(len(store.chunks)):
        small.fill(store, number)
    data = xarray.open_zarr(opened_by_zarr(files), chunks=None)
    small.grown(store, xs, ys, appends)
    own = small.truth(small.XS, small.YS)[0]
    assert np.array_equal(data["v"].values.reshape(-1), own)
    small.complete(files)
    for number in range(len(store.chunks)):
        try:
            found = store.read(number, 0, known=True)
        except OSError as error:
            assert "has grown" in str(error) and not appends
        else:
            first, last = store.chunks.span(number)
            assert np.array_equal(found, own[first:last])


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
    store = small.created(files)
    small.fill(store, 0, failed=(0, 1, 2))

    def own(step):
        return dataclasses.replace(store, files=Stepped(files, step, reads=True))

    other = (lambda step: small.mend(own(step), 0, [1])) if seed % 2 else None
    other = other or (lambda step: small.fill(own(step), 0))
    InTurns(seed).run(lambda step: small.mend(own(step), 0, [0]), other)
    if store.is_done(0) and store.is_sound(0):
        small.check(files)
    small.complete(files)
