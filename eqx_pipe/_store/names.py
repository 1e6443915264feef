"""Which names an array in a file may have."""

LOCKS = ".locks"
"""The folder in a store for the locks of processes that fill it."""

LONGEST = 200
"""Bytes of a name: file systems allow 255, some of which others need."""


def is_name(name: str) -> bool:
    """Whether a name is that of a file everywhere, and that of an array for Zarr.

    Those in front of which there is a dot are hidden, or ours. A backslash is a slash
    to Zarr, and what cannot be printed (a NUL, a new line, half of a surrogate pair)
    is cut, split or refused by one library or another.
    """
    return (
        bool(name)
        and name.isprintable()
        and not name.startswith(".")
        and not {"/", "\\"} & set(name)
        and name != "zarr.json"
        and len(name.encode()) <= LONGEST
    )


def is_netcdf_name(name: str) -> bool:
    """Whether NetCDF can hold a name too: it begins like a word and ends in no space.

    https://docs.unidata.ucar.edu/netcdf-c/current/programming_notes.html
    """
    first = name[:1]
    word = first.isalnum() or first == "_" or not first.isascii()
    return is_name(name) and word and not name.endswith(" ")
