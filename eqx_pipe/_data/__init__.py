"""Records in an order that is a function of the seed: sources, loader, cursor, scan.

A batch takes the same steps everywhere. A `cursor` gives its place; `selection` its
records, by the permutation of `shuffle`; a source reads them; `batch` transforms and
`placement` places it. `loader` does so once, `epoch` again and again, reading ahead,
and `scan` in one program.
"""

from .cursor import Cursor as Cursor
from .device_source import ArraySource as ArraySource
from .loader import Loader as Loader
from .mixture import mixture as mixture
from .windows import windows as windows
