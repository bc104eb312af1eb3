"""What is sought behind the names that a module imports from others of its project."""

from __future__ import annotations

from collections.abc import Callable

from gradguard_lint.project import marks
from pytest_gradguard.records import Record, record

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.project.definitions import Tells


@record
class Sought(Record):
    """What a module may do.

    Attributes:
        tells: whether bytes do it.
        has: whether what another package has does it, by the package's name and its own.
        through: how many modules that do not do it themselves are followed on one way to it.
        over: over how many further modules what a name gives is followed at all.
    """

    tells: Tells
    has: Callable[[str, str], bool]
    through: int = 1
    over: int = 3


STARTING = Sought(marks.starts_workers, lambda module, name: name in marks.STARTING, 2)
STARTING_PROCESSES = Sought(
    marks.starts_processes, lambda module, name: name in marks.STARTING_PROCESSES, 2
)
LOADING = Sought(marks.makes_loaders_that_matter, lambda module, name: False)
REMEMBERING = Sought(marks.remembers, lambda module, name: False)
FITTING = Sought(marks.fits_models, lambda module, name: False)
TRAINING = Sought(marks.trains, lambda module, name: False)
TOGETHER = Sought(marks.trains_together, marks.is_of_a_group)
MATTERING = Sought(
    marks.matters, lambda module, name: marks.matters(f"{module}.{name}".encode()), 5, 6
)
CHANGING = Sought(
    marks.changes_what_threads_share,
    lambda module, name: marks.changes_what_threads_share(f"{name}()".encode()),
    2,
)
