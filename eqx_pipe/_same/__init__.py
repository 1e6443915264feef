from .reading import Unsure as Unsure
from .reading import differences as differences
from .reading import record_of as record_of
from .reading import seen_by as seen_by
from .reading import Record as Record
