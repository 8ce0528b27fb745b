# The base of every server image: Python, nemo_gym's server part and what it imports, byte-compiled. No pip, no Docker
# SDK. Builds with the classic builder of engine 20.10 and with BuildKit. The context holds this file,
# requirements.txt (images/requirements.txt), ca-bundle.crt (may be empty) and nemo_gym/ (its server part only).
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
# By these labels the stages are found that no build uses any more; the newest of each is kept as the build cache.
LABEL nemo-gym.stage=build
# Where this host's pip looks; its CA bundle. Neither reaches the final stage.
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
COPY requirements.txt ca-bundle.crt /tmp/
RUN set -eu; \
    if ! python3 -c 'import ensurepip, venv'; then echo 'The Python image needs venv and ensurepip (Debian: python3-venv).'; exit 1; fi; \
    if [ -s /tmp/ca-bundle.crt ]; then export PIP_CERT=/tmp/ca-bundle.crt; fi; \
    python3 -m venv /tmp/pip; \
    python3 -m venv --without-pip /opt/gym; \
    /tmp/pip/bin/pip --python /opt/gym/bin/python install --disable-pip-version-check --no-cache-dir --no-compile \
        --require-hashes --no-deps --only-binary :all: -r /tmp/requirements.txt; \
    rm -rf /tmp/pip; \
    find /opt/gym/lib '(' -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' ')' -delete; \
    # An image's files do not change, so no start needs to compare them with their sources.
    python3 -m compileall -q --invalidation-mode unchecked-hash /opt/gym/lib; \
    # What is copied over the root has its folders with their times.
    mkdir -p /out/opt; \
    mv /opt/gym /out/opt/gym; \
    find /out -exec touch -h -d @315532800 '{}' +

FROM build AS package
LABEL nemo-gym.stage=package
COPY nemo_gym /tmp/nemo_gym
RUN set -eu; \
    site=$(/out/opt/gym/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    site="/package${site#/out}"; \
    mkdir -p "$site"; \
    cp -R /tmp/nemo_gym "$site/nemo_gym"; \
    chmod -R u=rwX,go=rX /package; \
    python3 -m compileall -q --invalidation-mode unchecked-hash -s /package "$site"; \
    find /package -exec touch -h -d @315532800 '{}' +

FROM ${PYTHON_IMAGE}
# Public Python images come without compiled modules, and a container's file system is read-only. Whatever is written
# gets a fixed time, so that the same files give the same layers on every machine.
RUN touch /dev/shm/began \
    && python3 -m compileall -q -j 0 -x '/(test|tests|idlelib|site-packages|dist-packages)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && groupadd --gid 10001 gym \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gym \
    && mkdir -p /opt/gym /opt/server/app /opt/server/lib \
    && find / -xdev -newer /dev/shm/began ! -path '/etc/host*' ! -path '/etc/resolv.conf' \
        -exec touch -h -d @315532800 '{}' +
COPY --from=build /out/ /
COPY --from=package /package/ /
ENV PATH=/opt/gym/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/server/lib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYDANTIC_DISABLE_PLUGINS=__all__ \
    HOME=/tmp
WORKDIR /opt/server/app
USER gym
EXPOSE 8000
CMD ["python", "app.py"]
