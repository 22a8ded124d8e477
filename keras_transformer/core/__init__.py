"""Holds what every room stands on: files, folders, JSON schemas, late imports, the machine, and the tasks' registry."""
