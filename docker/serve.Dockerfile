# Serves exports by `keras-transformer serve`, in an environment without TensorFlow and Keras. Build it at the root of the
# repository (this file has not been built yet; its commands were run outside a container):
#     docker build -f docker/serve.Dockerfile -t keras-transformer-serve .
#     docker run --rm --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 -v "$PWD/exported:/models:ro" keras-transformer-serve /models/mine
FROM python:3.11-slim AS build

WORKDIR /source
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY keras_transformer keras_transformer
COPY export export
# The versions are the lock's.
RUN sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.lock > constraints.txt \
 && python -m venv /opt/serve \
 && /opt/serve/bin/pip install --no-cache-dir -c constraints.txt ".[serve]"

FROM python:3.11-slim

COPY --from=build /opt/serve /opt/serve
# Any user may run it, and every file that it writes is in /tmp.
ENV PATH=/opt/serve/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", "import http.client as http; asked = http.HTTPConnection('127.0.0.1', 8000, timeout=4); asked.request('GET', '/health/ready'); raise SystemExit(asked.getresponse().status != 200)"]
ENTRYPOINT ["keras-transformer", "serve", "--host", "0.0.0.0", "--port", "8000"]
# What follows the image's name in `docker run` stands in place of this.
CMD ["demo"]
