"""Feeds mutated packed files to `regrow.load` and records what it did with each: `python -m benchmarks.fuzz_pack`.

Damage (flipped bits, cuts, splices, overwritten, inserted and removed bytes) must be refused by `FormatError` or leave
every tensor as it was. Forgeries have a valid checksum over a wrong index, codes or header. They must be refused, or
give tensors with the shapes in the index or of the named network. Anything else, a load of more than ten seconds or one
that needs more than a gibibyte, fails the run.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import struct
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.runner import report
from regrow import FormatError, files, models
from regrow.files.packed import seal

START = 12
SLOW = 10.0
MEMORY = 1 << 30
NUMBERS = (-1, 0, 1, 2, 3, 4, 7, 8, 9, 16, 127, 128, 255, 256, 2**16, 2**31 - 1, 2**32, 2**48, 2**63, 10**12, 10**40)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, 1.5, float("nan"), "", "float32", "int64", "bool", "float16",
                           "bfloat16", [], [[]], {}, [2, 3], [10**6, 10**6], [0, 0, 0, 0])  # fmt: skip


@dataclass(frozen=True)
class Original:
    """A valid file: its bytes, its header and index, and its tensors."""

    data: bytes
    words: list[Any]
    index: list[Any]
    codes: bytes
    state: dict[str, Tensor]


def originals(folder: Path) -> list[Original]:
    torch.manual_seed(0)
    state = {
        "conv.weight": torch.where(torch.rand(6, 4, 3, 3) < 0.1, torch.randn(6, 4, 3, 3), 0.0),
        "fc.weight": torch.where(torch.rand(7, 9) < 0.7, torch.randn(7, 9), 0.0),
        "half": torch.randn(5, 5, dtype=torch.float16),
        "conv.bias": torch.randn(6),
        "fc.bias": torch.randn(7),
        "mask": torch.rand(9) < 0.5,
        "steps": torch.tensor(1234),
    }
    networks = [models.build("small", classes=classes) for classes in (2, 3, 2)]
    networks[2].half()  # its tensors are listed, because the network says other types
    sources: list[nn.Module | dict[str, Tensor]] = [*[state] * 6, *networks]
    dtypes = ("fp32", "fp16", "bf16", "int8", "fp32", "int8", "fp16", "int8", "fp32")
    found = []
    for source, dtype in zip(sources, dtypes, strict=True):
        path = folder / "original.regrow"
        files.save(source, path, dtype=dtype)  # type: ignore[arg-type]
        found.append(original(path.read_bytes(), tensors(files.load(path))))
    return found


def original(data: bytes, state: dict[str, Tensor]) -> Original:
    length = struct.unpack("<Q", data[:8])[0]
    outer = json.loads(data[8 : 8 + length])
    words = json.loads(outer["__metadata__"]["regrow"])[1:]
    coder = zlib.decompressobj(-15)
    index = json.loads(coder.decompress(data[8 + length + START :]))
    return Original(data, words, index, coder.unused_data, state)


def tensors(loaded: nn.Module | dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(loaded.state_dict()) if isinstance(loaded, nn.Module) else loaded


def deflated(text: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return coder.compress(text) + coder.flush()


def forge(words: list[Any], index: Any, codes: bytes) -> bytes:
    """Return a file with the given content and a valid checksum."""
    return seal(words, deflated(json.dumps(index).encode()) + codes)


def damaged(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """Damage a file in one to four places, in one way."""
    changed = bytearray(data)
    kind = chance.randrange(6)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) or 1)
        size = chance.choice((1, 2, 4, 8, 64))
        if kind == 0 and changed:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed[at : at + size] = other[at : at + size]
        elif kind == 3:
            changed[at : at + size] = bytes([chance.choice((0, 1, 127, 128, 255))]) * size
        elif kind == 4:
            changed[at:at] = chance.randbytes(size)
        else:
            del changed[at : at + size]
    return bytes(changed)


def damage(good: Original, other: Original, chance: random.Random) -> bytes:
    return damaged(good.data, other.data, chance)


def damage_container(good: Original, other: Original, chance: random.Random) -> bytes:
    """Damage only the JSON header of safetensors, which our checksum does not cover."""
    length = 8 + struct.unpack("<Q", good.data[:8])[0]
    text = damaged(good.data[8:length], other.data[8:length], chance)
    return struct.pack("<Q", len(text)) + text + good.data[length:]


def forge_index(good: Original, other: Original, chance: random.Random) -> bytes:
    """Replace one to three values of the index, at any depth."""
    index = json.loads(json.dumps(good.index))
    for _ in range(chance.randint(1, 3)):
        place = index
        while isinstance(place[at := chance.randrange(len(place))], list) and place[at] and chance.random() < 0.9:
            place = place[at]
        place[at] = chance.choice(VALUES if chance.random() < 0.3 else NUMBERS)
    return forge(good.words, index, good.codes)


def forge_rows(good: Original, other: Original, chance: random.Random) -> bytes:
    """Remove, repeat or exchange tensors and columns, or take them from another file."""
    index = [list(part) if isinstance(part, list) else part for part in good.index]
    for at in chance.sample(range(len(index)), chance.randint(1, len(index))):
        parts = [part for part in (good.index[at], other.index[at]) if isinstance(part, list)]
        if not parts or chance.random() < 0.2:
            index[at] = chance.choice((good.index[at], other.index[at]))
            continue
        taken = parts[0] + parts[-1] if chance.random() < 0.3 else list(parts[0])
        chance.shuffle(taken)
        index[at] = taken[: chance.randint(0, len(taken))] + taken[: chance.randint(0, 2)]
    return forge(chance.choice((good.words, other.words)), index, chance.choice((good.codes, other.codes, b"")))


def forge_codes(good: Original, other: Original, chance: random.Random) -> bytes:
    return forge(good.words, good.index, damaged(good.codes, other.codes, chance))


def forge_fields(good: Original, other: Original, chance: random.Random) -> bytes:
    """Replace codes by others in valid deflate streams."""
    streams, rest = [], good.codes
    for _ in range(2):
        coder = zlib.decompressobj(-15)
        streams.append(coder.decompress(rest))
        rest = coder.unused_data
    at = chance.randrange(2)
    streams[at] = damaged(streams[at], other.codes, chance)
    return forge(good.words, good.index, b"".join(map(deflated, streams)) + rest)


def forge_text(good: Original, other: Original, chance: random.Random) -> bytes:
    """Write an index that is almost valid JSON, or almost a valid deflate stream."""
    text = json.dumps(good.index).encode()
    if chance.random() < 0.5:
        return seal(good.words, deflated(damaged(text, b"[" * len(text), chance)) + good.codes)
    return seal(good.words, damaged(deflated(text), good.codes, chance) + good.codes)


def forge_words(good: Original, other: Original, chance: random.Random) -> bytes:
    name = chance.choice(("small", "resnet20", "resnet99999999999", "wrn28-2", "", "os", "densenet100000"))
    options = {chance.choice(("classes", "width", "size", "growth", "x")): chance.choice(VALUES)}
    words = [*good.words, name, options]
    words = words[: chance.randint(0, 5)] if chance.random() < 0.5 else list(good.words)
    if words and chance.random() < 0.7:
        words[chance.randrange(len(words))] = chance.choice((*VALUES, "fp16", "int8", name, options))
    return forge(words, good.index, good.codes)


Mutation = Callable[[Original, Original, random.Random], bytes]
DAMAGE: tuple[Mutation, ...] = (damage, damage_container)
FORGERIES: tuple[Mutation, ...] = (forge_index, forge_rows, forge_codes, forge_fields, forge_text, forge_words)


def verdict(path: Path, mutation: Mutation, good: Original) -> str:
    """Return the result of loading; raise for any other than these.

    refused: `FormatError` names the file. unharmed: a damaged file gives every tensor unchanged. believed: a forged
    file gives tensors of the shapes that it lists.
    """
    start = time.perf_counter()
    try:
        state = tensors(files.load(path))
    except FormatError as error:
        if str(path) not in str(error):
            raise AssertionError(f"the refusal does not name the file: {error}") from error
        return "refused"
    finally:
        if time.perf_counter() - start > SLOW:
            raise AssertionError(f"took {time.perf_counter() - start:.1f} seconds")
    if mutation in DAMAGE:
        same = state.keys() == good.state.keys() and all(identical(state[n], good.state[n]) for n in state)
        if not same:
            raise AssertionError("a damaged file was loaded without an error")
        return "unharmed"
    if {name: list(tensor.shape) for name, tensor in state.items()} != shapes(original(path.read_bytes(), {})):
        raise AssertionError("the tensors are not what the file says")
    return "believed"


def shapes(said: Original) -> dict[str, list[int]]:
    """The shapes that a file lists, or those of the network that it names."""
    if isinstance(said.index[0], list):
        return {name: shape for name, _, shape in said.index[0]}
    _, name, options = said.words
    return {key: list(value.shape) for key, value in models.build(name, **options).state_dict().items()}


def identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    counts: Counter[tuple[str, str]] = Counter()
    with TemporaryDirectory() as folder:
        good_files = originals(Path(folder))
        path = Path(folder, "mutant.regrow")
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
        for number in range(options.files):
            good, other = chance.choice(good_files), chance.choice(good_files)
            mutation = chance.choice((*DAMAGE, *DAMAGE, *FORGERIES, *FORGERIES[:3]))
            path.write_bytes(mutation(good, other, chance))
            try:
                counts[mutation.__name__, verdict(path, mutation, good)] += 1
            except BaseException:
                kept = Path(f"mutant-{options.seed}-{number}.regrow")
                kept.write_bytes(path.read_bytes())
                traceback.print_exc()
                sys.exit(f"file {number} ({mutation.__name__}) is a failure; it was kept as {kept}")
    kinds = [mutation.__name__ for mutation in (*DAMAGE, *FORGERIES)]
    verdicts = ("refused", "unharmed", "believed")
    rows = [{"mutation": kind.replace("_", " "), **{v: counts[kind, v] for v in verdicts}} for kind in kinds]
    rows.append({"mutation": "all", **{v: sum(counts[kind, v] for kind in kinds) for v in verdicts}})
    title = (
        f"{options.files:,} mutated packed files (seed {options.seed}): no crash, no hang, no damaged tensor believed"
    )
    report(title, rows, name="fuzz_pack")


if __name__ == "__main__":
    main()
