"""Slow transcriptions of the methods as their papers describe them, in plain Python over flat lists."""

import hashlib
import math
import statistics
from fractions import Fraction

import numpy as np

MASK64 = (1 << 64) - 1
Flat = list[float]


def splitmix(key: int, count: int) -> Flat:
    """SplitMix64 as published, one number after the other."""
    numbers, state = [], key
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
        numbers.append((((z ^ (z >> 31)) >> 11) + 0.5) * 2.0**-53)
    return numbers


def draw(seed: int, layer: str, step: int, count: int, purpose: str = "place") -> Flat:
    key = hashlib.blake2b(f"{seed}/{layer} {purpose}/{step}".encode(), digest_size=8).digest()
    return splitmix(int.from_bytes(key, "little"), count)


def smallest(values: Flat, where: set[int], count: int) -> set[int]:
    return set(sorted(where, key=lambda i: (abs(values[i]), i))[:count])


def largest(values: Flat, where: set[int], count: int) -> set[int]:
    return where - smallest(values, where, len(where) - count)


def split(total: int, weights: Flat, caps: list[int]) -> list[int]:
    """Find the level at which min(cap, level·weight) adds up to `total_steps`, then round by largest remainder."""
    weights = [Fraction(weight) for weight in weights]
    if not any(weights):
        weights = [Fraction(1)] * len(weights)
    levels = sorted({Fraction(0)} | {cap / weight for cap, weight in zip(caps, weights, strict=True) if weight})
    amounts = [Fraction(0)] * len(caps)
    for low in levels:
        filled = [min(Fraction(cap), low * weight) for cap, weight in zip(caps, weights, strict=True)]
        slope = sum(weight for cap, weight in zip(caps, weights, strict=True) if low * weight < cap)
        if sum(filled) > total:
            break
        level = low + (total - sum(filled)) / slope if slope else low
        amounts = [min(Fraction(cap), level * weight) for cap, weight in zip(caps, weights, strict=True)]
    if missing := total - sum(amounts):  # every part with a weight is full: the rest is split evenly
        rest = [cap if not weight else 0 for cap, weight in zip(caps, weights, strict=True)]
        extra = split(int(missing), [float(cap > 0) for cap in rest], rest)
        return [int(a) + e for a, e in zip(amounts, extra, strict=True)]
    whole = [math.floor(amount) for amount in amounts]
    order = sorted(range(len(caps)), key=lambda i: (whole[i] - amounts[i], i))
    for index in order[: total - sum(whole)]:
        whole[index] += 1
    return whole


def rigl(t, total, drop, masks, weights, gradients):
    fraction = drop / 2 * (1 + math.cos(math.pi * t / (0.75 * total)))
    result = {}
    for name, active in masks.items():
        count = int(fraction * len(active))
        kept = active - smallest(weights[name], active, count)
        inactive = set(range(len(weights[name]))) - kept
        result[name] = kept | largest(gradients[name], inactive, count)
    return result


def set_(t, zeta, seed, masks, weights):
    result = {}
    for name, active in masks.items():
        w = weights[name]
        inactive = set(range(len(w))) - active
        fraction = min(zeta, len(inactive) / max(len(active), 1))
        positive, negative = {i for i in active if w[i] >= 0}, {i for i in active if w[i] < 0}
        dropped = smallest(w, positive, int(fraction * len(positive)))
        dropped |= smallest(w, negative, int(fraction * len(negative)))
        random = draw(seed, name, t, len(w))
        result[name] = (active - dropped) | largest(random, inactive, len(dropped))
    return result


def sparse_momentum(t, total, rate, masks, weights, momentum):
    means = {n: _mean(momentum[n], active) for n, active in masks.items()}
    rate = 0.005 + (rate - 0.005) * (1 + math.cos(math.pi * t / total)) / 2
    removed = {}
    for name, active in masks.items():
        sparsity = 1 - len(active) / len(weights[name])
        own = min(sparsity, rate) if sparsity < 0.2 and means[name] > sum(means.values()) / len(means) else rate
        removed[name] = smallest(weights[name], active, math.ceil(own * len(active)))
    places = [len(weights[n]) - len(masks[n]) + len(removed[n]) for n in masks]
    caps, amount = [int(0.99 * free) for free in places], sum(map(len, removed.values()))
    grown = split(amount, list(means.values()), caps if sum(caps) >= amount else places)
    result = {}
    for (name, active), count in zip(masks.items(), grown, strict=True):
        kept = active - removed[name]
        result[name] = kept | largest(momentum[name], set(range(len(weights[name]))) - kept, count)
    return result


def _mean(values: Flat, where: set[int]) -> float:
    return float(np.mean(np.abs(np.array([values[i] for i in sorted(where)], np.float64)))) if where else 0.0


def dsr(t, threshold, target, seed, masks, weights):
    free = {name: set(range(len(weights[name]))) - active for name, active in masks.items()}
    places = sum(map(len, free.values()))
    while True:
        kept = {}
        for name, active in masks.items():
            kept[name] = {i for i in active if abs(weights[name][i]) >= threshold}
            if active and not kept[name]:
                kept[name] = largest(weights[name], active, 1)
        dropped = sum(len(masks[name]) - len(kept[name]) for name in masks)
        if dropped <= places:
            break
        threshold /= 2
    grown = split(dropped, [len(k) for k in kept.values()], [len(f) for f in free.values()])
    result = {
        name: kept[name] | largest(draw(seed, name, t, len(weights[name])), free[name], count)
        for name, count in zip(masks, grown, strict=True)
    }
    if dropped < 0.9 * target:
        threshold *= 2
    elif dropped > 1.1 * target:
        threshold /= 2
    return result, threshold


def deepr_noise(t, total, seed, name, count):
    """The noise that DeepR adds to the gradients of a layer's `count` weights."""
    normal = statistics.NormalDist(0, math.sqrt(2 * 0.01 * 1e-5 * (1e-10) ** (t / total)))
    return [normal.inv_cdf(u) for u in draw(seed, name, t, count, "noise")]


def deepr(t, seed, masks, before, weights):
    result = {}
    for name, active in masks.items():
        after = [w if i in active else 0.0 for i, w in enumerate(weights[name])]
        crossed = {i for i in active if before[name][i] * after[i] < 0}
        inactive = set(range(len(after))) - active
        dropped = largest(after, crossed, min(len(crossed), len(inactive)))
        result[name] = (active - dropped) | largest(draw(seed, name, t, len(after)), inactive, len(dropped))
    return result
