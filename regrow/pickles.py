"""Reads pickles of other programs without running code; time and memory are proportional to their size."""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

# Without those that call classes, build sets, or take memory or objects from outside.
_OPCODES = (
    "PROTO FRAME STOP MARK POP POP_MARK DUP PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET "
    "NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS "
    "GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID"
)
_CODES = frozenset(getattr(pickle, name)[0] for name in _OPCODES.split())
_KEYS = (str, bytes, int)


# The C unpickler allocates as much memory as a file requests; the Python one does not.
class CarefulUnpickler(pickle._Unpickler):
    """Base class of readers; `find_class` of a subclass returns our own function for each name in a pickle.

    Keys of dicts must be texts or numbers, because hashing nested tuples can take exponential time.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: read for code, read in pickle._Unpickler.dispatch.items() if code in _CODES
    }
    stack: list[Any]

    def __init__(self, content: bytes, *, encoding: str = "ASCII") -> None:
        super().__init__(io.BytesIO(content), encoding=encoding)

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every name."""
        raise pickle.UnpicklingError(f"it requests {module[:100]}.{name[:100]}")

    def give_state(self, instance: Any, state: Any) -> None:
        """Ignore the attributes that an object is given beside its content, such as the `_metadata` of state dicts."""

    def _build(self) -> None:
        state = self.stack.pop()
        self.give_state(self.stack[-1], state)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(key, value)

    def _set_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._set(key, value)

    def _set(self, key: Any, value: Any) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or not isinstance(key, _KEYS):
            raise pickle.UnpicklingError(f"a {type(key).__name__} is the key of a {type(target).__name__}")
        target[key] = value

    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items
