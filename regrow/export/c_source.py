"""Export to one C file for devices: the engine's kernels, the plan and the weights."""

from __future__ import annotations

import ctypes
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from regrow.core.modules import check_same, distance, output_of, prepared
from regrow.core.pruner import warn_if_unfinished
from regrow.engine.codegen.build import Kernels, joined_source, operation_files
from regrow.engine.codegen.structs import float_literal, initializer
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.graph import Graph, WeightedNode
from regrow.engine.frontend.torch_export import capture
from regrow.engine.ops.conv import conv_steps
from regrow.engine.plan.lower import Plan, lower
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.split import in_bands
from regrow.engine.plan.steps import Schedule
from regrow.engine.plan.tiles import Shape, shapes_of
from regrow.engine.plan.weights import BITS, Format, rounded
from regrow.engine.runtime.model import TorchRunner
from regrow.system import write_atomically


@dataclass(frozen=True)
class CExport:
    """The files that `c` wrote, the memory they need on the device, and the error of rounded weights.

    `flash` is the size of constants and plan; the code of the kernels takes another 20 to 60 KB. `ram` is the size of
    the static arena. `error` is the difference from the model on the example, relative to the largest output.
    """

    source: Path
    header: Path
    main: Path
    flash: int
    ram: int
    error: float
    weights: Format

    def __str__(self) -> str:
        sources = shlex.join([str(self.source), str(self.main)])
        lines = [
            f"{self.source}, {self.header.name} and {self.main.name}, which checks the result:",
            f"    cc -O2 -ffp-contract=fast {sources} -lm -o check && ./check",
            f"flash   {self.flash:>11,} bytes of weights and plan, plus 20 to 60 KB of code",
            f"RAM     {self.ram:>11,} bytes, static, in addition to input and output",
        ]
        if self.weights != "fp32":
            lines.append(f"error   {self.error:>11.1e} of the largest output on the example, from rounding the weights")
        return "\n".join(lines)


def c(
    model: nn.Module, example_input: Tensor, path: str | Path, *, weights: Format = "fp32", lanes: int = 4
) -> CExport:
    """Write `model` as one C99 file without dependencies (`path`), a header, and a program that checks them.

    The file defines `void NAME_run(const float *x, float *y)` for one image; NAME is the name of the file. It needs a
    C99 compiler with vector extensions (gcc or clang, for any processor), and of the C library at most `memcpy`, so it
    also compiles with `-ffreestanding`. Compile it with `-O2 -ffp-contract=fast`. The program `NAME_main.c` runs the
    first image of `example_input` and compares the result with the output of torch.

    `weights` "fp16" and "int8" (one scale per output channel) take less flash. `lanes` is the number of floats in the
    device's vector registers: 4 for NEON and SSE, 8 for AVX2, 16 for AVX-512.
    """
    path = Path(path)
    if path.suffix != ".c":
        raise ValueError(f"path must end in .c, got {str(path)!r}")
    if lanes not in (4, 8, 16):
        raise ValueError(f"lanes must be 4, 8 or 16, got {lanes}")
    if re.search(r'["\\\x00-\x1f]', path.name):
        raise ValueError(f"a C file cannot include a file called {path.name!r}: use another name")
    example, expected, graph = checked_graph(model, example_input, weights)
    # Without joining shortcuts: int8 weights have one scale for each output channel.
    steps = in_bands(schedule(graph, lanes))
    plan = lower(steps, weights=weights)
    y = TorchRunner(graph)(example)
    name = _identifier(path.stem)
    header, main = path.with_suffix(".h"), path.with_name(f"{path.stem}_main.c")
    write_atomically(path, _source(name, header.name, plan, _shapes(steps, plan), BITS[weights]).encode())
    write_atomically(header, _header(name, graph).encode())
    write_atomically(main, _main(name, header.name, example, y).encode())
    return CExport(
        path,
        header,
        main,
        flash=plan.constants.nbytes + ctypes.sizeof(plan.ops),
        ram=plan.arena_bytes,
        error=distance(y, expected),
        weights=weights,
    )


def _identifier(stem: str) -> str:
    """Return the prefix of all names in the C files. No name is the prefix alone, so `int.c` and `exp.c` work."""
    plain = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return plain if plain[0].isalpha() else f"net_{plain}"


def checked_graph(model: nn.Module, example_input: Tensor, weights: Format) -> tuple[Tensor, Tensor, Graph]:
    """Return the first example, the model's output for it, and its graph with weights that the format can express.

    The graph that is compared with the model has weights that are not rounded.
    """
    if weights not in BITS:
        raise ValueError(f"weights must be one of {', '.join(BITS)}, got {weights!r}")
    warn_if_unfinished(model)
    model, examples = prepared(model, example_input)
    if len(examples) == 0:
        raise ValueError("example_input must hold at least one image")
    example = examples[:1].contiguous()
    exact = fuse(capture(model, example))
    nodes = [
        replace(node, weight=_rounded_weight(node, weights)) if isinstance(node, WeightedNode) else node
        for node in exact.nodes
    ]  # before the model runs: its error names the layer whose weights are not finite
    expected = output_of(model, example)
    check_same(TorchRunner(exact)(example), expected, model, example)
    return example, expected, Graph(tuple(nodes), exact.output)


def _rounded_weight(node: WeightedNode, weights: Format) -> Tensor:
    """Return a layer's weights, with batch norm, rounded to the format; raise ValueError on overflow."""
    if not bool(node.weight.isfinite().all()):
        raise ValueError(f"{node.name!r} has weights that are not finite.")
    weight = rounded(node.weight, weights)
    if bool(weight.isinf().any()):
        peak = node.weight.abs().max().item()
        raise ValueError(
            f"{node.name!r} has weights up to {peak:.3g}, beyond the range of {weights}; use weights='fp32'."
        )
    return weight


def _shapes(steps: Schedule, plan: Plan) -> list[Shape]:
    found: list[Shape] = []
    for step, tile in zip(conv_steps(steps), plan.tiles, strict=True):
        found += shapes_of(tile, step.stride[1])
    return found or [(1, 1, 1, 1)]


def _source(name: str, header: str, plan: Plan, shapes: list[Shape], bits: int) -> str:
    words = np.frombuffer(plan.constants.tobytes(), "<u4")
    return "\n".join(
        [
            f"/* {name}: a network with its weights, written by regrow. Build with -O2 -ffp-contract=fast. */",
            f"#define LANES {plan.lanes}",
            f"#define WEIGHT_BITS {bits}",
            Kernels(tuple(sorted(set(shapes)))).definitions(),
            "",
            joined_source(*operation_files()),
            f'#include "{header}"',
            "",
            "/* ---- the constants, as little-endian words */",
            "static const uint32_t constants[] __attribute__((aligned(64))) = {",
            *_lines(words, "0x{:x}u".format),
            "};",
            "",
            "/* ---- the plan */",
            "static const struct op plan[] = {",
            *(f"    {initializer(op)}," for op in plan.ops),
            "};",
            "",
            f"static char arena[{plan.arena_bytes}] __attribute__((aligned(64)));",
            "",
            f"void {name}_run(const float *x, float *y)",
            "{",
            "    const struct frame f = {.constants = (const char *)constants, .arena = arena, .x = x, .y = y,",
            "                            .parts = 1, .slices = 1};",
            "    for (size_t i = 0; i < sizeof plan / sizeof *plan; i += run_next(plan + i, &f)) continue;",
            "}",
            "",
        ]
    )


def _lines(values: NDArray[Any] | list[float], show: Any, per_line: int = 12) -> Iterator[str]:
    for first in range(0, len(values), per_line):
        yield "    " + " ".join(f"{show(value)}," for value in values[first : first + per_line])


def _header(name: str, graph: Graph) -> str:
    upper = name.upper()
    shapes = [" x ".join(map(str, value.shape)) for value in (graph.input, graph.output)]
    return f"""\
/* {name}: takes {shapes[0]} floats, returns {shapes[1]}. */
#ifndef {upper}_H
#define {upper}_H

enum {{ {upper}_INPUTS = {graph.input.numel}, {upper}_OUTPUTS = {graph.output.numel} }};

/* Runs the network on one image, channel by channel, row by row. Not reentrant: its memory is static. */
void {name}_run(const float *x, float *y);

#endif
"""


def _main(name: str, header: str, x: Tensor, y: Tensor) -> str:
    upper = name.upper()
    return "\n".join(
        [
            f"/* Checks {name} against the result of torch, stored when the file was written. */",
            "#include <math.h>",
            "#include <stdio.h>",
            f'#include "{header}"',
            "",
            f"static const float x[{upper}_INPUTS] = {{",
            *_lines(x.flatten().tolist(), float_literal, 8),
            "};",
            f"static const float expected[{upper}_OUTPUTS] = {{",
            *_lines(y.flatten().tolist(), float_literal, 8),
            "};",
            f"static float y[{upper}_OUTPUTS];",
            "",
            "int main(void)",
            "{",
            "    float error = 0, largest = 1e-6f;",
            f"    {name}_run(x, y);",
            f"    for (int i = 0; i < {upper}_OUTPUTS; i++) {{",
            "        const float difference = fabsf(y[i] - expected[i]);",
            "        if (!(difference <= error)) error = difference;",
            "        if (fabsf(expected[i]) > largest) largest = fabsf(expected[i]);",
            "    }",
            '    printf("largest difference %.2g, relative %.2g\\n", (double)error, (double)(error / largest));',
            "    return error <= 1e-4f * largest ? 0 : 1;",
            "}",
            "",
        ]
    )
