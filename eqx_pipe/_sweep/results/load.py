"""Results from files: what was saved, or a store as it stands."""

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._errors import message, nearest, optional, value_error
from ..._files import as_path
from ..._store.folder import as_zarr, quiet_zarr
from ..._store.layout import RECORD, read_record
from ..._store.lazy import Stored
from ..._store.ledger import MISSING, OK
from ..._store.store import Recut, Store, open_store
from ..._tree import leaves_with_names
from ..._types import PyTree
from .cells import CellPoints
from .gaps import gaps_of, stored_gaps
from .label import inner_dims, storable_dtype
from .output_coords import KnownCoords
from .raised import Raised, points_in, stored_errors
from .result import ERRORS, SweepResult
from .save import COMPLEX
from .schema import SCHEMA, as_kind, outputs_from, parse, space_from

if TYPE_CHECKING:
    from xarray import Dataset
else:  # imported where it is used
    Dataset = Any

_OWN = (
    SCHEMA,
    RECORD,
    ERRORS,
    "batch_size",
    "devices",
    "seconds",
    "started",
    "function",
)


def _where_else(path: Path) -> str:
    """What may have been meant by a path at which there is nothing."""
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder {str(folder)!r} either: check the path."
    results = [p.name for p in folder.iterdir() if p.suffix in (".zarr", ".nc")]
    if not results:
        return (
            "That folder holds no `.zarr` or `.nc`. Give the path that "
            "`SweepResult.save` or `sweep(..., store=)` was given; relative paths "
            "start from where Python runs."
        )
    # A folder may hold thousands.
    return nearest(path.name, sorted(results)[:20])


def load(path: str | os.PathLike[str]) -> SweepResult:
    """Read a saved result or a store; see `SweepResult.load`."""
    path = as_path("SweepResult.load", path)
    if not os.path.lexists(path):
        raise FileNotFoundError(
            message(
                "SweepResult.load",
                f"there is nothing at {str(path)!r}.",
                _where_else(path),
            )
        )
    with _open_dataset(path) as data:
        store = _store_in(path, data.attrs)
        schema = parse("SweepResult.load", str(path), data.attrs.get(SCHEMA))
        try:
            return _result(data, schema, store)
        except OSError:  # which names the chunk
            raise
        except Exception as error:  # whatever a damaged schema leads to
            raise value_error(
                "SweepResult.load",
                f"{str(path)!r} is damaged: what its attributes say does not fit "
                f"what is in it ({type(error).__name__}: {error}).",
                "Take a copy, if there is one; `xarray.open_dataset` may still "
                "show the values.",
            ) from error


def _store_in(path: Path, attributes: Mapping[Any, Any]) -> Store | None:
    """The store that a folder is; nothing if it is another file, or a copy of one."""
    if RECORD not in attributes:
        return None
    record = read_record("SweepResult.load", path, attributes[RECORD])
    if "reduce" in record:
        raise value_error(
            "SweepResult.load",
            f"the store {str(path)!r} keeps the states of a reduction.",
            "Call the same sweep with the same `reduce` and `store`: what is there "
            "is not computed again. `xarray.open_zarr` shows the states.",
        )
    if path.is_dir():
        with contextlib.suppress(Recut):
            return open_store("SweepResult.load", path)
    return None


def _result(data: Dataset, schema: dict[str, Any], store: Store | None) -> SweepResult:
    """The result in a dataset that has a schema; values of a `store` stay there."""
    attrs = {name: _plain(value) for name, value in data.attrs.items()}
    dims = data[schema["status"]].dims
    size = data[schema["status"]].size

    def column(name: str) -> np.ndarray:
        return data[name].values

    def points(name: str) -> np.ndarray:
        # A file may have stored the dims in another order.
        inner = [dim for dim in data[name].dims if dim not in dims]
        value = data[name].transpose(*dims, *inner).values
        return value.reshape((size, *value.shape[len(dims) :]))

    def leaf(name: str, dtype: Any, kind: str | None) -> Any:
        if store is not None:
            number = store.record["variables"].index(name)
            wanted, kept = storable_dtype(dtype), store.arrays[number].dtype
            if wanted != kept:
                raise ValueError(f"`{name}` is {kept}, and not {wanted}")
            return Stored(store, number, dtype, kind)
        return as_kind(
            points(name), {"dtype": dtype, **({"key": kind} if kind else {})}
        )

    space = space_from(schema, column)
    if space.size != size:
        raise ValueError(f"{space.size} points of axes, {size} of outputs")
    if store is not None and store.record["status"] != schema["status"]:
        raise ValueError(f"`{schema['status']}` is not the status of the store")
    variables = outputs_from(schema, lambda name, *_: name)
    cells = schema.get("cells")
    spans = json.loads(attrs.get(ERRORS, "{}"))
    errors = {text: points_in(found) for text, found in spans.items()}
    if store is not None:
        errors, gaps = stored_errors(store), stored_gaps(store)
    else:
        status = points(schema["status"])
        gaps = gaps_of(status == OK, status == MISSING)
    return SweepResult(
        values=outputs_from(schema, leaf),
        space=space,
        gaps=gaps,
        batch_size=int(attrs["batch_size"]),
        num_devices=int(attrs["devices"]),
        started=datetime.datetime.fromisoformat(attrs["started"]).timestamp(),
        # A store does not know how long it will take.
        seconds=float(attrs.get("seconds", "nan")),
        function=attrs.get("function", ""),
        cells=None if cells is None else CellPoints(*map(points, cells)),
        made=tuple((k, v) for k, v in attrs.items() if k not in _OWN),
        raised=Raised.of(errors),
        output_coords=_output_coords(data, dims, variables),
    )


def _output_coords(
    data: Dataset, dims: Sequence[object], variables: PyTree
) -> KnownCoords:
    """The dims of outputs that are not named as usual; `variables` are the outputs'."""
    found: KnownCoords = {}
    for path, name in leaves_with_names(variables):
        inner = tuple(str(dim) for dim in data[name].dims if dim not in dims)
        if inner != inner_dims(name, len(inner)):
            known = {dim: data[dim].values for dim in inner if dim in data.coords}
            found[path or "value"] = {
                dim: _read_coords(known.get(dim)) for dim in inner
            }
    return found


def _read_coords(values: np.ndarray | None) -> np.ndarray | None:
    """Coordinates as they were given; files have texts in several ways."""
    if values is None or values.dtype.kind in "biufcU":
        return values
    return np.array(values.tolist(), np.str_)


def _plain(value: object) -> Any:
    """An attribute as a number or text of Python's."""
    return value.item() if isinstance(value, np.generic) else value


@contextlib.contextmanager
def _open_dataset(path: Path) -> Iterator[Dataset]:
    xarray = optional("SweepResult.load", "xarray")
    # A unit such as "days" is no request for times.
    options: dict[str, Any] = {"decode_times": False, "decode_timedelta": False}
    file: Any = path
    if path.is_dir():
        file, options = as_zarr(path), options | {"engine": "zarr", "chunks": None}
    try:
        with quiet_zarr():
            data = xarray.open_dataset(file, **options)
            # Asked for always, it would take a dim `c` of two values for the parts of
            # a complex number.
            if path.is_file() and any(x.dtype.names for x in data.variables.values()):
                data.close()
                data = xarray.open_dataset(file, **options, **COMPLEX)
    except Exception as error:
        raise value_error(
            "SweepResult.load",
            f"{str(path)!r} cannot be opened ({error}).",
            "It is the folder of a search: read it by `search.SearchResult.load`."
            if (path / "round-0000.zarr").is_dir()
            else "Give a folder that Zarr wrote, or a NetCDF file.",
        ) from error
    with data:
        yield data
