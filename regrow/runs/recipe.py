"""`Recipe`: everything that decides a run, from a TOML file, a command line or Python, and the built-in recipes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from regrow.core.schedule import SCHEDULES, Level, check_sparsity
from regrow.methods.registry import built_in_name, find_method
from regrow.text import did_you_mean

if TYPE_CHECKING:
    from regrow.core.pruner import Pruner

Device = Literal["cpu", "cuda", "mps"]

# Built-in recipes.
_FOLDER = Path(__file__).parent / "recipes"

# Fields that a method gets as its options.
PASSED_ON = (
    *("targets", "exclude", "include_last", "scope", "unit", "floor", "weight_decay_at", "every", "settle"),
    "stabilize",
)

# Fields that do not influence the result.
_NOT_IN_KEY = ("device", "threads", "parallel")

# A recipe may come from elsewhere: torch crashes if it is asked for more threads than the system allows.
_MOST_THREADS = 1024

# torch's generator takes signed 64-bit seeds.
_LARGEST_SEED = 2**63 - 1

# A callable of another package, such as my_package.net:build.
_CALLABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

# For some files, the time of Python's TOML parser is quadratic in their size.
_LARGEST = 65_536


class UsageError(ValueError):
    """A command, an option or a recipe is wrong; the message names the value and what would be right."""


class RecipeError(UsageError):
    """A field of a recipe is wrong or unknown; the message names it, its value and what would be right."""


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. Time is in epochs and in fractions of training; the training loop converts it to steps."""

    data: str = "digits"
    """Data set: digits comes with the package; others are read from $REGROW_DATA. Your own: package.module:callable,
    which returns training and test data (data sets or loaders)."""
    model: str = "small"
    """Network, such as resnet20, wrn28-2, vgg16, densenet40, resnet50; small trains on digits in seconds. Your own:
    package.module:callable, which returns an nn.Module."""
    width: int | None = None
    """Base width of the network. None: as in its paper."""
    stem_stride: int | None = None
    """Stride of the first convolution of a CIFAR ResNet; 2 makes it about three times cheaper."""
    growth: int | None = None
    """Growth rate of a DenseNet. None: as in its paper (12)."""
    method: str = "dpf"
    """Pruning method: `regrow methods` lists them. fixed keeps given masks (see masks), dense prunes nothing."""
    sparsity: float | str = 0.9
    """Final fraction of the targeted weights (or filters) that is pruned. It can differ by layer, as in
    layer4.*=0.95,*=0.8 (in TOML also as a table): the first pattern that matches a name applies."""
    every: int | Literal["auto", "paper"] = "auto"
    """Optimizer steps between mask updates. paper: as in the method's paper (16 for dpf, an epoch for incremental).
    auto: this number, scaled down with the length of a short training."""
    scope: Literal["global", "layer", "er", "erk", "redistributed"] | None = None
    """One threshold for all layers (global), or one per layer: with equal sparsity (layer), by Erdos-Renyi (er, erk),
    or by the magnitude of its weights (redistributed). None: as in the method's paper."""
    unit: str | None = None
    """Prune single weights ("weight", the default), whole filters ("filter"), or N of M consecutive weights ("2:4")."""
    targets: tuple[str, ...] = ()
    """Names or globs of the weights to prune. Empty: all convolutions and linear layers except the last linear one."""
    exclude: tuple[str, ...] = ()
    """Names or globs of weights that are not pruned."""
    include_last: bool | None = None
    """Also prune the last linear layer. None: as in the method's paper (only sparse-momentum does)."""
    floor: int | None = None
    """Number of units of each layer that are never pruned. None: no limit, as in the paper."""
    weight_decay_at: Literal["dense", "pruned"] | None = None
    """Whether weight decay acts on the dense weights w (the default) or on the pruned weights ŵ."""
    settle: float | None = None
    """Fraction of training, at its end, in which the masks stay fixed (dpf); 0.1 helps in short trainings. None: 0."""
    stabilize: bool = False
    """Bound the gradients of filters that are pruned as a whole (dpf), which helps at high sparsity."""
    options: tuple[str, ...] = ()
    """More options of the method, such as drop_fraction=0.2 or criterion=rms; see `regrow methods NAME`."""
    init: str | None = None
    """Start with the weights of a file (state dict, safetensors, packed) or of a finished run."""
    masks: str | None = None
    """For method fixed: a finished run or a model file whose zeros stay zero."""
    schedule: str = "cubic"
    """How the sparsity rises: cubic, or constant from the first step on."""
    ramp_end: float | None = None
    """Fraction of training after which the final sparsity is reached; 0 starts with it (granet: reaches it after a
    step). None: at the second drop (granet: after half of training). Methods without a ramp ignore it."""
    ramp_by: Literal["epoch", "step"] = "epoch"
    """Whether the sparsity rises once per epoch, as in the paper, or with every mask update (for short trainings)."""
    epochs: int = 30
    """Passes over the training images; 0 prunes the weights of --init at once and starts fine-tuning."""
    batch: int = 128
    """Images per optimizer step."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov momentum, or Adam."""
    lr: float = 0.1
    """Learning rate before the first drop."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 1e-4
    """Weight decay, on all parameters unless norm_decay is false."""
    norm_decay: bool = True
    """Whether weight decay also acts on the parameters of batch norm."""
    label_smoothing: float = 0.0
    """Fraction of each label that is spread evenly over all classes in training; 0.1 is usual on ImageNet."""
    lr_drops: tuple[float, ...] = (0.5, 0.75)
    """Fractions of training at which the learning rate drops."""
    lr_drop_factor: float = 0.1
    """Factor of the learning rate at each drop."""
    warmup: float = 0.0
    """Length of the warm-up, in which the learning rate rises linearly to --lr, as a fraction of training."""
    warmup_from: float = 0.0
    """Learning rate at the start of the warm-up, as a fraction of --lr."""
    finetune_epochs: int = 0
    """Additional epochs with a fixed mask and a new optimizer."""
    finetune_optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer of fine-tuning."""
    finetune_lr: float = 0.01
    """Learning rate of fine-tuning before its first drop."""
    finetune_lr_drops: tuple[float, ...] = (0.5,)
    """Fractions of fine-tuning at which its learning rate drops by --lr-drop-factor."""
    holdout: int = 0
    """Number of training images that are held out and used for evaluation instead of the test set (for tuning)."""
    limit: int | None = None
    """Train on this many images only, spread evenly over the data set."""
    seed: int = 0
    """Seed of the initial weights, of the order and augmentation of images, and of random choices of the method."""
    bf16: bool = False
    """Compute in bfloat16 where it is safe (autocast): faster on GPUs, and on CPUs with AMX or AVX512-BF16."""
    channels_last: bool = False
    """Use the channels-last memory format, which is faster on most devices."""
    compile: bool = False
    """Compile the network with torch.compile; this takes minutes and pays off only on GPUs."""
    device: Device = "cpu"
    """Device for training."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several processes train: each with all weights (ddp), or with some rows of every weight (fsdp)."""
    threads: int | None = None
    """CPU threads; a run is bit-reproducible for a fixed number. None: torch's default."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", _checked_sparsity(self.sparsity))
        _check_types(self)
        _check_ranges(self)
        object.__setattr__(self, "method", built_in_name(self.method) or self.method)

    @property
    def level(self) -> Level:
        """The final sparsity: a number, or one for each pattern."""
        return by_pattern(self.sparsity) if isinstance(self.sparsity, str) else self.sparsity

    @property
    def sparsity_title(self) -> str:
        """The final sparsity in words, such as `90 %` or `layer4.* 95 %, * 80 %`."""
        if isinstance(self.sparsity, str):
            return ", ".join(f"{pattern} {100 * each:.6g} %" for pattern, each in by_pattern(self.sparsity).items())
        return f"{100 * self.sparsity:.6g} %"

    @property
    def ramp_fraction(self) -> float:
        """Fraction of training at which the sparsity is final: by default the second drop (Appendix A.2)."""
        if self.schedule == "constant":
            return 0.0
        if self.ramp_end is not None:
            return self.ramp_end
        return self.lr_drops[1] if len(self.lr_drops) > 1 else 0.75

    def changed(self, **fields: Any) -> Recipe:
        """Return the recipe with some fields changed; an unknown field raises `RecipeError`."""
        return Recipe.of({**vars(self), **fields})

    @classmethod
    def of(cls, fields: Mapping[str, Any], origin: str = "") -> Recipe:
        """Make a recipe from `fields`; an unknown one is an error that names `origin` and the nearest known field."""
        known = cls.__dataclass_fields__
        for name in fields:
            if name not in known:
                hint = did_you_mean(name, known, cutoff=0.5) or f" There are {', '.join(known)}."
                raise RecipeError(f"{origin or 'a recipe'} has no field {name!r}.{hint}")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        try:
            return cls(**values)
        except RecipeError as error:
            raise RecipeError(f"{origin}: {error}" if origin else str(error)) from None

    @classmethod
    def read(cls, path: Path | str) -> Recipe:
        """Read a TOML recipe."""
        fields = read_toml(Path(path))
        if "grid" in fields:
            raise RecipeError(f"{path} is a sweep: regrow sweep {path}")
        return cls.of(fields, str(path))

    def to_toml(self) -> str:
        """Return the recipe with all defaults as TOML; `read` is the inverse."""
        lines = [f"{name} = {_toml(value)}" for name, value in dataclasses.asdict(self).items() if value is not None]
        return "\n".join(lines) + "\n"

    def key(self) -> str:
        """Return the digest that identifies the run; it does not depend on device, threads and parallel.

        Only fields that differ from their defaults count, so a new field changes no key.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self) if field.name not in _NOT_IN_KEY}
        defaults["every"] = "paper"  # the default before it was "auto"; the keys of finished runs stay the same
        fields = {name: value for name, default in defaults.items() if (value := getattr(self, name)) != default}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def imports(self) -> tuple[str, ...]:
        """The callables (`package.module:callable`) that the recipe names; only what the user names is imported."""
        return tuple(name for name in (self.model, self.data) if ":" in name)

    @property
    def takes_sparsity(self) -> bool:
        """Whether the recipe's method prunes to a given sparsity; True for an unknown method."""
        method = self._method()
        return method is None or method.takes_sparsity

    @property
    def prunes_filters(self) -> bool:
        """Whether whole filters are pruned."""
        if self.unit == "filter":
            return True
        method = self._method()
        return method is not None and method.prunes_filters

    def _method(self) -> type[Pruner] | None:
        """Return the recipe's method; None if it is unknown here. This imports torch."""
        try:
            return find_method(self.method)
        except (TypeError, ValueError):
            return None

    def name(self) -> str:
        """Return a readable name, such as `cifar10-resnet20-dpf90-s0`."""
        levels = list(self.level.values()) if isinstance(self.level, Mapping) else [self.level]
        amount = "-".join(f"{100 * level:g}" for level in levels)
        # By name, because a sweep names its folders without importing torch, and finished runs are found by folder:
        # with `takes_sparsity`, those of fixed and feedback would have other names than before.
        pruned = self.method if self.method in ("dense", "srste") else f"{self.method}{amount}"
        # It becomes the name of a folder, and a recipe of another user must not choose a path.
        return re.sub(r"[^\w.-]", "_", f"{self.data}-{self.model}-{pruned}-s{self.seed}")[:150]

    def folder_name(self) -> str:
        """Return the name of the run folder: the readable name and the start of the key."""
        return f"{self.name()}-{self.key()[:8]}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; any problem is a `RecipeError` that names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise RecipeError(f"{path} is too large for a recipe or sweep: the limit is {_LARGEST:,} bytes.")
        return tomllib.loads(content.decode())
    except RecipeError:
        raise
    except OSError as error:
        raise RecipeError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not a TOML file: {error}") from None


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    # JSON strings are valid TOML except for one character, which TOML requires to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_types(recipe: Recipe) -> None:
    values = vars(recipe)
    for name, wanted in _hints().items():
        value = values[name]
        # Skip defaults, so that checking thousands of recipes is quick.
        if value is getattr(Recipe, name) or _fits(value, wanted):
            continue
        if (names := _choices(wanted)) and int not in get_args(wanted):
            hint = did_you_mean(str(value), names)
            raise RecipeError(f"{name} must be one of {', '.join(names)}, got {value!r}.{hint}")
        raise RecipeError(f"{name} must be {_words(wanted)}, got {value!r}")


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Recipe)


def _fits(value: Any, wanted: Any) -> bool:
    origin = get_origin(wanted)
    if origin is Literal:
        return value in get_args(wanted)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(wanted))
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(wanted)[0]) for item in value)
    if wanted is float:
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**300
        return whole or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def _choices(wanted: Any) -> tuple[str, ...]:
    """Return the values of a Literal, optional or not; empty for other types."""
    options = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    return tuple(name for option in options if get_origin(option) is Literal for name in get_args(option))


def _words(wanted: Any) -> str:
    if get_origin(wanted) is tuple:
        return f"a list, each item {_words(get_args(wanted)[0])}"
    options = [option for option in get_args(wanted) if option is not NoneType]
    names = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}
    words = "".join(f" or {name!r}" for name in _choices(wanted))
    return names[options[0] if options else wanted] + words + (", or left out" if options else "")


def _check_ranges(recipe: Recipe) -> None:
    for least, names in {
        1: ("width", "stem_stride", "growth", "every", "batch", "limit", "threads"),
        0: ("floor", "epochs", "finetune_epochs", "holdout", "seed", "weight_decay", "momentum"),
    }.items():
        for name in names:
            value = getattr(recipe, name)
            if isinstance(value, int | float) and value < least:
                raise RecipeError(f"{name} must be at least {least}, got {value}")
    for option in recipe.options:
        if (name := option.partition("=")[0].strip()) in PASSED_ON:
            raise RecipeError(f"options has {option!r}, but {name} is a field of recipes: --{name.replace('_', '-')}")
    if not recipe.epochs and recipe.init is None:
        raise RecipeError("epochs must be at least 1, got 0: 0 needs --init, whose weights are pruned at once")
    for name in ("model", "data"):
        if ":" in (value := getattr(recipe, name)) and not _CALLABLE.fullmatch(value):
            raise RecipeError(f"{name} must be a name or have the form package.module:callable, got {value!r}")
    if recipe.threads is not None and recipe.threads > _MOST_THREADS:
        raise RecipeError(f"threads must be at most {_MOST_THREADS:,}, got {recipe.threads}")
    if recipe.seed > _LARGEST_SEED:
        raise RecipeError(f"seed must be below 2**63, got {recipe.seed}")
    for name in ("lr", "finetune_lr", "lr_drop_factor"):
        if getattr(recipe, name) <= 0:
            raise RecipeError(f"{name} must be above 0, got {getattr(recipe, name)}")
    for name in ("settle", "ramp_end", "warmup", "warmup_from"):
        _check_fraction(name, getattr(recipe, name))
    for name in ("lr_drops", "finetune_lr_drops"):
        fractions = getattr(recipe, name)
        for fraction in fractions:
            _check_fraction(name, fraction)
        if list(fractions) != sorted(fractions):
            raise RecipeError(f"{name} must be in ascending order, got {list(fractions)}")
    if not 0 <= recipe.label_smoothing < 1:
        raise RecipeError(f"label_smoothing must be in [0, 1), got {recipe.label_smoothing:g}")
    if recipe.schedule not in SCHEDULES:
        hint = did_you_mean(recipe.schedule, SCHEDULES)
        raise RecipeError(f"schedule must be one of {', '.join(SCHEDULES)}, got {recipe.schedule!r}.{hint}")


def by_pattern(text: str) -> dict[str, float]:
    """Return the sparsities in a text such as `layer4.*=0.95,*=0.8`; a `RecipeError` says what is wrong with it.

    >>> by_pattern("layer4.*=0.95,*=0.8")
    {'layer4.*': 0.95, '*': 0.8}
    """
    pairs = [part.rpartition("=") for part in text.split(",")]
    try:
        found = {pattern.strip(): float(value) for pattern, _, value in pairs}
    except ValueError:
        found = {}
    if "" in found or len(found) < len(pairs):
        raise RecipeError(
            f"sparsity must be a number in [0, 1), or one for each of several patterns, such as 'layer4.*=0.95,*=0.8'; "
            f"got {text!r}"
        )
    return found


def _checked_sparsity(sparsity: Any) -> Any:
    """Return a mapping as text, so that recipes can be compared, and check the numbers in it."""
    given = by_pattern(sparsity) if isinstance(sparsity, str) else sparsity
    if isinstance(given, Mapping):
        for pattern, value in given.items():
            _check_sparsity(f"sparsity of {pattern!r}", value)
        text = ",".join(f"{pattern}={float(value)!r}" for pattern, value in given.items())
        by_pattern(text)  # a name may contain a comma
        return text
    _check_sparsity("sparsity", given)
    return given


def _check_sparsity(name: str, value: Any) -> None:
    try:
        check_sparsity(value, name)
    except (TypeError, ValueError) as error:
        raise RecipeError(str(error).replace(" or a schedule", "")) from None


def _check_fraction(name: str, fraction: float | None) -> None:
    if fraction is not None and not 0 <= fraction <= 1:
        raise RecipeError(f"{name} must be a fraction in [0, 1], got {fraction:g}")


def recipe_names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def describe_recipe(name: str) -> str:
    """Return the first line of a built-in recipe, which describes it."""
    first, _, _ = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()


def load_recipe(name: str) -> Recipe:
    """Return a built-in recipe by name, or the recipe in a TOML file.

    >>> load_recipe("cifar-resnet20").epochs
    300
    """
    if (path := _FOLDER / f"{name}.toml").is_file() and "/" not in name:
        return Recipe.read(path)
    if Path(name).is_file():
        return Recipe.read(name)
    known = recipe_names()
    hint = did_you_mean(name, known)
    raise RecipeError(f"{name!r} is neither a file nor a built-in recipe.{hint} The recipes are {', '.join(known)}.")
