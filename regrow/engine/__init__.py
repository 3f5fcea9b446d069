"""The sparse engine: turns the zeros of a pruned network into speed on ordinary processors."""

from regrow.engine.codegen.toolchain import NoCompilerError
from regrow.engine.compiler import compile
from regrow.engine.frontend.torch_export import UnsupportedOperationError
from regrow.engine.runtime.model import CompiledModel, LayerTime, Profile, Sizes

__all__ = ["CompiledModel", "LayerTime", "NoCompilerError", "Profile", "Sizes", "UnsupportedOperationError", "compile"]
