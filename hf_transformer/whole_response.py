"""Ways past ASGI's messages: for a response that is all there, one write to the socket, where two messages make two;
for a part of one that comes as it is made, a call, where a message needs a task.

The server puts the functions into the ASGI scope under WHOLE_RESPONSE and SEND_PART. An application that does not know
of them answers as ever; a middleware that has to see responses puts its own around them, or takes them out.

Measured: the two writes, and what is looked at in between, are a seventh of the CPU of a short request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

WHOLE_RESPONSE: Final = "hf_transformer.whole_response"

SendWhole = Callable[[int, Sequence[tuple[bytes, bytes]], bytes], bool]
"""Takes the status, the headers, lower-case and without a length, and the body. False: nothing was sent, and the
response has to go the usual way."""

SEND_PART: Final = "hf_transformer.send_part"

SendPart = Callable[[bytes], bool]
"""Takes a part of a body, which is not empty and not the last one, of a response that has begun. False: nothing was
sent, for instance because the client does not read, and the part has to go the usual way."""
