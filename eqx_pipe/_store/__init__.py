"""Labelled chunks of values in a folder or bucket, in Zarr's format, without sweeps."""

from .commit import commit_chunk
from .create import check_vacant, create_store, exists, lay_out, locked, restore, settle
from .disk import (
    LONGEST,
    PARTS,
    Folder,
    Taken,
    Undecodable,
    check_zarr,
    disk_errors,
    is_name,
)
from .fill import Filling, check_current
from .follow import Follower
from .format import (
    FORMAT,
    MALFORMED,
    StoreLayout,
    Variable,
    checksum,
    coordinate_digest,
    raw_of,
    well_formed,
)
from .growth import Growth, Origin, grow_store, in_place, statuses_of
from .lazy import StoredArray
from .objects import Files, Objects, StoreLike, as_files
from .partition import (
    FAILED,
    MISSING,
    NO_GAPS,
    OK,
    Chunks,
    Gaps,
    choose_chunks,
    count_in,
    first_in,
    gaps_of,
    joined_gaps,
    merged,
    picked_gaps,
    points_in,
    ranges_of,
    statuses_in,
)
from .store import Account, Store, open_store
