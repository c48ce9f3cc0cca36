"""Graphs: the typed view and the editor, what changed, whether two modules compute the same."""

from .diff import diff_graphs, diff_text, format_graph
from .editor import GraphEditor
from .traits import Traits, Weighted
from .verify import Inputs, assert_equivalent
from .view import GraphView, NodeView, ValueView

__all__ = [
    "GraphEditor",
    "GraphView",
    "Inputs",
    "NodeView",
    "Traits",
    "ValueView",
    "Weighted",
    "assert_equivalent",
    "diff_graphs",
    "diff_text",
    "format_graph",
]
