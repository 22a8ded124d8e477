"""The certificate: runs every artefact in a process of its own and compares it with the model, text by text."""
