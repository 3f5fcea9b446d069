"""Models on disk: safetensors files and the smaller packed files."""

from regrow.files.model_file import FormatError, load_model, save_model
from regrow.files.packed import Description, TensorSize, describe, load, save

__all__ = ["Description", "FormatError", "TensorSize", "describe", "load", "load_model", "save", "save_model"]
