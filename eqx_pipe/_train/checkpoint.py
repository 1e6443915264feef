"""Checkpoints of `train`: files under unused names, and one pointer put last."""

import contextlib
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _leaves
from .._errors import bullets, message, structure_error, value_error
from .._sweep import Files, StoreLike, SweepResult, Taken, as_files, disk_errors
from .lanes import Lanes
from .result import Curves, State, TrainResult, result_of

POINTER = "train.json"
"""The key that names the files of the newest checkpoint: replaced atomically."""

SAVE_EVERY = 30.0
"""The minimum seconds between checkpoints."""

_SHARE = 20
"""A checkpoint takes at most one of so many seconds."""

_OWN = re.compile(r"(curves|carries)-\d{9}-[0-9a-f]{32}(\.zarr)?")
_HIDDEN = {".parts", ".locks"}

Identity = Mapping[str, Any]


class Checkpoints:
    """The store of a training, in a folder or bucket.

    It is created by the first checkpoint, after all checks of the call. In a bucket
    without locks, a process that finds a pointer of another one ends.
    """

    def __init__(self, files: Files, identity: Identity):
        self._files, self._identity = files, identity
        self._path, self._tag = files.path_of(), None
        self._duration, self._when, self.saved_step = 0.0, time.monotonic(), -1

    @property
    def due(self) -> bool:
        """True if it is time for a checkpoint."""
        wait = max(SAVE_EVERY, _SHARE * self._duration)
        return time.monotonic() - self._when >= wait

    def check(self, steps: int) -> dict[str, Any] | None:
        """Return the pointer; raise unless it belongs to the same training."""
        self._tag = self._files.tag(POINTER)  # before the content
        pointer = _pointer(self._files, "train")
        if pointer is None:
            others = self._files.names() - _HIDDEN
            others = {name for name in others if not _OWN.fullmatch(name)}
            if others:
                raise structure_error(
                    "train",
                    f"the folder `{self._path}` is not a store of `train`: it contains "
                    f"{min(others)!r}.",
                    "Give another path.",
                )
            return None
        lines = _changes(pointer["identity"], self._identity)
        if lines:
            raise structure_error(
                "train",
                f"the store `{self._path}` belongs to another training:"
                f"{bullets(lines)}",
                "Give another path, or the arguments of the store. Nothing was "
                "written.",
            )
        if pointer["step"] > steps:
            raise value_error(
                "train",
                f"the store `{self._path}` has {pointer['step']} steps, and `steps` is "
                f"{steps}.",
                f"Give at least {pointer['step']}, or read it: `TrainResult.load`.",
            )
        return pointer

    @contextlib.contextmanager
    def filling(self, steps: int) -> Iterator[dict[str, Any] | None]:
        """Hold the lock of the store; yield the pointer of the newest checkpoint."""
        self.check(steps)
        with disk_errors(self._path, "be locked", "train"):
            self._files.make()
        try:
            with self._files.lock("train") as has_locks:
                old = self._files.names() if has_locks else set()
                pointer = self.check(steps)  # another process may have been faster
                self._tidy(pointer, old)
                yield pointer
        except Taken as error:
            raise RuntimeError(
                message(
                    "train",
                    f"the store `{self._path}` is filled by {error}.",
                    "Wait until it has finished, or give another path.",
                )
            ) from None

    def restore(
        self, pointer: Mapping[str, Any], state: State, groups: Sequence[Lanes]
    ) -> None:
        """Fill a new state and new lanes from a checkpoint."""
        _, was, carries = _read(self._files, pointer, "train")
        following = iter(carries)
        for lanes in groups:
            lanes.carries = [next(following) for _ in lanes.structs]
        for old, new in ((was.records, state.records), (was.evals, state.evals)):
            # With larger `steps`, the end of the earlier call may be no record.
            _, here, there = np.intersect1d(old.steps, new.steps, return_indices=True)
            for name, curve in new.values.items():
                curve[:, there] = old.values[name][:, here]
        for field in ("step", "columns", "active", "trained", "parents", "errors"):
            setattr(state, field, getattr(was, field))
        self.saved_step = state.step

    def save(self, state: State, groups: Sequence[Lanes], result: TrainResult) -> None:
        """Write a checkpoint, and then remove the one before."""
        begun = time.monotonic()
        arrays = [state.active, state.trained, state.parents, *state.columns.values()]
        for lanes in groups:
            arrays += [np.asarray(x)[: len(lanes.rows)] for x in lanes.carries]
        name = f"{state.step:09}-{self._files.new_id()}"
        entries = {"errors": {str(i): text for i, text in state.errors.items()}}
        pointer = {
            "format": 1,
            "identity": self._identity,
            "step": state.step,
            "curves": f"curves-{name}.zarr",
            "carries": f"carries-{name}",
            "columns": list(state.columns),
        }
        with disk_errors(self._path, "be filled", "train"):
            result.curves.save(self._files.below(pointer["curves"]))
            self._files.put(pointer["carries"], _leaves.pack(arrays, entries))
            old, text = self._files.names(), json.dumps(pointer, indent=1).encode()
            self._tag = self._files.swap(POINTER, text, self._tag)
            if self._tag is None:  # perhaps a repeated request, whose reply was lost
                self._tag = self._files.tag(POINTER)
                if self._files.get(POINTER) != text:
                    raise Taken("another process")
        self._tidy(pointer, old)
        self.saved_step, self._when = state.step, time.monotonic()
        self._duration = self._when - begun

    def _tidy(self, pointer: Mapping[str, Any] | None, old: Collection[str]) -> None:
        """Remove older checkpoints, and those that a killed process left."""
        kept = set() if pointer is None else {pointer["curves"], pointer["carries"]}
        for name in old:
            if _OWN.fullmatch(name) and name not in kept:
                self._files.remove_all(name)


def load(path: StoreLike) -> TrainResult:
    """Return the newest checkpoint; see `TrainResult.load`."""
    function = "TrainResult.load"
    files = as_files(function, path, "path")
    while True:
        pointer = _pointer(files, function)
        if pointer is None:
            text = f"`{files.path_of()}` has no checkpoint of `train`."
            cure = "Give the path that `train` got as `store`."
            raise FileNotFoundError(message(function, text, cure))
        try:
            curves, state, _ = _read(files, pointer, function)
            about = curves.started, curves.seconds, curves.function
            return result_of(curves.space, (), state, *about)
        except (FileNotFoundError, ValueError):
            # A process that fills the store may have removed it meanwhile.
            if _pointer(files, function) == pointer:
                raise


def _read(
    files: Files, pointer: Mapping[str, Any], function: str
) -> tuple[SweepResult, State, list[np.ndarray]]:
    """Return the curves of a checkpoint, its state, and the carries."""
    try:
        arrays, entries = _leaves.unpack(files.get(pointer["carries"]))
    except _leaves.DamagedLeaves as error:
        wrong = f"`{files.path_of(pointer['carries'])}` is damaged: {error}."
        cure = "Restore it from a copy, or delete the store."
        raise value_error(function, wrong, cure) from error
    result = SweepResult.load(files.below(pointer["curves"]))
    records, evals = (
        Curves(d, np.zeros(0, np.int64), {}) for d in ("step", "eval_step")
    )
    for name, values in result.values.items():
        for curves in (records, evals):
            if curves.dim in result.output_coords[name]:
                curves.steps = np.asarray(result.output_coords[name][curves.dim])
                curves.values[name] = np.asarray(values[...])
    active, trained, parents, *rest = arrays
    columns = {name: rest.pop(0) for name in pointer["columns"]}
    errors = {int(i): text for i, text in entries["errors"].items()}
    state = State(
        pointer["step"], columns, active, trained, parents, records, evals, errors
    )
    return result, state, rest


def _pointer(files: Files, function: str) -> dict[str, Any] | None:
    try:
        data = files.get(POINTER)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = json.loads(data)
        if found["format"] != 1:
            raise ValueError("it has another format")
        return found
    except (ValueError, KeyError, TypeError) as error:
        wrong = f"`{files.path_of(POINTER)}` is damaged: {error}."
        cure = "Restore it from a copy, or give another path."
        raise value_error(function, wrong, cure) from error


def _changes(was: Identity, now: Identity) -> list[str]:
    """Return a line for each setting that differs."""
    lines = []
    for name in {**was, **now}:
        old, new = was.get(name), now.get(name)
        if name == "every" and isinstance(old, list) and isinstance(new, list):
            # A longer tuple continues a shorter one.
            short = min(len(old), len(new))
            old, new = old[:short], new[:short]
        if old != new and name != "jax":
            lines.append(f"`{name}` was {old}, now {new}")
    if any("`training`" in line for line in lines) and was["jax"] != now["jax"]:
        lines.append(f"it was written by JAX {was['jax']}, now {now['jax']}")
    return lines
