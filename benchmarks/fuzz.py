"""Feeds damaged and forged files to every reader, in processes with a memory limit: `python -m benchmarks.fuzz`.

A reader must return, or raise its own error (`FormatError`, `RunFolderError`, `RecipeError`, `DataError`) that names
the file. Any other error, a crash, more than ten seconds, or more than a gibibyte for one file fails the run, and the
file is kept. Mutations change bytes (flips, cuts, splices, inserted and removed bytes), numbers and words in texts,
and, if a format has a checksum, also content with a recomputed checksum. Packed files have their own fuzzer
(`benchmarks.fuzz_pack`), whose forgeries are used here as well. Counts add up over calls in
`results/benchmarks/fuzz.json`.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import multiprocessing
import random
import re
import resource
import struct
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks import fuzz_pack
from benchmarks.fuzz_pack import damaged
from benchmarks.runner import RESULTS, machine
from regrow import FormatError, files, models
from regrow.data import DataError, cifar
from regrow.data.mnist import read_idx
from regrow.data.parquet import load as load_parquet
from regrow.data.registry import DatasetInfo
from regrow.files.model_file import load_model, save_model
from regrow.files.state_file import sealed
from regrow.files.torch_file import load_torch_file
from regrow.runs.folder import CHECKPOINT, RunFolderError, read_metrics
from regrow.runs.recipe import Recipe, RecipeError, recipe_names
from regrow.sweep import read_sweep
from regrow.train import checkpoint

MEMORY = 1 << 30
SECONDS = 10.0
BATCH = 10_000
NUMBERS = ("-1", "0", "1", "9" * 12, "9" * 400, "1e308", "-1e-308", "nan", "inf", "true", "null", '""', "[]", "{}")
WORDS = ("resnet6000002", "resnet000000001000000100", "os:system", "../../x", "small", "dpf", "fixed", "\\u0000", "é")
IMAGES = DatasetInfo(
    *("tiny", "Tiny"), channels=3, size=8, classes=10, train=64, test=64, mean=(0.5,) * 3, std=(0.5,) * 3, pad=1,
    flip=True, source="Make it again",
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A reader under test: good files, ways to change them, and the error that it may raise."""

    name: str
    read: Callable[[Path], object]
    file: str
    error: type[Exception]
    originals: Callable[[Path], list[bytes]]
    mutations: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = field(default=())


def reworded(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """Replace one to three numbers or words of a text, or repeat or exchange lines."""
    text = good.decode("utf-8", "replace")
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.2:
            lines = text.splitlines(keepends=True) + other.decode("utf-8", "replace").splitlines(keepends=True)
            text = "".join(chance.choices(lines, k=chance.randint(0, 2 * len(lines))))
            continue
        places = list(re.finditer(r'-?\d[\d.e+-]*|"[^"\n]*"|\w+|[\[\]{}=,]', text))
        if not places:
            return text.encode()
        place = chance.choice(places)
        new = chance.choice(
            (*NUMBERS, *(f'"{word}"' for word in WORDS), *WORDS, place[0] * chance.choice((0, 2, 1000)))
        )
        text = text[: place.start()] + new + text[place.end() :]
    return text.encode()


def forged_header(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """Change the header of a safetensors file and keep its length field correct."""
    length = int.from_bytes(good[:8], "little")
    header = reworded(good[8 : 8 + length], other[8:200], chance)
    return struct.pack("<Q", len(header)) + header + good[8 + length :]


def forged_checkpoint(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """Change the content of a checkpoint and recompute its checksum."""
    return sealed(chance.choice((forged_header, forged_state, damaged))(good, other, chance))


def forged_state(good: bytes, other: bytes, chance: random.Random) -> bytes:
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])
    state = reworded(header["__metadata__"]["state"].encode(), b"", chance).decode("utf-8", "replace")
    header["__metadata__"]["state"] = state
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + good[8 + length :]


def forged_packed(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """Apply the forgeries of `benchmarks.fuzz_pack`, with a recomputed checksum."""
    mutation = chance.choice(fuzz_pack.FORGERIES)
    return mutation(fuzz_pack.original(good, {}), fuzz_pack.original(other, {}), chance)


def forged_pickle(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """A whole zip archive of torch.save with a damaged pickle or storage, maybe compressed."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice([name for name in entries if "/data" in name])
    entries[name] = damaged(entries[name], other, chance)
    stream, packing = io.BytesIO(), chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def forged_gzip(good: bytes, other: bytes, chance: random.Random) -> bytes:
    """A whole gzip stream of a damaged idx file, maybe followed by many zeros."""
    content = damaged(gzip.decompress(good), gzip.decompress(other), chance)
    return gzip.compress(content + bytes(chance.choice((0, 0, 1, 1 << 22))), 1)


def readers() -> list[Reader]:
    """Return all readers."""
    tables = {
        "packed": (files.load, "a.regrow", FormatError, packed_files, (damaged, forged_header, forged_packed)),
        "safetensors": (load_model, "a.safetensors", FormatError, plain_files, (damaged, forged_header)),
        "torch file": (load_torch_file, "a.pt", FormatError, torch_files, (damaged, forged_pickle)),
        "checkpoint": (checkpoint.load, CHECKPOINT, RunFolderError, checkpoints, (damaged, forged_checkpoint)),
        "recipe": (Recipe.read, "recipe.toml", RecipeError, recipes, (damaged, reworded)),
        "sweep": (read_sweep, "sweep.toml", RecipeError, sweeps, (damaged, reworded)),
        "metrics": (read_folder, "metrics.jsonl", RunFolderError, metrics, (damaged, reworded)),
        "idx": (read_images, "a", DataError, idx_files, (damaged,)),
        "idx, gzip": (read_images, "a.gz", DataError, gzip_files, (damaged, forged_gzip)),
        "parquet": (read_parquet, "train.parquet", DataError, parquet_files, (damaged,)),
        "cifar batch": (read_batch, "data_batch_1", DataError, cifar_batches, (damaged,)),
    }
    return [Reader(name, *parts) for name, parts in tables.items()]  # type: ignore[arg-type]


def recipes(_: Path) -> list[bytes]:
    names = ("digits", "cifar10")
    return [Recipe(data=data, options=("zeta=0.2",), targets=("conv*",)).to_toml().encode() for data in names]


def sweeps(_: Path) -> list[bytes]:
    grids = (
        "[grid]\nseed = [0, 1, 2]\nsparsity = [0.5, 0.9]\n",
        '[[grid]]\nmethod = ["dpf", "rigl"]\n[[grid]]\nlr = 1\n',
    )
    return [f'recipe = "{name}"\nepochs = 3\n{grid}'.encode() for name in recipe_names()[:3] for grid in grids]


def metrics(_: Path) -> list[bytes]:
    line = json.dumps({"epoch": 1, "loss": 0.5, "layers": {"conv1.weight": 0.5}, "lr": 1e-3}) + "\n"
    return [line.encode(), line.encode() * 5]


def read_folder(path: Path) -> object:
    return read_metrics(path.parent)


def read_images(path: Path) -> object:
    return read_idx(path, 3, most=5000)


def read_batch(path: Path) -> object:
    return cifar.read_batch(path.read_bytes(), "labels")


def idx_files(_: Path) -> list[bytes]:
    return [idx_file(5), idx_file(1)]


def gzip_files(_: Path) -> list[bytes]:
    return [gzip.compress(idx_file(5)), gzip.compress(idx_file(2))]


def packed_files(folder: Path) -> list[bytes]:
    return [good.data for good in fuzz_pack.originals(folder)]


def plain_files(folder: Path) -> list[bytes]:
    path = folder / "plain"
    found = []
    for source in (models.build("small", width=2), {"w": torch.ones(3, 4), "b": torch.zeros(4, dtype=torch.int64)}):
        save_model(source, path)
        found.append(path.read_bytes())
    return found


def torch_files(folder: Path) -> list[bytes]:
    model, found = models.build("small", width=2), []
    for state in (model.state_dict(), {"model": dict(model.named_parameters()), "epoch": 3, "best": (0.5, None)}):
        stream = io.BytesIO()
        torch.save(state, stream)
        found.append(stream.getvalue())
    return found


def checkpoints(folder: Path) -> list[bytes]:
    from regrow.train.loop import Trainer

    recipe = Recipe(data="digits", model="small", width=2, threads=1)
    states: list[dict[str, Any]] = [
        {"trainer": Trainer(recipe).state_dict(), "metrics": 0, "seconds": 1.0, "last": None},
        {"trainer": {"step": 1, "w": torch.ones(2, 3)}, "shards": "shards-01234567", "last": {"loss": [1, (2, None)]}},
    ]
    path, found = folder / "checkpoint", []
    for state in states:
        checkpoint.save(path, state)
        found.append(path.read_bytes())
    return found


def idx_file(images: int) -> bytes:
    return bytes([0, 0, 8, 3]) + struct.pack(">3I", images, 28, 28) + random.Random(images).randbytes(images * 28 * 28)


def parquet_files(_: Path) -> list[bytes]:
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (10, 200, 30)).save(stream, "PNG")
    images = pyarrow.array([{"bytes": stream.getvalue(), "path": None}] * 5)
    table, found = pyarrow.table({"img": images, "label": list(range(5))}), []
    for compression in ("snappy", "none", "zstd"):
        sink = io.BytesIO()
        pyarrow.parquet.write_table(table, sink, compression=compression)
        found.append(sink.getvalue())
    return found


def read_parquet(path: Path) -> object:
    return load_parquet(IMAGES, [path], label="label", classes=tuple("0123456789"))


def cifar_batches(_: Path) -> list[bytes]:
    import pickle

    return [pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}, protocol=3)]


def fuzz(name: str, seed: int, count: int) -> Counter[str]:
    """Read `count` mutants with one reader in this process, whose memory is limited."""
    chance = random.Random(f"{name} {seed}")
    torch.set_num_threads(1)
    verdicts: Counter[str] = Counter()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        reader = next(each for each in readers() if each.name == name)
        originals = reader.originals(folder)
        path = folder / "work" / reader.file
        path.parent.mkdir()
        reader.read(write(path, originals[0]))
        limit_memory()
        for number in range(count):
            mutation = chance.choice(reader.mutations)
            content = mutation(chance.choice(originals), chance.choice(originals), chance)
            start = time.perf_counter()
            try:
                verdicts[verdict(reader, write(path, content))] += 1
                if time.perf_counter() - start > SECONDS:
                    raise AssertionError(f"took {time.perf_counter() - start:.1f} seconds")
            except BaseException as error:
                kept = Path(f"mutant-{name.replace(', ', '-')}-{seed}-{number}")
                kept.write_bytes(content)
                traceback.print_exc()
                raise SystemExit(f"{name}, file {number} ({mutation.__name__}): kept as {kept}") from error
    return verdicts


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def limit_memory() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))


def verdict(reader: Reader, path: Path) -> str:
    """Return "read" or "refused"; any other error passes through."""
    try:
        reader.read(path)
    except reader.error as error:
        # A sweep may start from a recipe that does not exist, and a batch is named by its caller.
        if path.name not in str(error) and reader.error not in (RecipeError, DataError):
            raise AssertionError(f"the error does not name the file: {error}") from error
        return "refused"
    return "read"


def record(name: str, verdicts: Counter[str]) -> int:
    """Add the verdicts on one reader to the results; return how many files it has read in all."""
    path = RESULTS / "fuzz.json"
    facts: dict[str, Any] = {"readers": {}, "refused": {}}
    if path.exists():
        facts = json.loads(path.read_text(encoding="utf-8"))
    facts["readers"][name] = facts["readers"].get(name, 0) + sum(verdicts.values())
    facts["refused"][name] = facts["refused"].get(name, 0) + verdicts["refused"]
    result = {
        "title": "Damaged and forged files, for every reader: no crash, no hang, no error of another kind",
        "command": "python -m benchmarks.fuzz",
        "date": date.today().isoformat(),
        "machine": machine(),
        "memory_bytes": MEMORY,
        "seconds": SECONDS,
        "files": sum(facts["readers"].values()),
        "readers": facts["readers"],
        "refused": facts["refused"],
    }
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(facts["readers"][name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000, help="files for each reader, counting earlier calls")
    parser.add_argument("--only", help="one reader")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [options.only] if options.only else [reader.name for reader in readers()]
    # A new process for each batch: its memory limit counts from its start, and a crash is noticed.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.fuzz"])
    done = dict.fromkeys(names, 0)
    while unfinished := [name for name in names if done[name] < options.files]:
        for name in unfinished:
            seed = done[name] or record(name, Counter())
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                verdicts = pool.submit(fuzz, name, seed, BATCH).result(timeout=BATCH * SECONDS)
            done[name] = record(name, verdicts)
            print(f"{name}: {done[name]:,} files", flush=True)


if __name__ == "__main__":
    main()
