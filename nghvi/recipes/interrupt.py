"""Ctrl-C without loss: the first asks the run to end after its chunk, the second raises."""

import signal
import threading
from types import FrameType, TracebackType

from nghvi._core.hosts import any_process


class Interrupt:
    """Inside ``with``, ``requested`` tells whether Ctrl-C was pressed.

    Only the main thread receives signals; in any other this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._held = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupt":
        if self._held:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._held:
            signal.signal(signal.SIGINT, self._before)

    def agreed(self) -> bool:
        """Whether Ctrl-C was pressed in any process; all must ask."""
        self.requested = any_process(self.requested)
        return self.requested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
