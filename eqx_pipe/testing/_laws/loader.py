"""The laws of data loaders."""

import collections
import dataclasses
import functools as ft
import inspect
from collections.abc import Callable, Collection
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._check import check_is
from ..._data import Cursor, Loader
from ..._keys import check_key
from ..._stage import as_module, identity
from ..._tree import as_arrays
from ..._types import Key, PyTree, StageLike
from .key import DRAWS, key_law
from .law import (
    USUAL,
    Broken,
    agree,
    agree_with_reference,
    as_numpy,
    check_laws,
    check_names,
    check_reference,
    law,
    laws_of,
    must_hold,
)
from .trial import Call, Trial


@dataclasses.dataclass(frozen=True)
class LoaderTrial:
    """A loader at the beginning of its first epoch."""

    loader: Loader
    key: Key
    reference: Callable[[int], PyTree] | None = None

    @ft.cached_property
    def cursor(self) -> Cursor:
        return self.loader.init(self.key)

    def records(self, **changes: Any) -> PyTree:
        """Return the records of an epoch, in one batch, with changed settings."""
        names = inspect.signature(Loader).parameters
        settings = {name: getattr(self.loader, name) for name in names}
        whole = {"batch_pipe": identity, "drop_remainder": False, "sharding": None}
        loader = Loader(**{**settings, **whole, **changes})

        def join(*leaves: Any) -> Any:
            return jnp.concatenate(leaves) if eqx.is_array(leaves[0]) else leaves[0]

        batches = map(as_arrays, loader.epoch(loader.init(self.key)))
        return jtu.tree_map(join, *batches)

    @law("pure", "the same cursor gives the same batch.")
    def pure_law(self) -> None:
        first, _ = self.loader.next(self.cursor)
        again, _ = self.loader.next(self.cursor)
        labels = ("the second time", "the first time")
        agree(as_arrays(again), as_arrays(first), labels)

    @law("records", "an epoch has every record once.")
    def records_law(self) -> None:
        as_it_is = {n: getattr(self.loader, n) for n in ("drop_remainder", "sharding")}
        found = _rows(self.records(pipe=identity, **as_it_is))
        known = _rows(self.records(pipe=identity, batch_size=1, shuffle=False))
        missing, surplus = (known - found).total(), (found - known).total()
        if surplus or (missing and not self.loader.drop_remainder):
            what = f"{missing} of {known.total()} records are missing, and "
            raise Broken(f"{what}{surplus} occur too often")

    @law("reference", "its records agree with the reference, in order.")
    def reference_law(self) -> None:
        if self.reference is None:
            return
        records = self.records(pipe=identity, shuffle=False, batch_size=1)
        for i in range(len(jtu.tree_leaves(records)[0])):
            got = jtu.tree_map(lambda v, i=i: v[i], records)
            wanted, where = self.reference(i), f"in record {i}"
            agree_with_reference(got, wanted, where)
        if _goes_on(self.reference, len(self.loader.source)):
            what = f"the source has {len(self.loader.source)} records, the reference"
            raise Broken(f"{what} has one more")

    @law("resume", "a resumed epoch is the rest of the whole one.")
    def resume_law(self) -> None:
        epoch = self.loader.epoch(self.cursor)
        batches, places = [], []
        for batch in epoch:
            batches.append(as_arrays(batch))
            places.append(epoch.cursor)
        if len(batches) < 2:
            return
        middle = (len(batches) - 1) // 2
        rest = list(map(as_arrays, self.loader.epoch(places[middle])))
        labels = ("resumed", "uninterrupted")
        agree(rest, batches[middle + 1 :], labels, USUAL)

    @law("batches", "a record does not depend on the batch size.")
    def batches_law(self) -> None:
        single, several = self.records(batch_size=1), self.records()
        labels = (f"in batches of {self.loader.batch_size}", "in batches of 1")
        agree(several, single, labels, USUAL)

    @law("draws", "draws depend on the key, and differ between records.")
    def draws_law(self) -> None:
        record = jtu.tree_map(_row, self.records(pipe=identity, shuffle=False))
        with must_hold("`pipe`"):
            key_law.test(self._stage_trial(self.loader.pipe, record))
        size = min(self.loader.batch_size, len(self.loader.source))
        batch = self.records(shuffle=False)
        # The last record, since the first is often 0, which a factor does not change.
        alike = jtu.tree_map(lambda v: np.repeat(np.asarray(v)[-1:], size, 0), batch)
        trial = self._stage_trial(self.loader.batch_pipe, alike)
        with must_hold("`batch_pipe`"):
            key_law.test(trial)
        if trial.programs.primitives.isdisjoint(DRAWS) or size == 1:
            return
        other = self._stage_trial(
            self.loader.batch_pipe, alike, jr.fold_in(self.key, 1)
        )
        first, second = (_arrays(t.plain["output"]) for t in (trial, other))
        same = all(map(np.array_equal, first, second))
        if not same and all((v == v[:1]).all() for v in first):
            what = "`batch_pipe` makes the same draw for all records of a batch; split "
            raise Broken(f"{what}its key: `jax.random.split(key, num_records)`")

    def _stage_trial(
        self, stage: StageLike, x: PyTree, key: Key | None = None
    ) -> Trial:
        own_key = self.key if key is None else key
        return Trial(Call(as_module(stage), {"x": x}, None, own_key, ("x",)))


def _goes_on(reference: Callable[[int], PyTree], n: int) -> bool:
    """Return whether a reference has a record `n`, but does not go on forever.

    A function such as `lambda i: 2 * i` has no end. An array of JAX has, and repeats
    its last record after it.
    """
    try:
        after = _arrays(reference(n))
    except Exception:
        return False
    try:
        far = _arrays(reference(n + 10**6))
    except Exception:
        return True
    last = _arrays(reference(n - 1))
    same = [all(map(np.array_equal, after, v)) for v in (far, last)]
    return same == [True, False]


def _arrays(tree: PyTree) -> list[np.ndarray]:
    return [as_numpy(v) for v in jtu.tree_leaves(as_arrays(tree)) if eqx.is_array(v)]


def _row(leaf: Any) -> Any:
    return leaf[0] if eqx.is_array(leaf) else leaf


def _rows(tree: PyTree) -> collections.Counter[bytes]:
    """Count each record, by its bytes."""
    arrays = _arrays(tree)
    rows = [b"".join(v[i].tobytes() for v in arrays) for i in range(len(arrays[0]))]
    return collections.Counter(rows)


def check_loader(
    loader: Loader,
    *,
    key: Key | None = None,
    reference: Callable[[int], PyTree] | None = None,
    skip: Collection[str] = (),
) -> None:
    """Check a loader, including its source and the stages of its pipes.

    The laws: an epoch has every record of the source once (fewer with
    `drop_remainder`); the same cursor gives the same batch; an epoch resumed in the
    middle has the remaining batches of the whole epoch; the output of `pipe` for a
    record does not depend on the batch size; draws of `pipe` and `batch_pipe` depend on
    their key, use no key twice, and differ between the records of a batch.

    **Arguments:**

    - `loader`: a `Loader` with few records, since several epochs are read.
    - `key`: a PRNG key for the cursor; by default `jax.random.key(0)`. (Keyword only.)
    - `reference`: a function from an index, an `int`, to the record of the source
        there, before any pipe, which detects a source with an off-by-one error. If it
        raises after its last record, as a list does, the lengths are compared, too.
        (Keyword only.)
    - `skip`: the names of laws to leave out, such as `("draws",)` for a `batch_pipe`
        that crops all images of a batch alike. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken; `TypeError` if `loader` is not a
    `Loader`; `ValueError` for an unknown name in `skip`.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.arange(6.0)})
        >>> ept.check_loader(ep.data.Loader(source, ep.at("x", jnp.sqrt), batch_size=4))
    """
    __tracebackhide__ = True
    function = "testing.check_loader"
    check_reference(function, reference)
    check_key(function, key)
    cure = "Give a `Loader(source, pipe, batch_size=...)`."
    check_is(function, "loader", loader, Loader, cure)
    own_key = jr.key(0) if key is None else key
    laws = laws_of(LoaderTrial)
    skipped = check_names(function, "skip", skip, [law.name for law in laws])
    laws = [law for law in laws if law.name not in skipped]
    trial = LoaderTrial(loader, own_key, reference)
    check_laws("check_loader", "a loader", trial, laws=laws)
