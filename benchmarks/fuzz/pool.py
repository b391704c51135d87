"""Cases in processes that are reused, so that compiled programs are; one that hangs is replaced."""

import json
import os
import queue
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.fuzz.judge import Case, Found, judge

MEMORY = 32 * 2**30
"""Address space of a process: what asks for more is a MemoryError, not the end of the machine."""


class Worker:
    """A process that answers a name with what the case of that name found."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.begin()

    def begin(self) -> None:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        self.answers.get()  # it has imported everything

    def _read(self, process: subprocess.Popen) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, case: Case, seconds: float) -> Found:
        assert self.process.stdin is not None
        self.process.stdin.write(case.name + "\n")
        self.process.stdin.flush()
        try:
            answer = self.answers.get(timeout=seconds)
        except queue.Empty:
            answer = None
        if answer:
            return Found(*json.loads(answer))
        self.end()
        self.begin()
        outcome, said = ("hang", f"no answer in {seconds:g} s")
        if answer is not None:
            outcome, said = "raw traceback", "the process ended"
        return Found(case.name, outcome, said, case.described)

    def end(self) -> None:
        self.process.kill()
        with self.process:  # closes its pipes and waits for it
            pass


def run(
    cases: Sequence[Case], command: Sequence[str], workers: int, seconds: float
) -> Iterator[Found]:
    """What every case found, in their order."""
    free: queue.Queue[Worker] = queue.Queue()
    there = [Worker(command) for _ in range(workers)]
    for worker in there:
        free.put(worker)

    def one(case: Case) -> Found:
        worker = free.get()
        try:
            return worker.ask(case, seconds)
        finally:
            free.put(worker)

    try:
        with ThreadPoolExecutor(workers) as threads:
            yield from threads.map(one, cases)
    finally:
        for worker in there:
            worker.end()


def answer(find: Callable[[str], Case]) -> None:
    """The other side: read names, write what was found; what cases print goes nowhere."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(judge(find(line.strip()))), file=out, flush=True)
