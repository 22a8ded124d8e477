# TensorFlow Serving with an exported translator inside. Build it at the root of the repository, after
# `python -m export runs/demo` (this file has not been built yet):
#     docker build -f docker/serving.Dockerfile --build-arg EXPORT=exported/demo -t translator .
#     docker run --rm -p 127.0.0.1:8500:8500 -p 127.0.0.1:8501:8501 translator
ARG TAG=latest
FROM tensorflow/serving:${TAG}

ARG EXPORT=exported/demo
COPY docker/models.config docker/batching.config /serving/
COPY ${EXPORT}/saved_model /models/translator/1
# The image's entry point starts the server, and hands these on.
CMD ["--model_config_file=/serving/models.config", "--enable_batching", "--batching_parameters_file=/serving/batching.config"]
