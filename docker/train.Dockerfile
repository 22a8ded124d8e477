# Trains, translates and exports. Build it at the root of the repository (this file has not been built yet):
#     docker build -f docker/train.Dockerfile -t keras-transformer .
#     docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD:/work" keras-transformer train --out runs/demo
# For NVIDIA GPUs, build with `--build-arg GPU=1` and run with `--gpus all`.
FROM python:3.11-slim

ARG EXTRAS=export,images
ARG GPU=
WORKDIR /source
COPY requirements.lock requirements-gpu.txt pyproject.toml README.md LICENSE ./
COPY keras_transformer keras_transformer
COPY export export
# The versions are the lock's. Packages that are only in other extras come in the newest version that fits.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.lock > constraints.txt \
 && if [ -z "$GPU" ]; then \
      pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"; \
    else \
      pip install --no-cache-dir -c constraints.txt -r requirements-gpu.txt && pip install --no-cache-dir --no-deps .; \
    fi \
 && rm -r /source/*

# Any user may run it, and every file that it writes is in /work or in /tmp.
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["keras-transformer"]
CMD ["--help"]
