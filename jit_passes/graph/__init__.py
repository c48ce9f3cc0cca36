"""Graphs: the typed view and the editor, what changed, whether two modules compute the same."""
