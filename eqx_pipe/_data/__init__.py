"""Records in an order that is a function of the seed: sources, loader, cursor, scan.

A batch goes down one road, each step once. `cursor` says from where; `order` which
records come, by the permutation of `shuffle`; the source reads them; `pipes` runs the
stages; `layout` says how it all lies on devices. `batch` is that road: `loader` takes
one batch down, `epoch` one after the other, reading ahead, and `scan` all of them in
one program. Compiled `programs` are found again.

Sources: `array_source` on the device, its numbers held as `bits`; `source` on the host,
with what `foreign` knows about other libraries and `records` about records; `composed`
are made of others.
"""

from .array_source import ArraySource as ArraySource
from .composed import mixture as mixture
from .composed import windows as windows
from .cursor import Cursor as Cursor
from .loader import Loader as Loader
