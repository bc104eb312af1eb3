"""What a client sends: what cannot be understood gets an answer, or ends the server in one line."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

from cattrs import transform_error
from lsprotocol.types import INITIALIZE
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcMethodNotFound,
    JsonRpcParseError,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import LanguageServerProtocol

__all__ = ["Broken", "Input", "Protocol"]


class Broken(Exception):
    """Standard input does not follow the protocol: where the next message begins is not known."""


class Input:
    """Standard input as pygls reads it: the headers of a message, and its body.

    pygls skips headers that it does not understand, and would wait for others forever.
    """

    def __init__(self) -> None:
        self._stream: BinaryIO = sys.stdin.buffer
        self._length: int | None = None

    def readline(self) -> bytes:
        """The next header, as pygls wants it written.

        Raises:
            Broken: it is none, or no length stands above the empty line.
        """
        line = self._stream.readline()
        header = line.strip().decode("latin-1")
        if not line:
            return line
        if not header:
            if self._length is None:
                raise Broken("a message has no Content-Length")
            self._length = None
            return b"\r\n"
        name, colon, value = header.partition(":")
        if not colon:
            raise Broken(f"{header[:80]!r} is not a header")
        if name.strip().lower() != "content-length":
            return f"{header}\r\n".encode("latin-1")
        text = value.strip()
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= sys.maxsize):
            raise Broken(f"{header[:80]!r} is not a length")
        self._length = int(text)
        return b"Content-Length: %d\r\n" % self._length

    def read(self, size: int) -> bytes:
        """The body of a message.

        Raises:
            Broken: it would fill the memory.
        """
        try:
            return self._stream.read(size)
        except (MemoryError, OverflowError):
            raise Broken(f"a message of {size} bytes does not fit into memory") from None


class Protocol(LanguageServerProtocol):
    """The protocol of pygls, which answers requests that it cannot read, too."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        """What `data` stands for.

        Raises:
            JsonRpcException: it cannot be understood. A request has got its answer.
        """
        try:
            return super().structure_message(data)
        except JsonRpcException as error:
            if "id" in data and "method" in data:
                self._refuse(data["id"], self._reason(data["method"], error.__cause__ or error))
            raise

    def handle_message(self, message: Any) -> None:
        """Do what `message` asks for; what is no message of JSON-RPC is refused.

        So are requests before ``initialize`` and after ``shutdown``, as the protocol wants.
        """
        number = message.get("id") if isinstance(message, dict) else getattr(message, "id", None)
        method = getattr(message, "method", None)
        if getattr(message, "jsonrpc", None) != self.VERSION:
            refusal: JsonRpcException = JsonRpcInvalidRequest()
        elif method and number is not None and self._shutdown:
            refusal = JsonRpcInvalidRequest("the server is shutting down")
        elif method not in (None, INITIALIZE) and number is not None and self._workspace is None:
            refusal = JsonRpcServerNotInitialized("the server is not initialized")
        else:
            super().handle_message(message)
            return
        self._refuse(number, refusal)

    def refuse_text(self) -> None:
        """Answer a message that is not JSON."""
        self._refuse(None, JsonRpcParseError())

    def _reason(self, method: Any, error: BaseException) -> JsonRpcException:
        if not isinstance(method, str):
            return JsonRpcInvalidRequest()
        if self.get_message_type(method) is None:
            return JsonRpcMethodNotFound(f"Method Not Found: {method}")
        return JsonRpcInvalidParams("; ".join(transform_error(error, path="request")))

    def _refuse(self, number: Any, error: JsonRpcException) -> None:
        known = number if isinstance(number, (int, str)) else None
        # Written out, for an answer of lsprotocol's always has a number.
        self._send_data({"jsonrpc": "2.0", "id": known, "error": error.to_response_error()})
