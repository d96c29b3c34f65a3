"""One thread that writes all streams of a model, in turns.

Threads of their own for each stream bring down the stub process of Triton 2.51's Python backend when many of them ask
at the same time whether their request is cancelled (measured: after some hundred cancelled streams).
"""

import queue
import threading
import time

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Worker:
    """``counts`` has how many streams were started, came to their end, and were cancelled."""

    def __init__(self):
        self.counts = {"started": 0, "finished": 0, "cancelled": 0}
        self._new = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, sender, responses, pause):
        """Sends the responses, ``pause`` seconds after each, until one is an error or the request is cancelled."""
        self._new.put((0.0, sender, responses, pause))

    def stop(self):
        self._new.put(None)
        self._thread.join()

    def _run(self):
        active = []
        while True:
            due = min((entry[0] for entry in active), default=None)
            try:
                wait = None if due is None else max(0.0, due - time.monotonic())
                entry = self._new.get(timeout=wait) if wait != 0.0 else self._new.get_nowait()
                if entry is None:
                    return
                self.counts["started"] += 1
                active.append(entry)
            except queue.Empty:
                now = time.monotonic()
                active = [next_ for entry in active if (next_ := self._step(entry, now)) is not None]

    def _step(self, entry, now):
        """One response of a stream that is due; gives the stream as it is then, None at its end."""
        due, sender, responses, pause = entry
        if due > now:
            return entry
        if sender.is_cancelled():
            self.counts["cancelled"] += 1
            error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
            return None
        response = next(responses, None)
        if response is None:
            self.counts["finished"] += 1
            sender.send(flags=FINAL)
            return None
        failed = response.has_error()
        sender.send(response, flags=FINAL if failed else 0)
        return None if failed else (now + pause, sender, responses, pause)
