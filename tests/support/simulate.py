"""Simulated histories of a store: `python -m tests.support.simulate --histories 1000`.

Processes create, fill, mend and grow one small store, stop inside of a chunk and save
what is in flight. One of them runs at a time, and which is next is drawn. Each
operation on a file may crash the process before or after it. Depending on the mode,
requests and replies are lost, files are written late, network disks show old listings,
there are no locks, and two processes write the same chunks. A bucket has no locks, but
conditional puts, which a client repeats if it gets no reply; a throttled request is a
lost one. In the modes with workers these write the chunks of a sweep, which submits
some twice and is started again if it dies, while its workers go on. After each phase a
new reader checks every value. In the end nothing fails any more, and one run must
complete the store. `--seed 34 --mode nolock --trace` repeats one history.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path
from unittest import mock

import numpy as np

from eqx_pipe import SweepError
from eqx_pipe._store import (
    FAILED,
    MISSING,
    OK,
    PARTS,
    Chunks,
    Filling,
    Folder,
    Taken,
    commit,
    create,
    create_store,
    exists,
    format,
    open_store,
    restore,
    store,
)
from eqx_pipe._store import (
    fill as fill,
)
from eqx_pipe._store.disk import Entry
from eqx_pipe._sweep import flight_files, worker
from eqx_pipe._sweep.target import open_to_workers
from eqx_pipe._sweep.work.buffer import Asked, Chunk, Verdict
from eqx_pipe._sweep.work.flight import Flight
from eqx_pipe._sweep.work.work import Work

from . import small_store as small
from .bucket import Bucket

MODES = {
    # The faults besides crashes, lost requests and lost replies.
    "plain": "",
    "late": "late",
    "stale": "stale",
    "growth": "growth",
    "late growth": "late growth",
    "stale growth": "stale growth",
    "unhidden growth": "growth unhidden",
    "nolock": "nolock",
    "late nolock": "late nolock",
    "stale nolock": "stale nolock",
    "clash": "nolock clash",
    "rounding": "nolock clash rounding",
    "late rounding": "late nolock clash rounding",
    "stale rounding": "stale nolock clash rounding",
    "late stale growth": "late stale growth rounding",
    "bucket": "nolock bucket",
    "late bucket": "late nolock bucket",
    "clash bucket": "nolock bucket clash",
    "rounding bucket": "nolock bucket clash rounding",
    "late rounding bucket": "late nolock bucket clash rounding",
    "workers": "workers",
    "late workers": "late workers",
    "stale workers": "stale workers",
    "rounding workers": "workers rounding",
    "nolock workers": "nolock workers",
    "rounding nolock workers": "nolock workers rounding",
    "growth workers": "growth workers",
    "bucket workers": "nolock bucket workers",
    "late bucket workers": "late nolock bucket workers",
    "rounding bucket workers": "nolock bucket workers clash rounding",
}
HIDDEN_SECONDS = 60.0
XS, YS = [2.0], [0.0, 1.0, 2.0, 3.0, 4.0]
GROWTHS = [
    # The larger dims, and whether values keep their files.
    (XS, [*YS, 5.0, 6.0], True),
    ([*XS, 4.0], YS, True),
    ([0.0, *XS], YS, False),
]

# Flights ask their work for the batch size only.
POINTS = types.SimpleNamespace(adapts=False, largest_batch=1)
WORK = mock.Mock(spec=Work, points=POINTS)
NO_VERDICT = Verdict(np.zeros(0, bool))


def _identity(flying):
    return {"layout": flying._store.record["cut"]}


@functools.cache
def _metadata(data):
    return format.read_root("sweep", Bucket({"zarr.json": data}))


def _read_root(function, files):
    try:
        return _metadata(files.get("zarr.json"))
    except FileNotFoundError:
        raise format.foreign(function, files, "has no `zarr.json`") from None


@functools.lru_cache(2**14)
def _decompressed(data, size):
    return format.decompress(Bucket({"": data}), "", size)


_truth = functools.cache(small.truth)


@contextlib.contextmanager
def decoding_once():
    """Decode equal bytes once: most of the time would be spent in decoders."""
    parsed = functools.lru_cache(2**14)(store.parsed)

    def decompress(files, key, size):
        return _decompressed(files.get(key), size)

    with contextlib.ExitStack() as stack:
        for module, name, fast in [
            (store, "read_root", _read_root),
            (create, "read_root", _read_root),
            (flight_files.Flights, "_identity", property(_identity)),
            (store, "parsed", parsed),
            (store, "decompress", decompress),
            (commit, "compress", functools.lru_cache(2**10)(format.compress)),
            (Chunks, "position", functools.lru_cache(2**10)(Chunks.position)),
        ]:
            stack.enter_context(mock.patch.object(module, name, fast))
        yield


class Kill(BaseException):
    """The process ends."""


class Fault(OSError):
    """A request or its reply is lost."""

    def __init__(self, text):
        super().__init__(5, text)


class World:
    """All files that are durable: for each key, its versions in time."""

    def __init__(self, seed, faults):
        self.rng, self.faults, self.quiet = random.Random(seed), faults, False
        self.now, self.versions, self.late = 1000.0, {}, []
        self.came_late, self.after_late = set(), lambda: None
        self.locks, self.trace = collections.defaultdict(dict), []

    def tick(self):
        self.now += self.rng.random() * 4
        for write in sorted(w for w in self.late if w[0] <= self.now):
            self.late.remove(write)
            self.came_late.add(write[3])
            self.apply(*write[1:])
            self.after_late()

    def apply(self, who, op, key, data, tag=None):
        """Apply a request; return whether a file was created, or its new tag."""
        if op == "swap":
            if tag_of(self.at(key)) != tag:
                return None
            self.versions.setdefault(key, []).append((self.now, who, data))
            return tag_of(self.at(key))
        is_new = self.at(key) is None
        if op != "put_new" or is_new:
            self.versions.setdefault(key, []).append((self.now, who, data))
        return is_new

    def at(self, key, who=None, when=None):
        """Return a file as a process sees it that knows what is older than `when`."""
        for time, writer, data in reversed(self.versions.get(key, ())):
            if when is None or time <= when or writer == who:
                return None if data is None else (time, data)
        return None


def tag_of(found):
    """Return the tag of a file: that of equal content is equal, as on S3."""
    return None if found is None else hashlib.md5(found[1]).hexdigest()


class View(Folder):
    """The files of the world as one process sees them."""

    def __init__(self, world, who, turn=lambda: None):
        super().__init__(Path("simulated"))
        self.world, self.who, self.turn = world, who, turn
        self.hidden, self.conditional = {}, "bucket" in world.faults
        self.is_dead = False

    def __reduce__(self):
        return Path, ("simulated",)  # that it travels is all that is asked

    def step(self, op, key, data=None, tag=None):
        """Let another process run, or let this one crash; apply a request."""
        self.turn()
        world = self.world
        if self.is_dead:  # a process that is killed cleans nothing up
            raise Kill
        world.tick()
        if world.trace is not None:
            world.trace.append(f"{world.now:8.1f} {self.who:5} {op:8} {key}")
        draw = 80.0 if world.quiet else world.rng.random() * 80
        if draw < 0.5:
            self.is_dead = draw < 0.3
            raise Kill
        if op not in ("put", "put_new", "swap", "remove"):
            return False
        if 1 <= draw < 2:
            raise Fault("request lost")
        if 2 <= draw < 3 and "late" in world.faults and op != "remove":
            arrives = world.now + world.rng.uniform(0, HIDDEN_SECONDS)
            world.late.append((arrives, self.who, op, key, data, tag))
            raise Fault("timed out")
        done = world.apply(self.who, op, key, data, tag)
        if 4 <= draw < 6 and self.conditional:  # the client has repeated the request
            done = world.apply(self.who, op, key, data, tag)
        if 3 <= draw < 4:
            raise Fault("reply lost")
        if 0.5 <= draw < 1:
            self.is_dead = draw < 0.8
            raise Kill
        return done

    def make(self):
        self.step("make", "")

    def put(self, key, data):
        self.step("put", key, data)

    def put_new(self, key, data):
        return self.step("put_new", key, data)

    def tag(self, key):
        if self.conditional:
            self.step("head", key)
            return tag_of(self.world.at(key))

    def swap(self, key, data, tag):
        if self.conditional:
            return self.step("swap", key, data, tag)
        return super().swap(key, data, tag)

    def at_once(self, acts):
        if not self.conditional:
            return super().at_once(acts)
        order = self.world.rng.sample(range(len(acts)), len(acts))
        found = {k: acts[k]() for k in order}
        return [found[k] for k in range(len(acts))]

    def remove(self, key):
        self.step("remove", key)

    def get(self, key, most=None):
        self.step("get", key)
        found = self.world.at(key, self.who)
        if found is None:
            if self._is_stale():  # the absence is remembered
                wait = self.world.rng.uniform(0, HIDDEN_SECONDS)
                self.hidden.setdefault(key, self.world.now + wait)
            raise FileNotFoundError(key)
        if (
            self.world.now < self.hidden.get(key, 0)
            and self.world.versions[key][-1][1] != self.who
        ):
            raise FileNotFoundError(key)
        return found[1]

    def exists(self, key):
        self.step("exists", key)
        return self.world.at(key, self.who, self._when()) is not None

    def names(self, below=""):
        return {*self.entries(below)}

    def entries(self, below):
        self.step("list", below)
        start, when, found = f"{below}/" if below else "", self._when(), {}
        for key in self.world.versions:
            if key.startswith(start):
                file = self.world.at(key, self.who, when)
                if file is not None:
                    entry = Entry(len(file[1]), int(file[0] * 1e9))
                    found[key[len(start) :].partition("/")[0]] = entry
        return found

    def path_of(self, key=""):
        return f"simulated/{key}"

    def wait(self, seconds):
        self.world.now += seconds
        self.turn()

    def new_id(self):
        return f"{self.world.rng.getrandbits(128):032x}"

    @contextlib.contextmanager
    def lock(self, name, shared=False, wait=False):
        if "nolock" in self.world.faults:
            yield False
            return
        held = self.world.locks[name]
        while any(not (shared and other) for other in held.values()):
            if not wait:
                raise Taken(f"process {held}")
            self.turn()
        held[self.who] = shared
        try:
            yield True
        finally:
            held.pop(self.who)

    def _is_stale(self):
        return "stale" in self.world.faults and not self.world.quiet

    def _when(self):
        age = HIDDEN_SECONDS if self._is_stale() else 0.0
        return self.world.now - self.world.rng.uniform(0, age) if age else None


class Quiet(View):
    """The files as they are, read without steps."""

    def step(self, op, key, data=None, tag=None):
        return False

    def _is_stale(self):
        return False


_THREADS = concurrent.futures.ThreadPoolExecutor(4)


def _closed():
    lock = threading.Lock()
    lock.acquire()
    return lock


def in_turns(rng, often, works):
    """Run each work in a thread, one at a time; return what each returns or raises.

    At each step another one may go on, as `often` says; one that `waits` lets others.
    """
    if len(works) == 1:
        ((who, work),) = works.items()
        try:
            return {who: work(lambda waits=False: None)}
        except (Kill, Exception) as error:
            return {who: error}
    found, alive, done = {}, [*works], _closed()
    go = {who: _closed() for who in works}

    def body(who):
        def turn(waits=False):
            other = rng.choice(alive) if waits or rng.random() < often else who
            if other != who:
                go[other].release()
                go[who].acquire()

        go[who].acquire()
        try:
            found[who] = works[who](turn)
        except BaseException as error:
            found[who] = error
        alive.remove(who)
        (go[rng.choice(alive)] if alive else done).release()

    for who in works:
        _THREADS.submit(body, who)
    go[rng.choice(alive)].release()
    done.acquire()
    return found


def _resumed(flight, values):
    """Take values from a flight; return the rows that are written, and that wait."""
    ((kept, done, _, *own),) = flight.buffers
    for leaf, had, state in zip(values, own, flight.state, strict=True):
        leaf[done] = had
        leaf[~(done | kept)] = state * 2
    return kept, done


@Work.register
class Job:
    """The work of a call of a worker, whose values end in some bits."""

    is_merged, points = False, POINTS

    def __init__(self, history, call, bits):
        self.history, self.call, self.bits = history, call, bits

    def compute(self, asked, watch, resumed=None):
        history, call, index = self.history, self.call, np.asarray(asked.numbers)
        values = history.values(index, call.xs, call.ys, self.bits)
        bad = np.isin(index - call.first, call.bad)
        given = done = np.zeros(len(index), bool)
        if resumed is not None:
            history.counts["resumed"] += 1
            given, done = _resumed(resumed, values)

        def part(some, at, flight):
            verdict = Verdict(
                ~bad[some], {"no": index[some & bad]}, failed=int(bad[some].sum())
            )
            leaves = [leaf[some] for leaf in values]
            for leaf in leaves:
                leaf[bad[some]] = 0
            rows = at if at is None or asked.rows is None else asked.rows[at]
            return Chunk(asked.number, rows, leaves, verdict, flight)

        while history.rng.random() < 0.3:  # save, and commit a part in a bucket
            new = ~(done | given) & (history.draws.random(len(index)) < 0.3)
            done = done | new
            some = np.zeros_like(done)
            if not watch.whole:
                some, done = done, some
                given = given | some
            own = [given, done, done, *(leaf[done] for leaf in values)]
            state = [leaf[~(done | given)] / 2 for leaf in values]
            place = (0, 0, 0, len(index)), 1, np.zeros((1, 4), np.uint32)
            flight = Flight(*place, state, buffers=[own], rows=asked.rows)
            history.counts["saved"] += 1
            yield part(some, np.flatnonzero(some), flight)
        rest = ~given
        at = np.flatnonzero(rest) if given.any() else None
        last = part(rest, at, None)
        yield last._replace(rows=asked.rows if at is None else last.rows)


class Engine:
    """The calls of sweeps that wait for a worker."""

    def __init__(self, callers):
        self.callers, self.waiting = callers, []


class History:
    """One history: phases with one or two processes, then one run in quiet."""

    def __init__(self, seed, mode, trace=False):
        self.world = World(seed, MODES[mode].split())
        self.world.trace = [] if trace else None
        self.rng, self.counts = self.world.rng, collections.Counter()
        self.draws = np.random.default_rng(seed)
        self.acked, self.world.after_late = set(), self.after_late
        """The points whose values a process has written, as it believes."""
        self.grown, self.often = None, self.rng.choice([0.02, 0.1, 0.5])
        self.is_bucket = "bucket" in self.world.faults

    def values(self, index, xs, ys, bits=0):
        """Return the values of some points; `bits` is how a writer rounds."""
        found = [leaf[index] for leaf in _truth(tuple(xs), tuple(ys))]
        found[0] = found[0] + np.float32(bits * 2**-10)
        return found

    def run(self, files, shard, fails, bits, engine=None):
        """Do what a sweep does with its store, alone or by the workers of an engine."""
        if exists(files):
            store = open_store("sweep", files)
        else:
            store = create_store("sweep", files, small.layout(XS, YS))
        xs, ys = XS, YS
        if self.grown is not None:
            xs, ys, _ = self.grown
            if tuple(store.record["lengths"]) != (len(xs), len(ys)):
                small.grown(files, *self.grown)
                store = open_store("sweep", files)
                self.counts["grown"] += 1
        restore(store, lambda: small.layout(xs, ys))
        filling = Filling(store, shard, again=True)
        flying = flight_files.Flights(WORK, filling, lambda *_: Asked(0, 0, 0))
        listed, seen = filling.look(), set()
        if not (filling.todo(listed) or filling.has_leftovers() or flying.look()):
            return "complete"
        with filling.locked() as listed:
            todo = filling.todo(listed)
            flying.tidy(todo)
            if engine is not None:
                return self.by_workers(filling, todo, fails, xs, ys, engine)
            for number, rows in todo.items():
                flight = flying.get(number)
                passes = [(rows, None)] if flight is None else [(flight.rows, flight)]
                if flight is not None and flight.rows is not None:
                    first, last = store.chunks.span(number)
                    rows = np.arange(last - first) if rows is None else rows
                    rest = np.setdiff1d(rows, flight.rows)
                    passes += [(rest, None)] if len(rest) else []
                for rows, flight in passes:
                    place = filling, flying, number
                    asked = rows, flight, seen, fails(number), xs, ys, bits
                    if not self.fill(*place, *asked):
                        return "stopped"
        return "filled"

    def by_workers(self, filling, todo, fails, xs, ys, engine):
        """Let workers write chunks; submit some again, as after a timeout."""
        files, rng, chunks = filling.store.files, self.rng, filling.store.chunks
        with open_to_workers(filling) as target:

            def submit(number, rows):
                first, last = chunks.span(number)
                asked = Asked(number, first, last, rows)
                call = types.SimpleNamespace(
                    asked=asked, bad=fails(number), first=first
                )
                call.xs, call.ys, call.target, call.found = xs, ys, target, None
                engine.waiting.append(call)
                return call

            calls = {number: [submit(number, rows)] for number, rows in todo.items()}
            try:
                while calls:
                    files.turn(waits=True)
                    if rng.random() < 0.02:
                        files.step("wait", "")
                    for number, own in [*calls.items()]:
                        found = [call.found for call in own if call.found is not None]
                        errors = [x for x in found if isinstance(x, Exception)]
                        if len(errors) < len(found):  # an answer; later ones are lost
                            call = next(x for x in own if x.found in ("done", "values"))
                            self.take(filling, number, call, todo[number])
                            del calls[number]
                        elif len(errors) == len(own) or rng.random() < 0.02:
                            again = all(isinstance(x, TimeoutError) for x in errors)
                            if not again or len(own) == 3:
                                raise SweepError("the worker failed") from None
                            self.counts["again"] += 1
                            own.append(submit(number, todo[number]))
            finally:
                if not files.is_dead or rng.random() < 0.5:  # else the engine goes on
                    calls = engine.waiting
                    engine.waiting = [call for call in calls if call.target != target]
        return "filled"

    def take(self, filling, number, call, rows):
        """Take the answer of a worker, and write values that it could not write."""
        at = np.asarray(call.asked.numbers) - call.first
        bad = np.isin(at, call.bad)
        if call.found == "values":
            values = self.values(np.asarray(call.asked.numbers), call.xs, call.ys)
            whole = at if rows is not None else None
            all_ = np.ones(len(at), bool)
            self.keep(filling, number, at, values, bad, all_, whole)
            return
        places = self.points(filling.store, number)
        self.acked |= {places[row] for row in at[~bad]}
        self.counts["commits"] += 1

    def work(self, who, engine, bits, turn):
        """Work for the sweeps of an engine until there are none."""
        number = 0
        while engine.waiting or engine.callers:
            if not engine.waiting:
                turn(waits=True)
                continue
            call = engine.waiting.pop(self.rng.randrange(len(engine.waiting)))
            number += 1
            target = call.target._replace(
                files=View(self.world, f"{who}.{number}", turn)
            )
            try:
                writes = target.is_open()
                if writes:
                    worker._written(Job(self, call, bits), call.asked, target)
                call.found = "done" if writes else "values"
            except Kill:  # a dead worker; an engine may not notice it
                lost = TimeoutError("the worker died")
                call.found = lost if self.rng.random() < 0.8 else None
            except (SweepError, OSError, ValueError) as error:
                call.found = error
        return "worked"

    def fill(self, filling, flying, number, rows, flight, seen, bad, xs, ys, bits):
        """Compute some rows of a chunk; return whether it did not stop inside of it."""
        first, last = filling.store.chunks.span(number)
        at = np.arange(last - first) if rows is None else rows
        assert not seen & {*(first + at).tolist()}, "computed twice"
        seen |= {*(first + at).tolist()}
        bad = np.isin(at, bad)
        values = self.values(first + at, xs, ys, bits)
        kept = done = np.zeros(len(at), bool)
        if flight is not None:  # go on from its state
            self.counts["resumed"] += 1
            kept, done = _resumed(flight, values)
        keep = functools.partial(self.keep, filling, number, at, values, bad)
        whole = at if kept.any() else rows
        while self.rng.random() < 0.5:  # stop inside, and save
            some = ~(done | kept) & (self.draws.random(len(at)) < 0.3)
            done = done | some
            if filling.in_parts:
                whole = keep(done, whole)
                kept, done = kept | done, np.zeros_like(done)
            own = [kept, done, done, *(leaf[done] for leaf in values)]
            state = [leaf[~(done | kept)] / 2 for leaf in values]
            call, place = (0, 0, 0, len(at)), np.zeros((1, 4), np.uint32)
            saved = Flight(call, 1, place, state, buffers=[own], rows=rows)
            flying.keep(Chunk(number, None, [], NO_VERDICT, saved))
            self.counts["saved"] += 1
            if self.rng.random() < 0.3 and not self.world.quiet:
                return False
        keep(~kept, whole)
        flying.keep(Chunk(number, None, [], NO_VERDICT))
        return True

    def keep(self, filling, number, at, values, bad, some, rows):
        """Keep `some` of the rows `at` of a chunk; `bad` ones have failed.

        The first rows come with those that are missing yet, unless a flight goes on:
        then `rows` are not `at`.
        """
        if not some.any():
            return rows
        status = np.where(some, np.where(bad, FAILED, OK), MISSING).astype(np.int8)
        leaves = [leaf.copy() for leaf in values]
        for leaf in leaves:
            leaf[status != OK] = 0
        if rows is at:
            rows, status = at[some], status[some]
            leaves = [leaf[some] for leaf in leaves]
        filling.keep(number, rows, leaves, status, {"no": at[bad & some]})
        all_ = self.points(filling.store, number)
        self.acked |= {all_[row] for row in at[some & ~bad]}
        self.counts["commits"] += 1
        return at

    def points(self, store, number):
        """Return the coordinates of the points of a chunk."""
        xs, ys = XS, YS
        if tuple(store.record["lengths"]) != (len(XS), len(YS)):
            xs, ys, _ = self.grown
        return [(x, y) for x in xs for y in ys][slice(*store.chunks.span(number))]

    def tell(self, store, number):
        """Count a damaged chunk, which an error names and the next run computes."""
        faults = {*self.world.faults}
        may = faults & {"late", "nolock"} or {"workers", "rounding"} <= faults
        assert may and not self.is_bucket, f"damage in {number}"
        self.counts["told"] += 1
        self.acked -= {*self.points(store, number)}

    def after_late(self):
        """Find what a write of a dead process that has arrived now has damaged."""
        files = Quiet(self.world, "reader")
        if exists(files):
            store = open_store("sweep", files)
            for number in np.flatnonzero(store.listed().done).tolist():
                if not store.is_sound(number):
                    self.tell(store, number)

    def check(self):
        """Raise if a new reader gets a wrong value, or misses one without an error."""
        files = Quiet(self.world, "reader")
        if not exists(files):
            assert not self.acked
            return 0
        store = open_store("sweep", files)
        xs, ys = (XS, YS)
        if tuple(store.record["lengths"]) != (len(xs), len(ys)):
            xs, ys, _ = self.grown
        _, errors, done = store.account()
        failed = {*np.concatenate([np.zeros(0, int), *errors.values()]).tolist()}
        computed, is_whole = 0, True
        for number in range(len(store.chunks)):
            points = np.arange(*store.chunks.span(number))
            places = self.points(store, number)
            try:
                known = bool(done[number])
                found = [store.read(number, k, known) for k in (0, 1)]
                manifest = store.manifest(number)
            except OSError:  # it is computed again, as the error says
                self.tell(store, number)
                is_whole = False
                continue
            status = np.zeros(len(points)) if manifest is None else manifest.status
            right = self.values(points, xs, ys), self.values(points, xs, ys, 1)
            for leaf, one, other in zip(found, *right, strict=True):
                same = ((leaf == one) | (leaf == other)).reshape(len(points), -1)
                assert same.all(1)[status == OK].all(), f"wrong values in {number}"
            assert {*points[status == FAILED].tolist()} <= failed, "no text of an error"
            computed += int(np.sum(status == OK))
            lost = self.acked & {places[k] for k in np.flatnonzero(status != OK)}
            assert not lost, f"{number} has lost {lost}"
        return computed if is_whole else -1

    def phase(self, number):
        """Let one or two processes run, which may fail or end at any step."""
        rng, faults = self.rng, self.world.faults
        shards = rng.choice([[None], [(0, 2), (1, 2)], [None, None]])
        grown = self.grown
        if "growth" in faults and number == 2:
            grown = rng.choice(GROWTHS)
            if "workers" in faults and rng.random() < 0.5:
                shards = [None]  # the space grows when the sweep is started again
            else:
                self.grown = grown
        if "clash" in faults:
            shards = [None, None]
        works, bad = {}, rng.choice([(), (0,), (0, 1)])
        engine = Engine(len(shards)) if "workers" in faults else None
        for k, shard in enumerate(shards):
            who, bits = f"{number}.{k}", k if "rounding" in faults else 0

            def work(turn, who=who, shard=shard, bits=bits):
                view = View(self.world, who, turn)
                asked = shard, lambda n: bad if n % 2 == 0 else (), bits, engine
                try:
                    return self.run(view, *asked)
                except Kill:
                    if engine is None:
                        raise
                    self.counts["Kill"] += 1  # its workers go on
                    self.grown = grown
                    return self.run(View(self.world, f"{who}b", turn), *asked)
                finally:
                    if engine is not None:
                        engine.callers -= 1

            works[who] = work
        for k in range(2 if engine else 0):
            bits = k if "rounding" in faults else 0
            who = f"{number}w{k}"
            works[who] = functools.partial(self.work, who, engine, bits)
        for found in in_turns(rng, self.often, works).values():
            self.counts[found if isinstance(found, str) else type(found).__name__] += 1
            if not isinstance(found, str | Kill | SweepError | OSError | ValueError):
                raise found
        self.grown = grown
        assert not any(self.world.locks.values())
        if "unhidden" in faults:  # somebody copies the folder without hidden files
            for key in [key for key in self.world.versions if key.startswith(".")]:
                del self.world.versions[key]
        self.check()

    def play(self):
        """Play the history; raise an `AssertionError` if something is wrong."""
        for number in range(self.rng.randint(2, 4)):
            self.phase(number)
        world = self.world
        world.quiet = True
        world.now += 2 * HIDDEN_SECONDS
        world.tick()
        xs, ys, _ = self.grown or (XS, YS, True)
        self.run(View(world, "last"), None, lambda number: (), 0)
        assert self.check() == len(xs) * len(ys), "stuck"
        if self.grown:  # the call after a growth removes invalid files
            assert self.run(View(world, "again"), None, lambda number: (), 0)
        found = self.run(View(world, "still"), None, lambda number: (), 0)
        tokens = any(key.startswith(PARTS) for key in world.versions)  # of dead sweeps
        assert found == "complete" or ("nolock" in world.faults and tokens)
        assert "unhidden" in world.faults or not self.leftovers(), self.leftovers()
        return self.counts

    def leftovers(self):
        """Return the files that belong to no array of the store."""
        store = open_store("sweep", Quiet(self.world, "reader"))
        nodes = store.root["consolidated_metadata"]["metadata"]
        known = {"zarr.json", *(f"{name}/zarr.json" for name in nodes)}
        for name in (store.record["status"], *store.names()):
            behind = ".0" if name == "w" else ""
            places = store.chunks.names(f"{name}/{store._root(name)}")
            known |= {place + behind for place in places}
        known |= {f"{name}/{store._root(name)}0" for name in ("x", "y")}
        if "nolock" in self.world.faults:  # nobody knows which sweep has ended
            known |= {key for key in self.world.versions if key.startswith(PARTS)}
        # The next growth removes files that arrived after the last one had ended.
        known |= self.world.came_late
        return {k for k in self.world.versions if self.world.at(k) is not None} - known


def play(seed, mode):
    """Play one history; return its mode, its counts, and what went wrong."""
    try:
        with decoding_once():
            return mode, History(seed, mode).play(), ""
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[-200:]} ({where.name})"
        return mode, collections.Counter(), f"seed {seed} of mode {mode!r}: {text}"


def _play(task):
    return play(*task)


def histories(count, first=0, modes=tuple(MODES), workers=1, report=print):
    """Play histories of all modes in turn; return the counts of each mode."""
    found = {mode: collections.Counter() for mode in modes}
    tasks = ((seed, modes[seed % len(modes)]) for seed in range(first, first + count))
    with contextlib.ExitStack() as stack:
        played = map(_play, tasks)
        if workers > 1:
            spawn = multiprocessing.get_context("spawn")
            pool = stack.enter_context(spawn.Pool(workers))
            played = pool.imap_unordered(_play, tasks, 50)
        for number, (mode, counts, wrong) in enumerate(played, 1):
            found[mode] += counts
            found[mode]["histories"] += 1
            if wrong:
                found[mode]["wrong"] += 1
                report(wrong)
            if number % 1000 == 0:
                print(f"{number} histories", file=sys.stderr, flush=True)
    return found


def starts(count, has_locks=True):
    """Let two processes create and fill real stores at once; return what went wrong."""
    spawn = multiprocessing.get_context("spawn")
    barrier, wrong = spawn.Barrier(2, timeout=300), spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder), count, has_locks, barrier, wrong
        both = [spawn.Process(target=_start, args=(k, *asked)) for k in (0, 1)]
        for process in both:
            process.start()
        found = [*wrong.get(), *wrong.get()]
        for process in both:
            process.join()
    return found


def _start(me, folder, count, has_locks, barrier, wrong):
    def without(*_):
        raise OSError(errno.EOPNOTSUPP, "no locks")

    if not has_locks:
        fcntl.flock = without
    found = []
    for number in range(count):
        files = Folder(folder / f"{number}")
        barrier.wait()
        try:
            store = create_store("sweep", files, small.layout(count=5))
            small.run(store, (me, 2))
        except Exception:
            found.append(f"{number}: {traceback.format_exc(limit=-3)}")
        barrier.wait()
        if me == 0:
            try:
                store = open_store("sweep", files)
                assert store.listed().done.all()
                assert all(map(store.is_sound, range(len(store.chunks))))
                small.rows_of(store, 0)
            except Exception:
                found.append(f"{number}: {traceback.format_exc(limit=-3)}")
            shutil.rmtree(files.path)
            if number % 1000 == 999:
                print(f"{number + 1} starts", file=sys.stderr, flush=True)
    wrong.put(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="play one, step by step")
    parser.add_argument("--starts", type=int, help="instead: real processes")
    parser.add_argument("--without-locks", action="store_true", help="in real starts")
    asked = parser.parse_args()
    if asked.starts:
        found = starts(asked.starts, not asked.without_locks)
        print(f"{asked.starts} starts, {len(found)} wrong", *found, sep="\n")
        return
    if asked.trace:
        history = History(asked.seed, asked.mode or "plain", trace=True)
        try:
            with decoding_once():
                print(json.dumps(history.play()))
        finally:
            print("\n".join(history.world.trace))
        return
    modes = tuple(MODES) if asked.mode is None else (asked.mode,)
    found = histories(asked.histories, asked.seed, modes, asked.workers)
    for mode, counts in found.items():
        print(f"{mode:20}", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
