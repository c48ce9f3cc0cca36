"""The search for the layers that cannot be as the others, at the least cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..configuration.options import LayerOptions
from ..errors import JitPassesError, count_of, not_among
from ..logs import LOGGER
from ..report.cost import Cost, file_size, latency_on
from ..stages.batches import progress_bar
from .clock import Clock, OutOfTime
from .ranking import suspects
from .variants import IN_FLOAT, Layer, Variants

RESOLUTION = 1e-3  # of a model's cost; a smaller share counts as free


@dataclass(frozen=True)
class Objective:
    """The cost that is to be small.

    Attributes:
        name: `layers`, `size` or `latency`.
        measure: gives it for a model; None where layers are counted.
    """

    name: str
    measure: Cost | None = None

    def shown(self, cost: float, sign: str = "") -> str:
        """Return a cost for people."""
        if self.name == "size":
            return f"{cost / 1024:{sign}z,.1f} KiB"
        return f"{1000 * cost:{sign}z.3f} ms"


OBJECTIVES = ("layers", "size", "latency")


def objective_of(name: str, variants: Variants) -> Objective:
    """Return the objective of a name.

    Raises:
        JitPassesError: there is none; latency without data.
    """
    if name not in OBJECTIVES:
        raise JitPassesError(not_among("an objective", name, OBJECTIVES))
    if name == "layers":
        return Objective(name)
    if name == "size":
        return Objective(name, file_size)
    if not variants.data:
        why = "the objective latency is measured on data"
        raise JitPassesError(f"{why}: pass data", command=f"{why}: pass --data or --random")
    return Objective(name, latency_on(variants.data[0], variants.method))


@dataclass
class Found:
    """Layers that cannot be as the others.

    Attributes:
        choices: their options, by name.
        without: by name, the score without the change, which was too low.
    """

    choices: dict[str, LayerOptions]
    without: dict[str, float]


class Search:
    """A search for few layers in float, or for the layers that cost least there.

    Attributes:
        extra: with a cost, by layer, by how much it rises where that layer alone is in float.
    """

    def __init__(
        self, variants: Variants, least: float, alternatives: tuple[LayerOptions, ...],
        objective: Objective, progress: bool | None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.variants, self.least, self.alternatives = variants, least, alternatives
        self.measure = objective.measure
        self.clock = clock or Clock(None)
        self.extra: dict[str, float] = {}
        self.bar = progress_bar("tune", progress, "model")

    def run(self) -> Found:
        """Return the options of the layers that cannot be as the others."""
        with self.bar(()) as self.shown:
            self.expect(1 + 2 * len(self.variants.layers).bit_length())
            found = Found({}, {})
            if not self.enough({}):
                ranked = suspects(self.variants)
                order = [layer for layer, _ in ranked]
                found = self.needed(order) if self.measure is None else self.cheapest(ranked)
                count = count_of(len(found.choices), "layer")
                LOGGER.info("tune: %s cannot be as the others", count)
                left = [layer for layer in self.variants.layers if layer.name in found.choices]
                for number, layer in enumerate(left):
                    self.expect((len(left) - number) * len(self.alternatives))
                    self.cheapen(found, layer, left[number + 1 : number + 2])
            self.expect(0)
            return found

    def cheapest(self, ranked: Sequence[tuple[Layer, float]]) -> Found:
        """Return the layers that cost least in float, as measured, of the results of three orders.

        By noise, by noise over cost, and by cost alone, which leaves out costly layers altogether.

        Args:
            ranked: all layers in the order in which they are suspected, with their noise.
        """
        self.expect(len(ranked))
        base = self.cost({})
        for layer, _ in ranked:
            self.extra[layer.name] = self.cost({layer.name: IN_FLOAT}) - base
            self.shown.update()

        def per_cost(entry: tuple[Layer, float]) -> float:
            layer, noise = entry
            return noise / max(self.extra[layer.name], RESOLUTION * base)

        orders = (
            ranked,
            sorted(ranked, key=per_cost, reverse=True),
            sorted(ranked, key=lambda entry: self.extra[entry[0].name]),
        )
        sets = [self.needed([layer for layer, _ in order]) for order in orders]
        return min(sets, key=lambda found: self.cost(found.choices))

    def expect(self, count: int) -> None:
        """Let the progress bar know how many models may be left, for the time."""
        self.shown.total = self.shown.n + count
        self.shown.refresh()

    def enough(self, choices: dict[str, LayerOptions]) -> bool:
        """Say whether a variant keeps to the budget.

        Raises:
            OutOfTime: the time of the search is over.
        """
        if self.clock.is_over:
            raise OutOfTime
        before = self.variants.evaluations
        score = self.variants.score(choices)
        self.shown.update(self.variants.evaluations - before)
        LOGGER.info("tune: %s with %s otherwise", self.variants.metric.shown(score), len(choices))
        return score >= self.least

    def needed(self, order: Sequence[Layer]) -> Found:
        """Return layers that are enough in float, and none of them can be taken out.

        Args:
            order: all layers, the most wanted in float first.
        """
        self.expect(2 * len(order).bit_length())
        first = order[: self.shortest(order)]
        self.expect(2 * len(first))
        found = Found(dict.fromkeys((layer.name for layer in first), IN_FLOAT), {})
        # Without the last one, the budget is known not to be kept.
        self.put_back(found, first[-1:])
        # Costly ones first; where layers are counted, the least suspect one.
        self.put_back(
            found, sorted(first[-2::-1], key=lambda layer: -self.extra.get(layer.name, 0.0))
        )
        return found

    def shortest(self, order: Sequence[Layer]) -> int:
        """Return how many layers from the first one on are enough in float."""

        def begun(count: int) -> dict[str, LayerOptions]:
            return {layer.name: IN_FLOAT for layer in order[:count]}

        def holds(count: int, *next_ones: int) -> bool:
            self.variants.ahead(map(begun, (count, *(n for n in next_ones if 0 < n < len(order)))))
            return self.enough(begun(count))

        too_few, count = 0, 1
        while count < len(order) and not holds(
            count, 2 * count
        ):  # with all of them it is the float model
            too_few, count = count, min(2 * count, len(order))
        while count - too_few > 1:
            middle = (count + too_few) // 2
            # The next middle is one of two, as the answer is.
            ahead = ((too_few + middle) // 2, (middle + count) // 2)
            too_few, count = (too_few, middle) if holds(middle, *ahead) else (middle, count)
        return count

    def put_back(self, found: Found, layers: Sequence[Layer]) -> None:
        """Quantize layers again as the budget allows, as many at once as possible."""
        left = [layers] if layers else []  # parts, the next one at the end
        while left:
            part = left.pop()
            fewer = _without(found.choices, part)
            half = len(part) // 2
            parts = [part[half:], part[:half]] if half else []
            if_not, if_so = [*left, *parts][-1:], left[-1:]
            ahead = [_without(found.choices, following) for following in if_not]
            ahead += [_without(fewer, following) for following in if_so]
            self.variants.ahead([fewer, *ahead])
            if self.enough(fewer):
                found.choices = fewer
            elif parts:
                left += parts
            else:
                found.without[part[0].name] = self.variants.score(fewer)

    def cheapen(self, found: Found, layer: Layer, following: Sequence[Layer]) -> None:
        """Give a layer the first alternative to float that the budget allows, or the cheapest.

        Workers go on with the following layers, as if this one stayed in float.
        """
        in_float = self.variants.plan(found.choices)
        best = found.choices
        least = self.cost(best) if self.measure else 0.0
        for choices in self.allowed(found, layer, in_float, following):
            if self.measure is None:
                best = choices
                break
            if (cost := self.cost(choices)) < least:
                best, least = choices, cost
        found.choices = best

    def allowed(
        self, found: Found, layer: Layer, in_float: str | None, following: Sequence[Layer]
    ) -> Iterator[dict[str, LayerOptions]]:
        """Yield choices within the budget with an alternative for a layer in place of float."""

        def of(layers: Sequence[Layer]) -> list[dict[str, LayerOptions]]:
            several = ((layer.name, options) for layer in layers for options in self.alternatives)
            return [{**found.choices, name: options} for name, options in several]

        several = of([layer])
        self.variants.ahead([*several, *of(following)])
        for choices in several:
            plan = self.variants.plan(choices)
            if plan is not None and plan != in_float and self.enough(choices):
                yield choices

    def cost(self, choices: dict[str, LayerOptions]) -> float:
        """Return the cost of a variant."""
        assert self.measure is not None
        return self.measure(self.variants.model_of(choices))


def _without(choices: dict[str, LayerOptions], layers: Sequence[Layer]) -> dict[str, LayerOptions]:
    names = {layer.name for layer in layers}
    return {name: options for name, options in choices.items() if name not in names}
