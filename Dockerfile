# An image with one static program and the public CA certificates. It has no shell, no libc and no package manager.
#
#   docker build -t haulout .                              the image
#   docker build --target program --output out .           only the program, as out/haulout, and the CAs
#
# `make image` makes the same image without an engine: .ci/oci-image reads the last stage.
#
# The digest is that of the index of `rust:1.95-bookworm` (all architectures) of 2026-05-08. Its source is a fork of
# docker-library/repo-info, not the registry. `docker buildx imagetools inspect rust:1.95-bookworm` shows the current digest
# in the registry, which may be a later rebuild.
FROM rust:1.95-bookworm@sha256:adad87df11151c18ba1689c3e1ea8d4810540a29c0adf4a3d69aec35d8ed8968 AS source
WORKDIR /source
RUN rustup target add "$(uname -m)-unknown-linux-musl"
COPY . .
# Debian's gcc is enough for ring's C and assembler code, which does not call libc, so musl-tools is not needed. Paths are
# remapped, so that the same sources give the same program in every build directory.
RUN target="$(uname -m)-unknown-linux-musl" \
    && export "CC_$(echo "$target" | tr - _)=gcc" \
    && export RUSTFLAGS="--remap-path-prefix=$CARGO_HOME=/cargo --remap-path-prefix=$PWD=/source" \
    && cargo build --release --locked --target "$target" --bin haulout \
    && mkdir /out \
    && cp "target/$target/release/haulout" /out/

FROM scratch AS program
COPY --from=source /etc/ssl/certs/ca-certificates.crt /ca-certificates.crt
COPY --from=source /out/haulout /haulout

# The last stage, from scratch, so that it can be built from a program on disk, as tests/image.rs does without an engine.
FROM scratch
COPY --from=source /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=source /out/haulout /haulout
COPY --from=source /source/LICENSE /licenses/LICENSE
COPY --from=source /source/THIRD-PARTY-NOTICES /licenses/THIRD-PARTY-NOTICES
LABEL org.opencontainers.image.title="haulout" \
      org.opencontainers.image.description="Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, because there is no /etc/passwd, and because Pod Security `restricted` must see that the user is not root.
USER 65532:65532
ENTRYPOINT ["/haulout"]
CMD ["run"]
