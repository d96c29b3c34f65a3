"""The service's own diagnosis, when it has bound its model: each warning goes to the log once."""

from __future__ import annotations

import asyncio
import logging

from hf_transformer.commands.doctor.declared import declared
from hf_transformer.pair import Pair

logger = logging.getLogger(__name__)


class StartDiagnosis:
    """Remembers what it has said: a model is bound again whenever it changes at the predictor."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def look_soon(self, pair: Pair) -> None:
        """Looks at a pair that was just bound, when the event loop has done what is waiting: that it is ready first."""
        asyncio.get_running_loop().call_soon(self._look, pair)

    def _look(self, pair: Pair) -> None:
        for name, finding in declared(pair):
            line = f"{name}: {finding.found} ({finding.change})"
            if finding.status == "warning" and line not in self._said:
                self._said.add(line)
                logger.warning("model %r: %s", pair.spec.name, line)
