"""Engines that several models share, for models of equal tokenizers in one process.

A vocabulary of 30,522 tokens takes 6 MiB once it is loaded, and its word cache up to 16 MiB. Models of one folder, such
as one for each task or each limit of tokens, need them once (benchmarks.several_models).
"""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from hf_transformer.tokenizer.rust_engine import RustEngine


class SharedEngines:
    """The engines in use, by the content of their tokenizers. Thread-safe.

    An engine is kept as long as a model uses it. A folder whose files have changed has another content, so it has an
    engine of its own.
    """

    def __init__(self) -> None:
        self._engines: WeakValueDictionary[bytes, RustEngine] = WeakValueDictionary()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of different engines in use."""
        return len(self._engines)

    def share(self, engine: RustEngine) -> RustEngine:
        """Returns an engine with the limit of ``engine``, and with vocabulary and cache of an equal one in use.

        Returns ``engine`` itself if its content can't be compared. Call it when the special tokens around texts are
        final, and before users' special tokens are made letters.
        """
        key = engine.content()
        if key is None:
            return engine
        with self._lock:
            return self._engines.setdefault(key, engine).with_max_length(engine.max_length)
