"""`bulk_translate.py`, except that one shard kills whoever translates it."""

import os
import signal
import sys

import bulk_shards
import bulk_translate
from keras_transformer.errors import exit_status

translated = bulk_shards.Job._translated


def deadly(job, shard):
    if shard.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return translated(job, shard)


if __name__ == "__main__":
    bulk_shards.Job._translated = deadly  # type: ignore[method-assign]
    given = bulk_translate.parser().parse_args()
    sys.exit(exit_status(lambda: bulk_translate.bulk_translate(given)))
