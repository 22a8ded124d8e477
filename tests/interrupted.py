"""A run as one that was killed after an earlier checkpoint than its last."""

import json
import shutil
from pathlib import Path


def interrupt(whole: str, folder: str, last_step: int) -> None:
    """Copies a finished run and takes away what its last checkpoint and its end wrote."""
    shutil.copytree(whole, folder)
    for path in Path(folder, "checkpoints").glob(f"{last_step:08}.*.npz"):
        path.unlink()
    Path(folder, "model.keras").unlink()
    config = json.loads(Path(folder, "config.json").read_text())
    del config["weights"]
    Path(folder, "config.json").write_text(json.dumps(config))
