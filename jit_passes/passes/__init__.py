"""Passes: the registry, pipelines, rewrite rules, schedules and packages with passes."""
