# Serve models over HTTP, as nobody.
#
#   docker build -t elman .
#   docker run --rm --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 -v "$PWD/runs:/runs:ro" elman
#
# Arguments after the image's name replace the last line: options and models of `elman serve`.

FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN python -m venv /opt/elman
ENV PATH=/opt/elman/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# PyPI's torch for Linux brings CUDA, gigabytes that a server without a GPU does not need.
RUN pip install -c constraints.txt --index-url https://download.pytorch.org/whl/cpu torch
RUN pip install -c constraints.txt ".[serve,speed]"

FROM python:3.12-slim
COPY --from=build /opt/elman /opt/elman
# Nobody has no home: what is cached goes to /tmp.
ENV PATH=/opt/elman/bin:$PATH PYTHONUNBUFFERED=1 ELMAN_CACHE=/tmp/elman NUMBA_CACHE_DIR=/tmp/numba
USER nobody
WORKDIR /runs
EXPOSE 8000
HEALTHCHECK --start-period=30s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["elman", "serve", "--host", "0.0.0.0"]
CMD ["/runs"]
