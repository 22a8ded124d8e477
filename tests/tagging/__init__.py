"""A seventh task, which the package does not know: a tag for each word. Its folder, and a line in `tasks.TASKS`."""
