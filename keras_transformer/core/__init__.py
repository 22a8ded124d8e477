"""The ground of every room: files, folders, JSON schemas, late imports, the machine, and the registry of the tasks."""
