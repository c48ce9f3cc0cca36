"""Disjoint sets that are united step by step."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class DisjointSets(Generic[Item]):
    """Sets of items, each named by one of them; an item that is asked for is a set of its own."""

    def __init__(self) -> None:
        self._parent: dict[Item, Item] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(self._parent)

    def root(self, item: Item) -> Item:
        """Return the item that the set is named by."""
        parent = self._parent
        parent.setdefault(item, item)
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def unite(self, one: Item, other: Item) -> None:
        """Unite the sets that the two are in."""
        self._parent[self.root(one)] = self.root(other)
