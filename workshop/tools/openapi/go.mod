// The tool that describes the admin API as OpenAPI, pinned. It has a module of its own because the tools of workshop/tools/go.mod need other
// versions of the same dependencies.
module github.com/ratelimitd/ratelimitd/workshop/tools/openapi

go 1.26.0

tool github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2

require (
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.31.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260921155816-b14227669459 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260918162117-cecb64721679 // indirect
	google.golang.org/grpc v1.84.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
