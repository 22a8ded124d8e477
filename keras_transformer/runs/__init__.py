"""What lies on disk: the folder of a run and the folder of its exports."""
