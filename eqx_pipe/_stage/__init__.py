"""Stages: what they are, what they hand down, and how they are called."""

from .accept import as_module as as_module
from .accept import as_stage as as_stage
from .accept import lift as lift
from .accept import misfit as misfit
from .base import Identity as Identity
from .base import Lift as Lift
from .base import Stage as Stage
from .base import identity as identity
from .base import is_stateful as is_stateful
from .call import call as call
from .call import copy_state as copy_state
from .call import enter as enter
from .composite import Composite as Composite
from .composite import check_state as check_state
from .diagnose import wants_key as wants_key
from .scope import Scope as Scope
from .scope import fold as fold
