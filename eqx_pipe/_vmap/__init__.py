"""Many lanes at once: batches, the loops over them, devices, and the batch size.

A *lane* is a function of one point. `batch_of` vectorises it, `filled` loops over the
batches of a sweep, and `over_devices` gives each device its own batches. `vmap` is all
of this for any function, with derivatives. `analyze` and `choose_batch_size` decide how
many lanes a batch has.
"""

from .batch_size import (
    Analysis,
    analyze,
    choose_batch_size,
    largest_that_fits,
    may_not_fit,
)
from .batches import batch_of, filled, flat_mesh, over_devices
from .devices import (
    all_busy,
    local_devices,
    use_cpu_devices,
    warn_if_cores_idle,
    warn_if_it_may_hang,
)
from .mapped import leaf_axes, vmap
