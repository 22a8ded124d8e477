"""From text to batches, and back: corpora, vocabularies, sentences, batches, and the scores of translations."""
