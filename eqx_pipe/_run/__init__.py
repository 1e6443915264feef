"""Interrupts, pace, failures and programs, which sweeps and trainings share."""

from .call import call, explain, fn_name, key_parameter, needs_key, needs_value
from .failures import (
    Stopped,
    TooLarge,
    as_nonfinite,
    check_finite,
    differs,
    does_not_fit,
    error_text,
    failed_point,
    is_stopped,
    nothing,
    noting,
    quiet,
    search,
    stoppable,
)
from .interrupt import CTRL_C, ENDING, Interrupt
from .pace import Pace, Watch, clock, save_pause
from .programs import (
    CONTROLS,
    REDUCERS,
    SMALL_BYTES,
    TRACES,
    compiled,
    copies_of,
    no_mesh,
    put,
)
