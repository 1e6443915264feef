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
from .composite import Composite as Composite
from .composite import call as call
from .composite import check_state as check_state
from .composite import copy_state as copy_state
from .composite import enter as enter
from .edit import Editable as Editable
from .hints import wants_key as wants_key
from .listed import Item as Item
from .listed import Items as Items
from .listed import Listed as Listed
from .listed import Own as Own
from .parent import named_leaves as named_leaves
from .passes import Passes as Passes
from .pattern import check_matched as check_matched
from .pattern import matches as matches
from .scope import Record as Record
from .scope import Scope as Scope
