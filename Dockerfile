# One static program, the CAs that the world trusts, and nothing else: no shell, no libc, no package manager.
#
#   docker build -t haulout .                              the image
#   docker build --target program --output out .           the program alone, as out/haulout
#
# The digest is that of the index of `rust:1.95-bookworm` (all architectures) of 2026-05-08. It was read in a fork's copy of
# the lists of docker-library/repo-info and not asked of the registry: `docker buildx imagetools inspect rust:1.95-bookworm`
# tells what the registry has, which may be a later rebuild.
FROM rust:1.95-bookworm@sha256:adad87df11151c18ba1689c3e1ea8d4810540a29c0adf4a3d69aec35d8ed8968 AS source
WORKDIR /source
RUN rustup target add "$(uname -m)-unknown-linux-musl"
COPY . .
# Debian's gcc does for ring's C and assembler, which call no libc; musl-tools would add nothing. Paths of this stage are
# written short, so that the same sources give the same program wherever they are built.
RUN target="$(uname -m)-unknown-linux-musl" \
    && export "CC_$(echo "$target" | tr - _)=gcc" \
    && export RUSTFLAGS="--remap-path-prefix=$CARGO_HOME=/cargo --remap-path-prefix=$PWD=/source" \
    && cargo build --release --locked --target "$target" --bin haulout \
    && mkdir /out \
    && cp "target/$target/release/haulout" /out/

FROM scratch AS program
COPY --from=source /out/haulout /haulout

# Last and from nothing, so that it can be built from a program on disk: tests/image.rs does it without an engine.
FROM scratch
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=source /out/haulout /haulout
LABEL org.opencontainers.image.title="haulout" \
      org.opencontainers.image.description="Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, because there is no /etc/passwd, and because Pod Security `restricted` wants to see that it is not root.
USER 65532:65532
ENTRYPOINT ["/haulout"]
CMD ["run"]
