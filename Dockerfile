# A static binary in an image without anything else, run by an unprivileged user.
#
#   docker build --build-arg VERSION=v1.2.3 -t ratelimitd .
#   docker run -v "$PWD/rules:/srv/runtime_data/current/config" ratelimitd     # your rules
#   docker run ratelimitd --rules config/domains                              # the examples in the image
#
# The same sources and the same Go give the same binary, byte for byte: scripts/rootfs leaves out paths, times and ids.
FROM golang:1.26 AS build
ARG VERSION=
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN VERSION=$VERSION scripts/rootfs /out

FROM scratch
# Envoy Gateway and Istio run /bin/ratelimit, a link to the same binary.
COPY --from=build /out /
USER 65532:65532
EXPOSE 8081 8080 6070
# The image has no shell and no curl: the binary has a command for the health check.
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s CMD ["/bin/ratelimitd", "healthcheck"]
ENTRYPOINT ["/bin/ratelimitd"]
