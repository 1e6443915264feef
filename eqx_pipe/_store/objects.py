"""The files of a store in a bucket of an object store, through obstore.

A bucket has no locks and no folders, but its listings are current, and a put may
require that an object is absent or unchanged. Credentials and endpoints belong to
obstore: they are neither written nor shown, so its error texts, which may quote them,
are reduced to the kind of error.
"""

import concurrent.futures
import contextlib
import errno
import functools as ft
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .._errors import describe_value, message, optional, type_error, value_error
from .disk import Entry, Folder, Keys, Undecodable, most_bytes

if TYPE_CHECKING:
    from obstore.store import ObjectStore
else:
    ObjectStore = Any

_SCHEMES = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}

AT_ONCE = 16
"""The number of requests at once."""

T = TypeVar("T")


class Objects(Keys):
    """The files of a store as objects of a bucket, whose names begin with `prefix`.

    `name` is shown in messages.
    """

    conditional = True

    def __init__(self, bucket: Any, name: str, prefix: str = ""):
        super().__init__(name)
        self._bucket, self._prefix = bucket, prefix
        self._obstore = optional("sweep", "obstore", "cloud")

    def __reduce__(self) -> Any:
        return Objects, (self._bucket, self._root, self._prefix)

    def make(self) -> None:
        """Do nothing: a bucket has no folders."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object."""
        with self._naming(key):
            self._obstore.put(self._bucket, self._prefix + key, data)

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object unless it exists; return whether it was created."""
        return self.swap(key, data, None) is not None

    def swap(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Put an object if its tag is still `tag`; return the new tag, or `None`."""
        mode: Any = "create" if tag is None else {"e_tag": tag}
        # Without a tag, an object that is not found is the bucket.
        removed = [] if tag is None else ["NotFoundError"]
        refused = ["AlreadyExistsError", "PreconditionError", *removed]
        try:
            with self._naming(key, refused):
                full = self._prefix + key
                return self._obstore.put(self._bucket, full, data, mode=mode)["e_tag"]
        except FileExistsError:
            return None

    def copy(self, key: str, to: str) -> None:
        """Let another key have the bytes of a key."""
        with self._naming(key):
            self._obstore.copy(self._bucket, self._prefix + key, self._prefix + to)

    def tag(self, key: str) -> str | None:
        """Return the e-tag of an object, or `None` if it is missing."""
        with contextlib.suppress(FileNotFoundError), self._naming(key):
            return self._obstore.head(self._bucket, self._prefix + key)["e_tag"]
        return None

    def entry(self, key: str) -> Entry | None:
        """Return the size and time of an object, or `None` if it does not exist."""
        with contextlib.suppress(FileNotFoundError), self._naming(key):
            head = self._obstore.head(self._bucket, self._prefix + key)
            return Entry(head["size"], int(head["last_modified"].timestamp() * 1e9))
        return None

    def get(self, key: str, most: int | float | None = None) -> bytes:
        """Return the bytes of an object; raise `FileNotFoundError` if it is missing.

        Raises `Undecodable` for more than `most` bytes, by default a quarter of the
        memory.
        """
        with self._naming(key):
            answer = self._obstore.get(self._bucket, self._prefix + key)
            if answer.meta["size"] > (most_bytes() if most is None else most):
                raise Undecodable(f"it has {answer.meta['size']:,} bytes")
            return bytes(answer.bytes())

    def remove(self, key: str) -> None:
        """Remove an object if it exists."""
        with contextlib.suppress(FileNotFoundError), self._naming(key):
            self._obstore.delete(self._bucket, self._prefix + key)

    def remove_all(self, name: str) -> None:
        """Remove an object, and all objects whose names begin with `name/`."""
        self.remove(name)
        with self._naming(name):
            for batch in self._obstore.list(self._bucket, self._prefix + name):
                paths = [each["path"] for each in batch]
                self._obstore.delete(self._bucket, paths)

    def below(self, name: str) -> "Objects":
        """Return the files of another store, whose names begin with `name/`."""
        name, prefix = self.path_of(name), f"{self._prefix}{name}/"
        return Objects(self._bucket, name, prefix)

    def names(self, below: str = "") -> set[str]:
        """Return the names of the objects below a prefix, and of deeper prefixes."""
        with self._naming(below):
            listing = self._obstore.list_with_delimiter(
                self._bucket, self._prefix + below or None
            )
        paths = [*listing["common_prefixes"], *(x["path"] for x in listing["objects"])]
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def entries(self, below: str) -> dict[str, Entry]:
        """Return the size and time of each object below a prefix."""
        files = {}
        with self._naming(below):
            path = self._prefix + below
            for batch in self._obstore.list(self._bucket, path, chunk_size=1000):
                for each in batch:
                    when = int(each["last_modified"].timestamp() * 1e9)
                    name = each["path"].removeprefix(f"{path}/")
                    files[name] = Entry(each["size"], when)
        return files

    @contextlib.contextmanager
    def lock(
        self, name: str, shared: bool = False, wait: bool = False
    ) -> Iterator[bool]:
        """Yield `False`: a bucket has no locks."""
        yield False

    def at_once(self, acts: list[Callable[[], T]]) -> list[T]:
        """Return the results of several requests, which run side by side."""
        if len(acts) < 2:
            return [act() for act in acts]
        return list(_threads(os.getpid()).map(lambda act: act(), acts))

    @contextlib.contextmanager
    def _naming(self, key: str, refused: Sequence[str] = ()) -> Iterator[None]:
        """Raise an error of the system for one of obstore, without its text."""
        errors = self._obstore.exceptions
        try:
            yield
        except FileNotFoundError:
            kind: type[OSError] = FileNotFoundError
            if "NotFoundError" in refused:
                kind = FileExistsError
            raise kind(errno.ENOENT, "no such object", self.path_of(key)) from None
        except errors.BaseError as error:
            kind_name, text = type(error).__name__, str(error)
            if kind_name in refused:
                raise FileExistsError(errno.EEXIST, "exists") from None
            code = re.search(r"<Code>(\w{1,40})</Code>|status: (\d{3})\b", text)
            what = f"{kind_name} {code[1] or code[2]}" if code else kind_name
            raise OSError(errno.EIO, f"obstore: {what}", self.path_of(key)) from None


Files: TypeAlias = Folder | Objects
"""The files of a store."""

StoreLike: TypeAlias = str | os.PathLike[str] | ObjectStore | Files
"""A path, the URL of a bucket, or a store of obstore."""


@ft.lru_cache(1)
def _threads(process: int) -> concurrent.futures.ThreadPoolExecutor:
    """Return the threads of this process, which wait for requests."""
    return concurrent.futures.ThreadPoolExecutor(AT_ONCE, "eqx_pipe-store")


def as_path(function: str, path: object, argument: str = "path") -> Path:
    """Return the absolute path; raise unless it is a path on this machine."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        wrong = f"`{argument}` is {describe_value(path)}."
        cure = "Give a path as a text or a `pathlib.Path`."
        raise type_error(function, wrong, cure)
    # A URL would become a folder named `s3:` in the current folder.
    if "://" in text or "\0" in text or not text:
        wrong = f"`{argument}` is {describe_value(text)}."
        cure = "Give a path on a disk, also a shared one; finished files can be copied "
        cure += "to other places."
        raise value_error(function, wrong, cure)
    try:
        path = Path(os.path.expanduser(text)).absolute()
        if ".." in path.parts:
            # The system follows `..` only out of a folder that exists.
            up = len(path.parts) - path.parts[::-1].index("..")
            path = Path(os.path.realpath(Path(*path.parts[:up])), *path.parts[up:])
        return path
    except OSError as error:
        wrong = f"`{argument}` is {text!r}, relative to a current folder that does not "
        wrong += f"exist ({error})."
        cure = "Give an absolute path, or change to a folder that exists."
        raise FileNotFoundError(message(function, wrong, cure)) from error


def as_files(function: str, store: StoreLike, argument: str = "store") -> Files:
    """Return the files at a path, at a URL of a bucket, or in a store of obstore.

    Nothing is read. Raises a `TypeError` or a `ValueError` that shows no credentials.
    """
    if isinstance(store, Folder | Objects):
        return store
    kind = type(store)
    if kind.__module__.startswith("obstore"):
        return _from_obstore(function, store, argument)
    text = os.fspath(store) if isinstance(store, os.PathLike) else store
    if not isinstance(text, str) or not re.match("(s3|gs|az)://", text):
        return Folder(as_path(function, store, argument))
    parts = urllib.parse.urlsplit(text)
    path = parts.path.strip("/")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise value_error(
            function,
            f"`{argument}` is a URL with credentials or options.",
            f"Give `{parts.scheme}://bucket/name.zarr`; obstore takes credentials from "
            "the environment, or pass a store of obstore.",
        )
    segments = path.split("/")
    if not parts.netloc or not path or {"", ".", ".."} & {*segments}:
        raise value_error(
            function,
            f"`{argument}` is {text!r}.",
            f"Give a bucket and a name in it: `{parts.scheme}://bucket/name.zarr`.",
        )
    obstore = optional(function, "obstore.store", "cloud")
    name = f"{parts.scheme}://{parts.netloc}/{path}"
    try:
        return Objects(obstore.from_url(name), name)
    except Exception as error:  # its text may quote the environment
        raise value_error(
            function,
            f"obstore could not open `{name}` ({type(error).__name__}).",
            "Check the environment variables with its region, account and "
            "credentials, or pass a store of obstore.",
        ) from None


def _from_obstore(function: str, store: Any, argument: str) -> Files:
    kind = type(store).__name__
    if kind == "MemoryStore":
        return Objects(store, f"memory://{id(store):x}")
    if kind not in _SCHEMES:
        raise type_error(
            function,
            f"`{argument}` is a `{kind}`, which does not support conditional puts.",
            "Give the path of a folder, or an `S3Store`, a `GCSStore` or an "
            "`AzureStore`.",
        )
    bucket = store.config.get("bucket") or store.config.get("container_name")
    prefix = "" if store.prefix is None else f"/{Path(str(store.prefix)).as_posix()}"
    return Objects(store, f"{_SCHEMES[kind]}://{bucket}{prefix}")
