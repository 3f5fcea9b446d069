"""Export models for other runtimes and devices."""

from regrow.export.wasm_module import wasm as wasm
