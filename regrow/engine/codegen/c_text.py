"""Structures and numbers as C writes them."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from regrow.engine.codegen import structs as native


def initializer(value: Any) -> str:
    """A structure with the names of its fields, or a number."""
    if isinstance(value, native.Op):
        name = next(name for number, name in native.KINDS.values() if number == value.kind)
        return f"{{.kind = {name.upper()}, .as.{name} = {initializer(getattr(value.as_, name))}}}"
    if isinstance(value, ctypes.Structure):
        fields = ((field[0], getattr(value, field[0])) for field in value._fields_)
        return "{" + ", ".join(f".{name.rstrip('_')} = {initializer(item)}" for name, item in fields) + "}"
    return float_literal(value) if isinstance(value, float) else str(value)


def float_literal(value: float) -> str:
    """A number that is read back as the same float."""
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value:.9g}f" if "." in f"{value:.9g}" or "e" in f"{value:.9g}" else f"{value:.9g}.0f"
