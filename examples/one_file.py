"""Teaches the Transformer of "Attention Is All You Need" to translate number words, all of it in this file.

    pip install keras tensorflow num2words
    python examples/one_file.py

It trains for less than two minutes on two cores, and then translates nearly all numbers that it has never seen.
The paper is Vaswani et al. 2017, arXiv 1706.03762; sections and equations here are the paper's, and so are the names.
Letters of shapes: B sentences, T and S words of queries and keys, h heads, d_k = d_model / h, V words known.
"""

import random
import re
import time

import keras
import numpy as np
from keras import ops
from num2words import num2words

N, D_MODEL, D_FF, H = 2, 128, 512, 4  # Table 3: the base model has 6, 512, 2048 and 8
P_DROP, EPSILON_LS = 0.1, 0.1
WARMUP_STEPS, BATCH, STEPS = 4_000, 128, 800

PAD, UNKNOWN, START, END = range(4)  # ids that are no words; the package has the same, UNKNOWN for words it lacks


# 3.2 Attention


def padding_mask(ids):
    """Hides the padding of keys (B, S) from every query: booleans (B, 1, 1, S), True = visible."""
    return ops.not_equal(ids, PAD)[:, None, None, :]


def causal_mask(length):
    """Hides later positions, so that a prediction depends on the words before it alone (3.2.3): (T, T)."""
    positions = ops.arange(length)
    return positions[:, None] >= positions[None, :]


def attention(q, k, v, mask):
    """softmax(Q Kᵀ / √d_k) V (equation 1): (B, h, T, d_k)."""
    scores = ops.matmul(q, ops.swapaxes(k, -1, -2)) / k.shape[-1] ** 0.5  # (B, h, T, S)
    scores = ops.where(mask, scores, -1e9)  # −∞ in the paper (3.2.3); finite, so that a row of padding is not NaN
    return ops.matmul(ops.softmax(scores), v)


class MultiHeadAttention(keras.layers.Layer):
    """Concat(head_1, …, head_h) W_O with head_i = attention(Q W_Q, K W_K, V W_V) (3.2.2)."""

    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.w_q, self.w_k, self.w_v, self.w_o = (self.add_weight((d_model, d_model)) for _ in range(4))

    def call(self, x, memory, mask):
        q, k, v = ops.matmul(x, self.w_q), ops.matmul(memory, self.w_k), ops.matmul(memory, self.w_v)
        heads = attention(self.split(q), self.split(k), self.split(v), mask)  # (B, h, T, d_k)
        return ops.matmul(ops.reshape(ops.swapaxes(heads, 1, 2), ops.shape(x)), self.w_o)

    def split(self, x):
        """(B, T, d_model) → (B, h, T, d_k)."""
        batch, length, d_model = ops.shape(x)
        return ops.swapaxes(ops.reshape(x, (batch, length, self.h, d_model // self.h)), 1, 2)


# 3.3 Position-wise feed-forward networks


class FeedForward(keras.layers.Layer):
    """max(0, x W_1 + b_1) W_2 + b_2 (equation 2)."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_1, self.b_1 = self.add_weight((d_model, d_ff)), self.add_weight((d_ff,), "zeros")
        self.w_2, self.b_2 = self.add_weight((d_ff, d_model)), self.add_weight((d_model,), "zeros")

    def call(self, x):
        return ops.matmul(ops.relu(ops.matmul(x, self.w_1) + self.b_1), self.w_2) + self.b_2


# 3.1 Encoder and decoder stacks (Figure 1)


class AddAndNorm(keras.layers.Layer):
    """LayerNorm(x + Dropout(Sublayer(x))) (3.1 and 5.4)."""

    def __init__(self, p_drop):
        super().__init__()
        self.norm, self.dropout = keras.layers.LayerNormalization(epsilon=1e-6), keras.layers.Dropout(p_drop)

    def call(self, x, of_sublayer):
        return self.norm(x + self.dropout(of_sublayer))


class EncoderLayer(keras.layers.Layer):
    """Self-attention, then feed-forward (Figure 1, left)."""

    def __init__(self, d_model, d_ff, h, p_drop):
        super().__init__()
        self.self_attention, self.attention_residual = MultiHeadAttention(d_model, h), AddAndNorm(p_drop)
        self.feed_forward, self.feed_forward_residual = FeedForward(d_model, d_ff), AddAndNorm(p_drop)

    def call(self, x, mask):
        x = self.attention_residual(x, self.self_attention(x, x, mask))
        return self.feed_forward_residual(x, self.feed_forward(x))


class DecoderLayer(keras.layers.Layer):
    """Masked self-attention, attention to the encoder's output, feed-forward (Figure 1, right)."""

    def __init__(self, d_model, d_ff, h, p_drop):
        super().__init__()
        self.self_attention, self.attention_residual = MultiHeadAttention(d_model, h), AddAndNorm(p_drop)
        self.cross_attention, self.cross_residual = MultiHeadAttention(d_model, h), AddAndNorm(p_drop)
        self.feed_forward, self.feed_forward_residual = FeedForward(d_model, d_ff), AddAndNorm(p_drop)

    def call(self, x, mask, memory, memory_mask):
        x = self.attention_residual(x, self.self_attention(x, x, mask))
        x = self.cross_residual(x, self.cross_attention(x, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward(x))


# 3.4 Embeddings and softmax, 3.5 positional encoding


def positional_encoding(length, d_model):
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same angle: (length, d_model)."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model).astype("float32")


class Transformer(keras.Model):
    """Figure 1: ids of a source (B, S) and of the target so far (B, T) → logits of each next word (B, T, V).

    The softmax that follows is in the loss. Source, target and output share one matrix (3.4).
    """

    def __init__(self, vocabulary_size, n=N, d_model=D_MODEL, d_ff=D_FF, h=H, p_drop=P_DROP, max_length=512):
        super().__init__()
        normal = keras.initializers.RandomNormal(stddev=d_model**-0.5)
        self.embedding = self.add_weight((vocabulary_size, d_model), normal)
        self.positions = positional_encoding(max_length, d_model)
        self.dropout = keras.layers.Dropout(p_drop)
        self.encoder = [EncoderLayer(d_model, d_ff, h, p_drop) for _ in range(n)]
        self.decoder = [DecoderLayer(d_model, d_ff, h, p_drop) for _ in range(n)]

    def call(self, inputs):
        source, target = inputs
        return self.decode(target, self.encode(source), padding_mask(source))

    def encode(self, source):
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, padding_mask(source))
        return x

    def decode(self, target, memory, memory_mask):
        x = self.embed(target)
        mask = ops.logical_and(causal_mask(ops.shape(target)[1]), padding_mask(target))  # (B, 1, T, T)
        for layer in self.decoder:
            x = layer(x, mask, memory, memory_mask)
        return ops.matmul(x, ops.transpose(self.embedding))

    def embed(self, ids):
        """Embeddings times √d_model, plus the encoding of positions; dropout of the sum (3.4, 3.5, 5.4)."""
        x = ops.take(self.embedding, ids, axis=0) * self.embedding.shape[-1] ** 0.5
        return self.dropout(x + self.positions[: ids.shape[1]])


# 5 Training


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """d_model^−0.5 · min(step^−0.5, step · warmup_steps^−1.5) (equation 3)."""

    def __init__(self, d_model, warmup_steps):
        self.d_model, self.warmup_steps = d_model, warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1  # Keras counts from 0, the paper from 1
        return self.d_model**-0.5 * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)


def smoothed_loss(labels, logits):
    """Cross-entropy with smoothed labels (5.4), the mean over words that are no padding."""
    log_p = ops.log_softmax(logits)
    of_label = ops.squeeze(ops.take_along_axis(log_p, labels[..., None], axis=-1), -1)
    losses = -(1 - EPSILON_LS) * of_label - EPSILON_LS * ops.mean(log_p, axis=-1)
    real = ops.cast(ops.not_equal(labels, PAD), "float32")
    return ops.sum(losses * real) / ops.sum(real)


def train(model, sources, targets, steps, d_model=D_MODEL, seed=1):
    """Takes steps of Adam with the paper's constants (5.3), each on a batch that is drawn; yields each step's loss."""
    optimizer = keras.optimizers.Adam(LearningRate(d_model, WARMUP_STEPS), beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    model.compile(optimizer, smoothed_loss)
    draw = np.random.default_rng(seed)
    decoder_inputs = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=START)  # "shifted right" (Figure 1)
    for _ in range(steps):
        batch = draw.integers(len(sources), size=BATCH)
        model.reset_metrics()  # else Keras gives the mean of all losses so far
        yield float(model.train_on_batch((sources[batch], decoder_inputs[batch]), targets[batch]))


# 6.1 Translating, greedily: the likeliest word is taken at each position


def greedy(model, sources):
    """Ids (B, S) → ids of the translations, each with its end, then padding."""
    limits = np.sum(sources != PAD, axis=1) - 1 + 50  # "input length + 50"
    memory, memory_mask = model.encode(sources), padding_mask(sources)
    target, going = np.array([[START, PAD]] * len(sources)), np.full(len(sources), True)
    while going.any():  # the last column is for the next word; no position sees it, as it comes later
        logits = ops.convert_to_numpy(model.decode(target, memory, memory_mask))[:, -2]
        likeliest = logits[:, END:].argmax(axis=-1) + END  # the end, or a word
        target[:, -1] = np.where(going, likeliest, PAD)
        going &= (likeliest != END) & (target.shape[1] - 1 < limits)
        target = np.pad(target, ((0, 0), (0, 1)), constant_values=PAD)
    return target[:, 1:-1]


# Number words: "twenty-one" is two words here, and "einundzwanzig" three: ein, und, zwanzig

GERMAN = [num2words(n, lang="de") for n in (*range(20), *range(20, 100, 10))] + ["ein", "und", "hundert", "tausend"]
GERMAN_WORDS = re.compile("|".join(sorted(GERMAN, key=len, reverse=True)))


def spelled(number):
    """The English words and the German words of a number."""
    return re.findall(r"\w+", num2words(number)), GERMAN_WORDS.findall(num2words(number, lang="de"))


def as_ids(sentences, id_of):
    """Lists of words → ids (B, S), each sentence with its end, then padding."""
    ids = np.full((len(sentences), max(map(len, sentences)) + 1), PAD)
    for row, words in zip(ids, sentences, strict=True):
        row[: len(words) + 1] = [*(id_of[word] for word in words), END]
    return ids


def main():
    """Trains, then translates 1,000 numbers that no step has seen."""
    keras.utils.set_random_seed(1)
    numbers = random.sample(range(1_000_000), 21_000)
    english, german = zip(*map(spelled, numbers), strict=True)
    words = ["<pad>", "<unknown>", "<start>", "<end>", *sorted({word for side in (*english, *german) for word in side})]
    id_of = {word: place for place, word in enumerate(words)}
    sources, targets = as_ids(english, id_of), as_ids(german, id_of)
    model, start_time = Transformer(len(words)), time.monotonic()
    for step, loss in enumerate(train(model, sources[1_000:], targets[1_000:], STEPS), start=1):
        if step % 100 == 0:
            print(f"step {step:,}: loss {loss:.3f}, {time.monotonic() - start_time:.0f} seconds", flush=True)
    found = [[words[place] for place in row if place > END] for row in greedy(model, sources[:1_000])]
    right = np.mean([one == other for one, other in zip(found, german, strict=False)])
    print(f"{right:.1%} of 1,000 held-out numbers are translated exactly")
    for number, translation in zip(numbers[:5], found, strict=False):
        print(f"{num2words(number)} → {''.join(translation)}")


if __name__ == "__main__":
    main()
