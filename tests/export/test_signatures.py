"""Exports that rebuild the model from its weights refuse a model with other parts."""

from functools import partial

import keras
import pytest
from keras import ops

from export.onnx import export_onnx
from export.saved_model import export_saved_model
from export.signatures import Decoding, TrainedRun, model_of_precision, require_own_parts
from export.tflite import export_tflite
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.models.transformer import Transformer


@keras.saving.register_keras_serializable(package="tests")
class GeluFeedForward(FeedForward):
    def call(self, x):
        x = ops.gelu(ops.matmul(x, self.kernel_in) + self.bias_in)
        return ops.matmul(x, self.kernel_out) + self.bias_out


class OtherTransformer(Transformer):
    pass


def copy_of(model, kind=Transformer):
    return kind(
        **{key: value for key, value in model.get_config().items() if key not in ("name", "trainable", "dtype")}
    )


def put(layer, name, part):
    """Puts another part into a layer that is built, which Keras locks."""
    layer._tracker.unlock()
    setattr(layer, name, part)
    layer._tracker.lock()


def gelu(model):
    block = model.decoder_blocks[1]
    part = GeluFeedForward(block.intermediate_dim)
    part.build((None, None, model.hidden_dim))
    put(block, "feed_forward", part)


def narrow_norm(model):
    model.encoder_blocks[0].feed_forward_residual.norm.epsilon = 0.1


def one_more(model):
    put(model.encoder_stack, "blocks", [*model.encoder_blocks, model.encoder_blocks[0]])


OTHER_TYPE = r"FeedForward at model\.decoder_stack\.blocks\[1\]\.feed_forward; received a model with GeluFeedForward"
CHANGES = {
    gelu: OTHER_TYPE,
    narrow_norm: r"1e-06 at model\.encoder_stack\.blocks\[0\]\.feed_forward_residual\.norm\.epsilon; .* with 0.1",
    one_more: r"nothing at model\.encoder_stack\.blocks\[2\]; received a model with EncoderBlock",
}
EXPORTS = {
    "onnx in float32": partial(export_onnx, precision="float32"),
    "saved_model in float16": partial(export_saved_model, precision="float16"),
    "tflite in int8": partial(export_tflite, precision="int8"),
}


def test_an_unknown_part_is_refused_by_name_and_nothing_is_written_where_the_model_is_not_traced(
    tiny_model, tokenizer, tmp_path
):
    model = copy_of(tiny_model)
    gelu(model)
    for what, export in EXPORTS.items():
        with pytest.raises(RequestError, match=f"^{what} can write only {OTHER_TYPE}"):
            export(TrainedRun(Translator(model, tokenizer)), tmp_path)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert model_of_precision(model, "float32") is model


def test_every_part_and_option_counts_but_those_that_act_in_training_alone(tiny_model):
    for change, message in CHANGES.items():
        model = copy_of(tiny_model)
        model.encoder_blocks[0].self_attention_residual.dropout.rate = 0.9
        require_own_parts(model, "onnx", "float32")
        change(model)
        with pytest.raises(RequestError, match=message):
            require_own_parts(model, "onnx", "float32")
    with pytest.raises(RequestError, match="only Transformer at model; received a model with OtherTransformer"):
        require_own_parts(copy_of(tiny_model, OtherTransformer), "onnx", "float32")


def test_the_best_alone_takes_the_same_search():
    assert Decoding(4).n_best == 4
    assert Decoding(4, 0.8, 12).one_best() == Decoding(4, 0.8, 12, n_best=1)
    assert Decoding(4).one_best() != Decoding(4)
