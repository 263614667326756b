"""Files written beside the training, which need not wait for the disk."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Does one job at a time, in order, in a thread of its own. What goes wrong there is raised at the next call."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dgconv-writer")
        self.under_way: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job once the one before it is done: if the disk cannot keep up, the training waits for it."""
        self.wait()
        self.under_way = self.thread.submit(job)

    def wait(self) -> None:
        """Waits until everything is on the disk."""
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Let a job under way end, and take no more. What goes wrong is not raised; if that matters, wait before."""
        self.thread.shutdown()
