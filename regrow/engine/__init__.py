"""The sparse engine: runs pruned networks fast on CPUs. docs/engine.md explains how."""

from regrow.engine.codegen.build import NoCompilerError
from regrow.engine.compiler import compile
from regrow.engine.frontend.torch_export import UnsupportedOperationError
from regrow.engine.runtime.model import CompiledModel, LayerTime, ModelBytes, Profile

__all__ = [
    "CompiledModel",
    "LayerTime",
    "ModelBytes",
    "NoCompilerError",
    "Profile",
    "UnsupportedOperationError",
    "compile",
]
