"""Many lanes at once: batches, the loops over them, devices, and the batch size.

A *lane* is a function of one point. `batch_of` vectorises it, `filled` loops over the
batches of a sweep, and `over_devices` gives each device its own batches. `vmap` is all
of this for any function, with derivatives. `analyze` and `choose_batch_size` decide how
many lanes a batch has.
"""

from .batch_size import Analysis as Analysis
from .batch_size import analyze as analyze
from .batch_size import choose_batch_size as choose_batch_size
from .batch_size import largest_that_fits as largest_that_fits
from .batch_size import may_not_fit as may_not_fit
from .batches import batch_of as batch_of
from .batches import filled as filled
from .batches import flat_mesh as flat_mesh
from .batches import over_devices as over_devices
from .devices import all_busy as all_busy
from .devices import local_devices as local_devices
from .devices import use_cpu_devices as use_cpu_devices
from .devices import warn_if_cores_idle as warn_if_cores_idle
from .devices import warn_if_it_may_hang as warn_if_it_may_hang
from .mapped import leaf_axes as leaf_axes
from .mapped import vmap as vmap
