package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHealthcheck(t *testing.T) {
	rules := t.TempDir()
	if err := os.WriteFile(filepath.Join(rules, "a.yaml"), []byte("domain: d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, nil, "--rules", rules)
	_, port, err := net.SplitHostPort(p.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	check := func(args ...string) (int, string) {
		var out, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"healthcheck", "--port", port}, args...), &out, &stderr)
		return code, out.String() + stderr.String()
	}
	// A client on the same machine reaches a wildcard address through loopback. The service listens only on IPv4, as one
	// with HOST=:: does on a machine without IPv6.
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "", "::"} {
		if code, said := check("--host", host); code != 0 || said != "OK\n" {
			t.Errorf("healthcheck --host %q: exit code %d, %q", host, code, said)
		}
	}
	if code, said := check("--path", "readyz"); code != 0 {
		t.Errorf("readyz: exit code %d, %q", code, said)
	}
	if code, said := check("--path", "/nothing"); code != 1 || !strings.Contains(said, "404") {
		t.Errorf("a page that is not there: exit code %d, %q", code, said)
	}
	p.Stop(t)
	if code, said := check(); code != 1 || !strings.Contains(said, "refused") {
		t.Errorf("after the service has stopped: exit code %d, %q", code, said)
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]string{
		"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1 127.0.0.1", "::1": "::1", "10.1.2.3": "10.1.2.3", "localhost": "localhost",
	} {
		if got := strings.Join(loopback(host), " "); got != want {
			t.Errorf("loopback(%q) = %q, want %q", host, got, want)
		}
	}
}
