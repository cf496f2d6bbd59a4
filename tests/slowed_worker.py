"""A worker that is slow by a known factor: the real one, allowed to work only a share of the time.

    python slowed_worker.py DUTY_FRAC ENDPOINT...

It is stopped and let go on every few milliseconds, so everything it does takes 1 / DUTY_FRAC as long.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

BEAT_S = 0.02


def main(duty_frac: float, endpoints: list[str]) -> int:
    """Run the worker on our own stdin and stdout, and end as it ends."""
    worker = subprocess.Popen([sys.executable, "-m", "offloadtune.engine.worker", *endpoints])
    while worker.poll() is None:
        time.sleep(BEAT_S * duty_frac)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(BEAT_S * (1 - duty_frac))
        worker.send_signal(signal.SIGCONT)
    return worker.returncode


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
