"""Questions of all requests that wait, answered together: one thread, one product for all that ask the same kind of thing.

A request's questions wait `wait` seconds for those of others, no longer; whoever comes while a product runs is in the next one.
Long requests take turns with short ones. What nobody waits for any more is not computed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from kgdist.base.log import log
from kgdist.serve.answering import Found, Question, compute
from kgdist.serve.live import Live

MOST = 1024  # questions of a round
SHARE = 128  # of one request, in a round
ROUND = 0.25  # seconds that a round shall take at most, by the speed of those before


class _Asked:
    """One request's questions, and the answers as they come."""

    def __init__(self, live: Live, questions: Sequence[Question], future: asyncio.Future[list[Found]]) -> None:
        self.live, self.questions, self.future = live, questions, future
        self.found: list[Found | None] = [None] * len(questions)
        self.since, self.taken, self.left = time.monotonic(), 0, len(questions)
        self.error: BaseException | None = None

    def tell(self) -> None:
        """In the event loop's thread: hand out the answers, if somebody still waits."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.found)  # type: ignore[arg-type]


class Gatherer:
    """The thread that answers. `rounds`, `answered`: how many products' rounds there were, and questions in them."""

    def __init__(self, wait: float, threads: int = 1) -> None:
        """A round waits `wait` seconds for questions; those of different kinds are answered on up to `threads` threads."""
        self.wait, self.rounds, self.answered = wait, 0, 0
        self._speed = 1000.0  # questions a second, of late
        self._queue: deque[_Asked] = deque()
        self._there = threading.Condition()
        self._ended = False
        self._pool = ThreadPoolExecutor(threads, "kgdist-serve-kinds")
        self._thread = threading.Thread(target=self._serve, name="kgdist-serve-answers", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self, patience: float = 60.0) -> None:
        """Answer what has come, and end."""
        with self._there:
            self._ended = True
            self._there.notify_all()
        self._thread.join(timeout=patience)
        self._pool.shutdown(wait=not self._thread.is_alive(), cancel_futures=True)

    def ask(self, live: Live, questions: Sequence[Question]) -> asyncio.Future[list[Found]]:
        """From a coroutine: the answers to come, in the order of `questions`. Cancel it when nobody waits for them."""
        future: asyncio.Future[list[Found]] = asyncio.get_running_loop().create_future()
        if not questions:
            future.set_result([])
            return future
        with self._there:
            self._queue.append(_Asked(live, questions, future))
            self._there.notify_all()
        return future

    def waiting(self) -> int:
        """Requests whose questions wait."""
        return len(self._queue)

    def _serve(self) -> None:
        while (taken := self._next()) is not None:
            if taken:
                began = time.monotonic()
                self._answer(taken)
                spent = max(time.monotonic() - began, 1e-6)
                self._speed += 0.3 * (len(taken) / spent - self._speed)

    def _next(self) -> list[tuple[_Asked, int]] | None:
        """The questions of the next round, once there are some and the first has waited; None at the end."""
        most = int(min(MOST, max(16, self._speed * ROUND)))
        with self._there:
            if not self._queue:
                if self._ended:
                    return None
                self._there.wait(timeout=1.0)
                if not self._queue:
                    return []
            until = self._queue[0].since + self.wait
            while (pause := until - time.monotonic()) > 0 and not self._ended:
                if sum(each.left for each in self._queue) >= most:
                    break
                self._there.wait(timeout=pause)
            return self._take(most)

    def _take(self, most: int) -> list[tuple[_Asked, int]]:
        taken: list[tuple[_Asked, int]] = []
        for _ in range(len(self._queue)):
            asked = self._queue.popleft()
            if asked.future.cancelled():
                continue
            stop = min(len(asked.questions), asked.taken + min(SHARE, most - len(taken)))
            taken += [(asked, place) for place in range(asked.taken, stop)]
            asked.taken = stop
            if stop < len(asked.questions):
                self._queue.append(asked)
            if len(taken) >= most:
                break
        return taken

    def _answer(self, taken: Sequence[tuple[_Asked, int]]) -> None:
        groups: dict[Any, list[tuple[_Asked, int]]] = {}
        for asked, place in taken:
            groups.setdefault((id(asked.live), *asked.questions[place].group), []).append((asked, place))
        if len(groups) == 1:
            self._together(*groups.values())
        else:  # a product of few questions is too short to be shared by threads, so each of several kinds has one
            wait([self._pool.submit(self._together, members) for members in groups.values()])
        self.rounds += 1
        self.answered += len(taken)

    def _together(self, members: Sequence[tuple[_Asked, int]]) -> None:
        """Answer the questions of one group."""
        questions = [asked.questions[place] for asked, place in members]
        done: list[_Asked] = []
        try:
            found: Sequence[Found | None] = compute(members[0][0].live, questions)
        except BaseException as error:  # told to those who asked, and to nobody else
            log.debug("a question was not answered", exc_info=error)
            for asked, _ in members:
                asked.error = error
            found = [None] * len(members)
        with self._there:  # a request may have questions in several groups
            for (asked, place), answer in zip(members, found, strict=True):
                asked.found[place] = answer
                asked.left -= 1
                if not asked.left:
                    done.append(asked)
        _hand_out(done)


def _hand_out(done: Sequence[_Asked]) -> None:
    """Answers to the event loops of those who wait, by one call for all of a loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Asked]] = {}
    for asked in done:
        loops.setdefault(asked.future.get_loop(), []).append(asked)

    def tell(several: list[_Asked]) -> None:
        for asked in several:
            asked.tell()

    for loop, several in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, several)
