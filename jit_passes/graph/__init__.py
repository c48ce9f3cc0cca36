"""Graphs: the typed view and the editor, differences, and whether two modules are equal."""
