"""Writes a run as SavedModel, ONNX and TFLite in the order of the command, without a certificate: RUN FOLDER."""

import sys
from pathlib import Path

from export.__main__ import DEFAULT_FORMATS
from export.artefacts import Decoding, open_run
from export.exporting import planned, write_artefacts

if __name__ == "__main__":
    run, folder = sys.argv[1:]
    write_artefacts(open_run(run), Path(folder), Decoding(3, 0.8, 12), planned(DEFAULT_FORMATS, ["float32"]))
