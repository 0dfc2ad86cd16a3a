package destination

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

const maxHeadersFile = 64 << 10

// ownHeaders are those that the webhook's requests set themselves.
var ownHeaders = []string{"Connection", "Content-Length", "Content-Type", "Host", "Transfer-Encoding", "User-Agent"}

// readHeaders reads a file with one header per line. Empty lines and lines that start with # are skipped. An error
// gives the number of the line but not its text, which may be a secret.
func readHeaders(path string) (http.Header, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no file has no headers
	}
	text, err := files.Read(path, maxHeadersFile)
	if err != nil {
		return nil, fmt.Errorf("read the file of headers: %w", err)
	}
	headers := make(http.Header)
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		if !found || !isName(name) || strings.ContainsFunc(value, isControl) {
			return nil, fmt.Errorf("the file of headers %s: line %d is no header: write `Name: value`", path, i+1)
		}
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(ownHeaders, name) {
			return nil, fmt.Errorf("the file of headers %s: line %d: remove %s, which ratelimitd sets", path, i+1, name)
		}
		headers.Add(name, strings.TrimSpace(value))
	}
	return headers, nil
}

// nameBytes are the bytes allowed in a header's name.
const nameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"

func isName(name string) bool { return name != "" && strings.Trim(name, nameBytes) == "" }

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
