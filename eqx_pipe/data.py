"""Data loading: sources, a loader, and a cursor that holds its position."""

from ._data import ArraySource as ArraySource
from ._data import Cursor as Cursor
from ._data import Loader as Loader
