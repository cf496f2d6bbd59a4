"""The worker's loop: one JSON request a line in, one JSON reply a line out, until the parent goes away.

The protocol has private descriptors: the library prints, so descriptor 1 is pointed at stderr before it loads.
A thread reads the requests; when the parent's end of the pipe closes it ends the process at once, so that no
orphan stays on the card.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any, BinaryIO

from offloadtune.engine import osdoor
from offloadtune.engine.protocol import REQUEST_MARK

Request = dict[str, Any]


def main(endpoints: list[str]) -> None:
    """Serve requests on stdin until it closes."""
    requests_in = os.fdopen(os.dup(0), "rb")
    replies_out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    osdoor.forbid_core_dumps()
    os.environ["GGML_NO_BACKTRACE"] = "1"  # an abort would start a debugger
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests_in, requests), daemon=True).start()
    serve(requests, replies_out, endpoints)


def serve(requests: queue.SimpleQueue[Request], replies_out: BinaryIO, endpoints: list[str]) -> None:
    """Import the engine, announce it, then answer requests for ever."""

    def send(message: Request) -> None:
        replies_out.write(json.dumps(message).encode() + b"\n")

    from offloadtune.engine.worker import native  # noqa: PLC0415 - loads the library; descriptors must be set first
    from offloadtune.engine.worker.session import Session  # noqa: PLC0415

    log, _callback = native.start(lambda text: send({"event": "abort", "text": text}))
    for endpoint in endpoints:
        native.add_endpoint(endpoint)
    session = Session(log)
    while True:
        request = requests.get()
        sys.stderr.write(f"{REQUEST_MARK}{request['id']}\n")
        sys.stderr.flush()
        send(_answer(session, request))


def _answer(session: Any, request: Request) -> Request:
    from offloadtune.engine.worker.refused import RefusedError  # noqa: PLC0415

    try:
        return {"id": request["id"], "value": getattr(session, request["call"])(**request["args"])}
    except RefusedError as error:
        lines = session.last_lines  # those on stderr may reach the parent later than this reply
        refusal = {"refused": error.kind, "reason": str(error), "is_telling": error.is_telling, "lines": lines}
        return {"id": request["id"], **refusal}


def _read(requests_in: BinaryIO, requests: queue.SimpleQueue[Request]) -> None:
    for line in requests_in:
        requests.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
