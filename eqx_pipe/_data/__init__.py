"""Records in an order that is a function of the seed: sources, loader, cursor, scan.

Every batch goes through the same steps. `cursor` holds its position; `selection` finds
its records, by the permutation of `shuffle`; a source reads them; `batch` transforms
them and `placement` places the batch. `loader` makes one batch, `epoch` iterates and
reads ahead, and `scan` runs many batches in one program.
"""

from .cursor import Cursor as Cursor
from .device_source import ArraySource as ArraySource
from .loader import Loader as Loader
from .mixture import mixture as mixture
from .windows import windows as windows
