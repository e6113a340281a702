# autoresearchd as a user of its own. docs/operations.md says how to run it.
FROM python:3.12-slim

RUN apt-get update && apt-get install -y --no-install-recommends git openssh-client rsync \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 researcher

COPY . /src
# Add `train` for the bundled training tasks (torch, 1.2 GB), `local` or `llm` for models.
ARG EXTRAS=llm,mcp
RUN pip install --no-cache-dir -c /src/constraints.txt "/src[${EXTRAS}]" && rm -rf /src

# With `--user`, as for a mounted folder of one's own, there is no home: caches and settings go to a place for anybody.
RUN mkdir -m 1777 /home/anybody
ENV HOME=/home/anybody GIT_AUTHOR_NAME=autoresearchd GIT_AUTHOR_EMAIL=autoresearchd@localhost \
    GIT_COMMITTER_NAME=autoresearchd GIT_COMMITTER_EMAIL=autoresearchd@localhost
USER researcher
WORKDIR /work
ENTRYPOINT ["autoresearchd"]
CMD ["doctor"]
