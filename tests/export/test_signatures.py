"""Exports that rebuild the model from its weights refuse a model with other parts."""

import pytest
from keras import ops

from export.artefacts import TrainedRun, model_of_precision, require_own_parts
from export.onnx import export_onnx
from export.saved_model import export_saved_model
from export.tflite import export_tflite
from keras_transformer.core.errors import RequestError
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.models import make_model, model_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.tasks.translation.pipeline import Translator


class GeluFeedForward(FeedForward):
    def call(self, x):
        return ops.matmul(ops.gelu(ops.matmul(x, self.kernel_in)), self.kernel_out)


class OtherTransformer(Transformer):
    pass


def put(layer, name, part):
    """Puts another part into a layer that is built, which Keras locks."""
    layer._tracker.unlock()
    setattr(layer, name, part)
    layer._tracker.lock()


def with_gelu(tiny_model):
    model = make_model(model_config(tiny_model))
    block = model.decoder_stack.blocks[1]
    part = GeluFeedForward(block.intermediate_dim)
    part.build((None, None, model.hidden_dim))
    put(block, "feed_forward", part)
    return model


OTHER_TYPE = r"FeedForward at model\.decoder_stack\.blocks\[1\]\.feed_forward; received a model with GeluFeedForward"


def test_an_unknown_part_is_refused_by_name_and_nothing_is_written_where_the_model_is_not_traced(
    tiny_model, tokenizer, tmp_path
):
    model = with_gelu(tiny_model)
    run = TrainedRun(Translator(model, tokenizer))
    with pytest.raises(RequestError, match=r"import `ops` from keras_transformer.* \(GeluFeedForward\)$"):
        export_onnx(run, tmp_path)
    for export, what, precision in ((export_saved_model, "saved_model", "float16"), (export_tflite, "tflite", "int8")):
        with pytest.raises(RequestError, match=f"^{what} in {precision} can write only {OTHER_TYPE}"):
            export(run, tmp_path, precision=precision)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert model_of_precision(model, "float32") is model


def test_every_part_and_option_counts_but_those_that_act_in_training_alone(tiny_model):
    model = make_model(model_config(tiny_model))
    model.encoder_stack.blocks[0].self_attention_residual.dropout.rate = 0.9
    require_own_parts(model, "onnx", "float32")
    model.encoder_stack.blocks[0].feed_forward_residual.norm.epsilon = 0.1
    place = r"model\.encoder_stack\.blocks\[0\]\.feed_forward_residual\.norm\.epsilon"
    with pytest.raises(RequestError, match=rf"1e-06 at {place}; .* with 0.1"):
        require_own_parts(model, "onnx", "float32")
    model = make_model(model_config(tiny_model))
    put(model.encoder_stack, "blocks", [*model.encoder_stack.blocks, model.encoder_stack.blocks[0]])
    with pytest.raises(RequestError, match=r"nothing at model\.encoder_stack\.blocks\[2\]; .* with EncoderBlock"):
        require_own_parts(model, "onnx", "float32")
    config = {key: value for key, value in tiny_model.get_config().items() if key not in ("trainable", "dtype")}
    with pytest.raises(RequestError, match="only Transformer at model; received a model with OtherTransformer"):
        require_own_parts(OtherTransformer(**config), "onnx", "float32")
