"""kgdist-serve: a trained run that answers over HTTP."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.base.errors import OptionError, UsageError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import ServeOptions

LEAST = 16  # characters of a token


@command()
def main(argv: Sequence[str]) -> int:
    options: ServeOptions = parse.parse_tool("serve", argv)
    set_up_log(options)
    try:
        from kgdist.serve import listener
    except ImportError as error:
        raise UsageError(f"kgdist-serve needs more packages ({error}): pip install 'kgdist[serve]'") from error
    from kgdist.base import log
    from kgdist.base.machine import few_arenas, give_back_freed_memory, usable_cores

    few_arenas()
    token = None if options.token_file is None else _token(options.token_file)
    with listener.bind(options.host, options.port) as bound:
        from kgdist.serve.answering import ready
        from kgdist.serve.app import App
        from kgdist.serve.gatherer import Gatherer
        from kgdist.serve.live import Current, Live, open_live

        path, threads = Path(options.model_path), options.num_thread or usable_cores()

        def opened(before: Live | None = None) -> Live:
            return ready(open_live(path, options.data_path, threads, before))

        listener.more_connections()
        current = Current(path, opened(), opened, options.reload)
        gc.collect()
        gc.freeze()  # or each full collection would go through all that was imported, and hold all answers up for .1 to .3 s
        give_back_freed_memory()
        gatherer = Gatherer(options.batch_wait / 1000, threads)
        app = App(current, gatherer, options, token)
        server = listener.server_of(app, options)
        gatherer.start()
        current.start()
        try:
            host, port = bound.getsockname()[:2]
            log.tell(f"{options.model_path}: http://{f'[{host}]' if ':' in host else host}:{port} answers; Ctrl-C ends it")
            server.run(sockets=[bound])
        finally:
            current.close()
            gatherer.close()
            app.close()
    if signal.SIGINT in server.signals:
        raise KeyboardInterrupt
    return 0


def _token(file: str) -> bytes:
    """What the first line of the file says. Raises OptionError."""
    try:
        text = Path(file).read_bytes().split(b"\n", 1)[0].strip()
    except OSError as error:
        raise OptionError("--token_file", f"{file}: cannot be read ({error.strerror or error})") from error
    if len(text) < LEAST or not text.isascii() or b" " in text:
        what = f"must hold a line of {LEAST} characters of ASCII or more, without blanks"
        raise OptionError("--token_file", f"{file} {what}; python -c 'import secrets; print(secrets.token_hex(32))' makes one")
    return text


if __name__ == "__main__":
    sys.exit(main())
