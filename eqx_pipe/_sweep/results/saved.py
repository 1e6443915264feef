"""Results in files: saved as a finished store, and loaded from any store."""

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.tree_util as jtu
import numpy as np

from ..._errors import message, nearest, value_error
from ..._files import as_path
from ..store import (
    Folder,
    Store,
    StoredArray,
    StoreLayout,
    Taken,
    check_vacant,
    check_zarr,
    choose_chunks,
    disk_errors,
    exists,
    lay_out,
    open_store,
    settle,
    well_formed,
)
from .label import layout_of, storable
from .schema import CellPoints, outputs_from, space_from
from .views import ERRORS, provenance

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_SAVE, _LOAD = "SweepResult.save", "SweepResult.load"
_OWN = (ERRORS, "eqx_pipe_store", "coordinates", "batch_size", "devices")
_OWN += ("seconds", "started", "function")
"""The attributes of a store that are fields of a result, or irrelevant to it."""

_CHUNK_BYTES = 64 * 1024 * 1024
"""The maximum bytes of the values in a chunk, unless one point has more."""


def save(
    self: SweepResult, path: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Write the result to a folder, which `SweepResult.load` and xarray can open.

    The folder is the store of a finished sweep, in Zarr's format 3, with checksums and
    the names of `to_xarray()`. If saving fails, existing files are kept. For NetCDF use
    `result.to_xarray().to_netcdf(path)`.

    **Arguments:**

    - `path`: the folder; its name ends in `.zarr`.
    - `overwrite`: whether to replace an existing result. (Keyword only.)

    **Raises:** `FileExistsError` if `path` exists, and with `overwrite` if it is not a
    result of eqx_pipe or a sweep fills it; `ValueError` for another suffix. Needs
    `pip install 'eqx_pipe[sweep]'`.

    !!! example

        >>> import eqx_pipe as ep, tempfile
        >>> result = ep.sweep(lambda x: x**2, ep.Linspace(0, 3, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result.save(f"{folder}/squares.zarr")
        ...     ep.SweepResult.load(f"{folder}/squares.zarr").best(mode="max").index
        3
    """
    self._check_all_values("save")
    check_zarr(_SAVE)
    place = as_path(_SAVE, path)
    if place.suffix != ".zarr":
        raise value_error(
            _SAVE,
            f"`path` is {str(place)!r}, with the suffix {place.suffix!r}.",
            "Give a path that ends in `.zarr`. For NetCDF: "
            "`result.to_xarray().to_netcdf(path)`.",
        )
    leaves, status = jtu.tree_leaves(self._outputs), self.status
    row = [storable(leaf[:0])[:0] for leaf in leaves]
    structs = [np.empty(x.shape[1:], x.dtype) for x in row]
    row_bytes = sum(x.nbytes for x in structs)
    lengths = tuple(self.space.dims.values())
    most = max(1, _CHUNK_BYTES // max(1, row_bytes))
    chunks = choose_chunks(lengths, min(self.space.size, most), most)
    layout = layout_of(
        _SAVE,
        self._outputs,
        structs,
        self.space,
        self.output_coords,
        chunks,
        provenance(self),
        {"saved": True},
    )

    def fill(store: Store) -> None:
        for number in range(len(store.chunks)):
            first, last = store.chunks.span(number)
            values = [storable(leaf[first:last]) for leaf in leaves]
            here = {
                text: points[(points >= first) & (points < last)] - first
                for text, points in self._errors.items()
            }
            store.commit(number, values, status[first:last], here)

    with disk_errors(str(place), "be written", _SAVE):
        _put(Folder(place), layout, fill, overwrite)


def _put(files: Folder, layout: StoreLayout, fill: Any, overwrite: bool) -> None:
    """Write a new store, or replace an existing one."""
    old, begun = None, exists(files) or os.path.isfile(files.path)
    if begun and not overwrite:
        raise _taken(files, "", "already exists")
    try:
        if begun:
            old = open_store(_SAVE, files)
        else:
            check_vacant(_SAVE, files, ())
    except ValueError as error:
        wrong = "only a result of eqx_pipe can be overwritten, not"
        raise _taken(files, wrong, "") from error
    try:
        files.make()
        with files.lock("all"):
            lay_out(files, layout, fill, old)
            if old is not None:
                settle(files)
    except Taken as taken:
        raise _taken(files, "a sweep fills the store", f"({taken})") from None


def _taken(files: Folder, wrong: str, more: str) -> FileExistsError:
    return FileExistsError(
        message(
            _SAVE,
            f"{wrong} {files.place()!r} {more}".strip() + ".",
            "Choose another path, remove it yourself, or give `overwrite=True` for a "
            "result that was saved before.",
        )
    )


def load(cls: type[SweepResult], path: str | os.PathLike[str]) -> SweepResult:
    """Return a saved result, or the result in the store of a sweep.

    It reads a result that `SweepResult.save` wrote, or a store that `sweep(store=)`
    fills, also while it is being filled: missing points are not `.ok`, and values are
    read from the store when they are indexed. No code in the files is run.

    The result equals the one that was saved, with these differences. In `.values`,
    dicts, lists and tuples are kept; other containers (dataclasses, modules, named
    tuples) become dicts with the names of their fields. In `.space`, every axis becomes
    a `Values` axis of the same dim with bitwise identical values, which plots and keys
    treat like the saved axis. A `Static` axis has its numbers, or texts for strings,
    functions and other objects. Among constants of the space, numbers, texts and arrays
    of at most 1,024 bytes are kept; a larger array becomes a `jax.ShapeDtypeStruct`,
    and an object becomes a text.

    **Arguments:**

    - `path`: the folder that was passed to `SweepResult.save` or `sweep(store=)`.

    **Returns:** a `SweepResult`.

    **Raises:** `FileNotFoundError` if nothing exists at `path`; `ValueError` for files
    that eqx_pipe did not write, that have another version of its format, or that were
    changed; `OSError` for a damaged file.

    Needs `pip install 'eqx_pipe[sweep]'`.

    !!! example

        >>> import eqx_pipe as ep, tempfile
        >>> result = ep.sweep(lambda x: {"y": x**2}, ep.Linspace(0, 3, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result.save(f"{folder}/squares.zarr")
        ...     ep.SweepResult.load(f"{folder}/squares.zarr").values["y"].tolist()
        [0.0, 1.0, 4.0, 9.0]
    """
    check_zarr(_LOAD)
    place = as_path(_LOAD, path)
    with disk_errors(str(place), "be read", _LOAD):
        try:
            os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            wrong = f"{str(place)!r} does not exist."
            raise FileNotFoundError(message(_LOAD, wrong, _hint(place))) from None
        if (place / "round-0000.zarr").is_dir():
            raise value_error(
                _LOAD,
                f"{str(place)!r} is the folder of a search.",
                "Read it by `search.SearchResult.load`.",
            )
        store = open_store(_LOAD, Folder(place))
        if "reduce" in store.record:
            raise value_error(
                _LOAD,
                f"the store {str(place)!r} keeps the states of a reduction.",
                "Call the same sweep with the same `reduce` and `store`: what is there "
                "is not computed again. `xarray.open_zarr` shows the states.",
            )
        with well_formed(_LOAD, store.files):
            return cls(**_fields(store))


def _hint(path: Path) -> str:
    """Return a suggestion for a path that does not exist."""
    folder = path.parent
    if not folder.is_dir():
        return f"The folder {str(folder)!r} does not exist either: check the path."
    results = [p.name for p in folder.iterdir() if p.suffix == ".zarr"]
    if not results:
        return (
            "That folder contains no `.zarr`. Give the path that `SweepResult.save` or "
            "`sweep(..., store=)` was given; relative paths start from where Python "
            "runs."
        )
    # A folder may contain thousands of results.
    return nearest(path.name, sorted(results)[:20])


def _fields(store: Store) -> dict[str, Any]:
    """Return the fields of the result in a store."""
    gaps, errors, done = store.account()
    names, attributes = store.names(), store.root["attributes"]
    schema = store.record["schema"]

    def leaf(name: str, dtype: Any, kind: str | None) -> Any:
        found = StoredArray(store, names.index(name), dtype, kind, done)
        return found[...] if "saved" in store.record else found

    cells = [leaf(name, np.dtype(np.int64), None)[...] for name in schema["cells"]]
    seconds = attributes.get("seconds", "nan")  # unknown while a sweep runs
    return dict(
        values=outputs_from(schema, leaf),
        space=space_from(schema, store.coordinate),
        _gaps=gaps,
        batch_size=int(attributes["batch_size"]),
        num_devices=int(attributes["devices"]),
        started=datetime.datetime.fromisoformat(attributes["started"]).timestamp(),
        seconds=float(seconds),
        function=attributes.get("function", ""),
        cells=CellPoints(*cells) if cells else None,
        made=tuple((k, v) for k, v in attributes.items() if k not in _OWN),
        _errors=errors,
        output_coords={
            path: {dim: _coords(store, dim) for dim in dims}
            for path, dims in schema["output_dims"].items()
        },
    )


def _coords(store: Store, dim: str) -> np.ndarray | None:
    if dim not in store.record["coordinates"]:
        return None
    values = store.coordinate(dim)
    return values.astype(np.str_) if values.dtype.kind == "O" else values
