"""The sparse engine: turns the zeros of a pruned network into speed on ordinary processors."""

from regrow.deploy.engine.capture import UnsupportedOperationError
from regrow.deploy.engine.compiler import compile
from regrow.deploy.engine.model import CompiledModel, LayerTime, Profile, Sizes
from regrow.deploy.engine.toolchain import NoCompilerError

__all__ = ["CompiledModel", "LayerTime", "NoCompilerError", "Profile", "Sizes", "UnsupportedOperationError", "compile"]
