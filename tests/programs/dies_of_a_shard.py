"""A process that dies of the shard that it is given on standard input, with its job."""

import os
import pickle
import sys

if __name__ == "__main__":
    job, shard = pickle.load(sys.stdin.buffer)
    type(job.translator).__call__ = lambda *_: os._exit(9)
    job.finish(shard)
