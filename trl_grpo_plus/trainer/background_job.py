"""A job that runs beside the training, in a thread."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class BackgroundJob:
    """One job at a time in a thread of its own. A copy, and a forked process, have neither the thread nor the job."""

    def __init__(self) -> None:
        self._process: int | None = None  # the one that made the thread
        self._job: Future[dict[str, float]] | None = None

    def start(self, job: Callable[..., dict[str, float]], *args: Any) -> None:
        """Start a job. The one before must have been taken."""
        if self._process != os.getpid():
            # Python waits for this thread when it exits, so that pending records are written.
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="traces")
            self._process = os.getpid()
        self._job = self._thread.submit(job, *args)

    def wait(self) -> dict[str, float]:
        """Wait for the job, and return what it returned; {} if there is none."""
        return self._job.result() if self._job is not None and self._process == os.getpid() else {}

    def take(self) -> dict[str, float]:
        """Wait for the job, and return once what it returned."""
        try:
            return self.wait()
        finally:
            self._job = None

    def __reduce__(self) -> tuple[type["BackgroundJob"], tuple[()]]:
        return BackgroundJob, ()
