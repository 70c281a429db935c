# fastload with its GPU backends.
# Build: docker build -t fastload .
# Run:   docker run --gpus all -v /data:/data fastload --version
FROM nvidia/cuda:12.6.3-runtime-ubuntu24.04

RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv python3-dev g++ libjpeg-dev && rm -rf /var/lib/apt/lists/*
COPY . /opt/src
RUN python3 -m venv /opt/fastload && /opt/fastload/bin/pip install --no-cache-dir -c /opt/src/constraints.txt "/opt/src[dali,nvjpeg]"
RUN useradd --create-home fastload
USER fastload
WORKDIR /home/fastload
ENTRYPOINT ["/opt/fastload/bin/fastload"]
