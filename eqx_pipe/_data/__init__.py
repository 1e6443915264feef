"""Records in an order that is a function of the seed: sources, loader, cursor, scan.

`loader` makes batches, one by one or many in one program, and reads ahead: it selects
records at the position of a `cursor` by the permutation of `shuffle`, has the `source`
read them, transforms them, and places the batch by `placement`. `combine` makes sources
of other sources.
"""

from .loader import Cursor, Loader
from .source import ArraySource
