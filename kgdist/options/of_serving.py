"""The options of kgdist-serve besides its run: where it listens, who may ask, how answers are made, and how much one may ask."""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.option import option

_what = partial(option, group="input")
_how = partial(option, group="server")
_limit = partial(option, group="limits")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """See kgdist.serve."""

    data_path: str | None = _what(None, "where the run's data lies now, if it has moved", metavar="FOLDER")
    host: str = _how("127.0.0.1", "address to listen on; one that other machines reach needs --token_file")
    port: int = _how(8080, "port to listen on; 0: any that is free, which is printed", low=0, high=65535)
    token_file: str | None = _how(None, "file whose first line clients must send as `Authorization: Bearer`", metavar="FILE")
    num_thread: int | None = _how(None, "threads that compute answers; all cores when not given", low=1, high=4096)
    batch_wait: float = _how(
        2.0, "milliseconds that a question waits for others, to be answered together by one product", low=0, high=1000
    )
    reload: float = _how(2.0, "seconds between looks at whether the run's files have changed", low=0.01, high=86400)
    max_body: int = _limit(256, "KiB of a request's body", low=1, high=1 << 20)
    max_k: int = _limit(1000, "answers to one question", low=1, high=50_000)
    max_questions: int = _limit(256, "questions of one request", low=1, high=50_000)
    max_requests: int = _limit(1024, "requests in progress at a time; more are told to come again (503)", low=1, high=1 << 20)
    timeout: float = _limit(
        10.0, "seconds that a request may take to come, and then to be answered and read", low=0.1, high=86400
    )
