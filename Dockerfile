# A static binary in an image without anything else, run by an unprivileged user.
#
#   docker build --build-arg VERSION=v1.2.3 -t ratelimitd .
#   docker run -v "$PWD/rules:/srv/runtime_data/current/config" ratelimitd     # your rules
#   docker run ratelimitd --rules config/domains                              # the examples in the image
#
# The same sources and the same Go give the same binary, byte for byte: workshop/scripts/rootfs leaves out paths, times and ids.
# The compiler runs on the machine that builds, whatever the platform of the image.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26 AS build
ARG VERSION=
ARG COMMIT=
ARG DATE=
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
# .dockerignore leaves only what the binary is made of: a change of any other file does not compile again. After a change
# of a source file, the caches keep what has been downloaded and compiled.
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH VERSION=$VERSION COMMIT=$COMMIT DATE=$DATE workshop/scripts/rootfs /out

FROM scratch
# Envoy Gateway and Istio run /bin/ratelimit, a link to the same binary.
COPY --from=build /out /
USER 65532:65532
# gRPC and HTTP. The debug port, 6070, is on loopback in the container unless DEBUG_HOST says otherwise.
EXPOSE 8081 8080
# The image has no shell and no curl: the binary has a command for the health check. podman ignores this line, unless it
# builds with --format docker.
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s CMD ["/bin/ratelimitd", "healthcheck"]
ENTRYPOINT ["/bin/ratelimitd"]
