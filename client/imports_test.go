package client_test

import (
	"os/exec"
	"strings"
	"testing"
)

// A program that uses the client imports grpc and protobuf through it, and nothing else of the service.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const module = "github.com/ratelimitd/ratelimitd/"
	seen := 0
	for path := range strings.FieldsSeq(string(out)) {
		ours, isOurs := strings.CutPrefix(path, module)
		first, _, _ := strings.Cut(path, "/")
		switch {
		case isOurs && (ours == "client" || ours == "limits" || ours == "proto/ratelimitd/v1"):
			seen++
		case isOurs:
			t.Errorf("it imports %s", path)
		case !strings.Contains(first, "."), strings.HasPrefix(path, "vendor/"):
		case strings.HasPrefix(path, "google.golang.org/grpc"), strings.HasPrefix(path, "google.golang.org/protobuf"):
		case strings.HasPrefix(path, "google.golang.org/genproto/googleapis/rpc"), strings.HasPrefix(path, "golang.org/x/"):
			// imports of grpc
		default:
			t.Errorf("it imports %s", path)
		}
	}
	if seen != 3 {
		t.Errorf("%d packages of this module:\n%s", seen, out)
	}
}
