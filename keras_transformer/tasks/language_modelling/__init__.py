"""Goes on with a text, or answers it."""
