"""Starts to sample an epoch of the tokenised corpus in a folder, and kills itself."""

import os
import signal
import sys

from keras_transformer.text.subword_sampling import SampledEpochs
from keras_transformer.text.tokenized import TokenizedCorpus

sampled = SampledEpochs(TokenizedCorpus.open(sys.argv[1]), 0.1, seed=1)
sampled._start(0)
os.kill(os.getpid(), signal.SIGKILL)
