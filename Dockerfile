# syntax=docker/dockerfile:1
# The one binary, static, in an image small enough to read: no compiler, no
# package manager in use, not root. Health checks depend on what a container is
# run as and are left to docker-compose.yml.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w' -o /refundgate ./cmd/refundgate

FROM alpine:3.22
RUN apk add --no-cache ca-certificates
COPY --from=build /refundgate /usr/local/bin/refundgate
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/refundgate"]
