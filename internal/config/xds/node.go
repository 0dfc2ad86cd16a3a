package xds

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
)

// node identifies the client to the server.
func node(id string, metadata map[string]string) *corev3.Node {
	n := &corev3.Node{Id: id, UserAgentName: "ratelimitd",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}}
	for k, v := range metadata {
		n.Metadata.Fields[k] = structpb.NewStringValue(v)
	}
	return n
}

// ParseMetadata parses the metadata of a node: comma-separated key=value.
func ParseMetadata(text string) (map[string]string, error) { return pairs(text, "=") }

// ParseHeaders parses headers: comma-separated name:value.
func ParseHeaders(text string) (map[string]string, error) {
	headers, err := pairs(text, ":")
	if err != nil {
		return nil, err
	}
	for name, value := range headers {
		if err := checkHeader(strings.ToLower(name), value); err != nil {
			return nil, err
		}
	}
	return headers, nil
}

func checkHeader(name, value string) error {
	if strings.HasPrefix(name, "grpc-") {
		return fmt.Errorf("header %q: names that start with grpc- belong to gRPC", name)
	}
	for _, c := range []byte(name) {
		if ('a' > c || c > 'z') && ('0' > c || c > '9') && c != '-' && c != '_' && c != '.' {
			return fmt.Errorf("header %q: a name consists of letters, digits and the characters _ . -", name)
		}
	}
	if strings.HasSuffix(name, "-bin") {
		return nil // any bytes: gRPC encodes them
	}
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("header %q: a value consists of printable ASCII characters", name)
		}
	}
	return nil
}

func pairs(text, sign string) (map[string]string, error) {
	all := map[string]string{}
	if strings.TrimSpace(text) == "" {
		return all, nil
	}
	for i, pair := range strings.Split(text, ",") {
		key, value, found := strings.Cut(pair, sign)
		if key = strings.TrimSpace(key); !found || key == "" {
			// The error does not repeat the text, because it may be a password in a malformed header.
			return nil, fmt.Errorf("item %d of the list is not a pair: write key%svalue, with commas between pairs", i+1, sign)
		}
		all[key] = strings.TrimSpace(value)
	}
	return all, nil
}

func outgoing(headers map[string]string) metadata.MD { return metadata.New(headers) }
