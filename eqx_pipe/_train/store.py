"""The store of a training: where it continues, and when it is written."""

import contextlib
import functools as ft
from collections.abc import Iterator, Mapping
from typing import Any

from .._errors import structure_error, value_error
from .._store import disk_errors, locked
from .._sweep import Request, check_settings
from .checkpoint import CURVES, KEY, Saved, newest, tidy, write
from .result import Steps, curves_of
from .state import State, failure

_KEPT = "step", "decided", "seen", "ended"
"""The fields of a `State` that a checkpoint keeps beside its arrays."""


class Checkpoints:
    """The store of a training, in a folder or bucket.

    It is created by the first checkpoint, after all checks of the call. In a bucket
    without locks, a process that finds a checkpoint of another one ends. `settings` are
    those of the training, as texts.
    """

    def __init__(self, request: Request, settings: Mapping[str, str]):
        assert request.store is not None
        self._files, self._path = request.store, request.store.path_of()
        self._request, self._settings = request, settings
        self._saved: tuple[Any, ...] | None = None
        self._curves, self._tag = "", None

    @contextlib.contextmanager
    def filling(self, state: State, ends: Steps) -> Iterator[bool]:
        """Hold the lock of the store; continue from its checkpoint, if there is one.

        `state` is that before the first step.
        """
        files = self._files
        self._newest(state, ends)
        with disk_errors(self._path, "be locked", "train"):
            files.make()
        with locked(files, None, "train") as has_locks:
            old = files.names() if has_locks else set()
            # Another process may have been faster.
            self._tag = files.tag(KEY)  # before the content
            saved = self._newest(state, ends)
            with disk_errors(self._path, "be mended", "train"):
                tidy(files, saved.entries if saved else {}, old)
                if saved and saved.key != KEY:
                    files.copy(saved.key, KEY)
                    self._tag = files.tag(KEY)
            if saved:
                self._restore(state, saved)
            yield saved is not None

    def _newest(self, state: State, ends: Steps) -> Saved | None:
        """Return the newest checkpoint; raise for that of another training."""
        saved = newest(self._files, "train", ft.partial(self._check, state, ends))
        path, steps = self._path, int(ends[-1])
        if saved is None:
            names = (name for name in self._files.names() if name[0] != ".")
            others = [name for name in names if not CURVES.fullmatch(name)]
            if others:
                wrong = f"the folder `{path}` is not a store of `train`: it "
                wrong += f"contains {min(others)!r}."
                raise structure_error("train", wrong, "Give another path.")
            return None
        done = max(saved.entries["step"], int(saved.arrays[1].max()))
        if done > steps:
            wrong = f"the store `{path}` has {done} steps, and `steps` is {steps}."
            cure = f"Give at least {done}, or read it: `TrainResult.load`."
            raise value_error("train", wrong, cure)
        return saved

    def _check(self, state: State, ends: Steps, saved: Saved) -> None:
        """Raise for the checkpoint of another training, or with other arrays."""
        entries, was = saved.entries, dict(saved.entries["settings"])
        if not entries["decided"] and entries["step"] <= ends[0]:
            was.pop("scheduler", None)  # it counts from its first decision on
        trusting = self._request.resume is not None
        check_settings("train", "training", self._path, was, self._settings, trusting)
        arrays = [(x.dtype.name, x.shape) for x in saved.arrays[3:]]
        now = [(x.dtype.name, x.shape) for x in state.columns.values()]
        for lanes in state.groups:
            size = len(lanes.rows)
            now += [(x.dtype.name, (size, *x.shape)) for x in lanes.structs]
        both = curves_of(saved.curves), state.curves
        forms = [[name in x and x[name].form for name in state.metrics] for x in both]
        if arrays != now or forms[0] != forms[1]:
            wrong = f"the store `{self._path}` has other carries, points or metrics."
            cure = "`step` and `evaluate` may change only what they compute."
            raise structure_error("train", wrong, f"{cure} Give another path.")

    def _restore(self, state: State, saved: Saved) -> None:
        entries, request, wrong = saved.entries, self._request, saved.curves.errors
        if wrong and request.resume != "failed" and not request.isolated:
            cure = 'Pass `on_error="mark"` to continue the others, or, after a fix, '
            cure += '`resume="failed"` to try them again.'
            what = f"in the store `{self._path}`, {len(wrong)} of {len(saved.curves)} "
            raise failure(f"{what}trainings failed", wrong, cure)
        state.active, state.trained, state.parents, *rest = saved.arrays
        state.columns = {name: rest.pop(0) for name in state.columns}
        state.carries = [[rest.pop(0) for _ in x.structs] for x in state.groups]
        for name in _KEPT:
            setattr(state, name, entries[name])
        state.errors = wrong
        state.follow(curves_of(saved.curves))
        self._saved, self._curves = state.marks, entries["curves"]

    def save(self, state: State) -> None:
        """Write a checkpoint unless there is one, and then remove the oldest."""
        if self._saved == state.marks:
            return
        curves, files = state.result().curves, self._files
        entries = {
            "settings": self._settings,
            **{name: getattr(state, name) for name in _KEPT},
            "columns": [*state.columns],
            "curves": f"curves-{state.reached:09}-{files.new_id()}.zarr",
            "before": self._curves,
        }
        with disk_errors(self._path, "be filled", "train"):
            contents = state.arrays, entries, curves, self._tag
            self._tag = write(files, *contents, is_first=self._saved is None)
        self._saved, self._curves = state.marks, entries["curves"]
