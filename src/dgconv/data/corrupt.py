"""What becomes of an image that cannot be decoded: the data set stops, or by choice leaves it out and says so."""

import logging

from ..errors import UserError, visible

log = logging.getLogger(__name__)  # without a handler of the user's, warnings go to standard error


class CorruptImage(UserError):
    """An image whose bytes are there but are no image; `problem` names it and says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)  # alone, so that it comes out of a worker process as it went in
        self.problem = visible(problem)
        self.message = f"{self.problem}; restore or remove it, or leave such images out with `skip_corrupt_images`."


class CorruptImages:
    """The choice for one data set. With `skip` each corrupt image is named in a warning, once a process."""

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.named: set[str] = set()

    def meet(self, error: CorruptImage) -> None:
        """Name it, or stop because of it."""
        if not self.skip:
            raise error
        if error.problem not in self.named:
            self.named.add(error.problem)
            log.warning("image skipped: %s", error.problem)
