"""A seventh task, which the package does not know: a tag for each word. It is a folder, and a line in `TASKS`."""
