# A static binary in an image that holds nothing else, run by nobody in particular.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /out/bin/ratelimitd ./cmd/ratelimitd \
 && ln -s ratelimitd /out/bin/ratelimit \
 && mkdir -p /out/config /out/etc/ssl/certs \
 && cp -r config/domains /out/config/domains \
 && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/

FROM scratch
# Envoy Gateway and Istio run /bin/ratelimit: it is the same binary.
COPY --from=build /out /
USER 65532:65532
EXPOSE 8081 8080 6070
ENTRYPOINT ["/bin/ratelimitd"]
