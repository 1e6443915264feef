"""Records in an order that is a function of the seed: sources, loader, cursor, scan.

Every batch goes through the same steps. `cursor` holds its position; `batch` selects
its records by the permutation of `shuffle`, has the source read them, transforms them,
and places the batch by `placement`. `loader` makes one batch, or runs many in one
program; `epoch` iterates and reads ahead. `combine` makes sources of other sources.
"""

from .combine import mixture as mixture
from .combine import windows as windows
from .cursor import Cursor as Cursor
from .device_source import ArraySource as ArraySource
from .loader import Loader as Loader
