package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// healthcheckCommand is the subcommand that checks the health of the service on the same machine, for a container
// without a shell and curl. It reads the same HOST and PORT as serve.
type healthcheckCommand struct {
	Host    string        `env:"HOST" default:"0.0.0.0" help:"Address of the server's HTTP port. 0.0.0.0: this machine."`
	Port    int           `env:"PORT" range:"0..65535" default:"8080" help:"HTTP port of the server."`
	Path    string        `default:"/healthcheck" help:"Path to request: /healthcheck, /readyz or /livez."`
	Timeout time.Duration `default:"2s" help:"How long to wait for the answer."`
}

func (*healthcheckCommand) about() about {
	return about{
		examples: []example{
			{"in a container without a shell", "ratelimitd healthcheck"},
			{"check only whether the server runs", "ratelimitd healthcheck --port 9080 --path /livez"},
		},
		exits: []exitCode{{0, "The server is healthy."}, {1, "The server is not healthy, or does not answer."},
			{2, "The command line is invalid."}},
	}
}

// Run succeeds if the service is healthy.
func (h *healthcheckCommand) Run(ctx context.Context, s streams) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	var resp *http.Response
	var failures []error
	for _, host := range loopback(h.Host) {
		url := "http://" + net.JoinHostPort(host, strconv.Itoa(h.Port)) + "/" + strings.TrimPrefix(h.Path, "/")
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("request health: %w", err)
		}
		if resp, err = http.DefaultClient.Do(req); err == nil {
			break
		}
		failures = append(failures, err)
	}
	if resp == nil {
		return fmt.Errorf("request health: %w", errors.Join(failures...))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("read health: %w", err)
	}
	said := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return errors.New("not healthy: " + resp.Status + ": " + said)
	}
	_, err = fmt.Fprintln(s.out, said)
	return err
}

// loopback lists the addresses at which this machine reaches a listener: the listener's address, or loopback if it
// listens on all addresses. A machine without IPv6 has no ::1, and a listener on :: listens on IPv4.
func loopback(host string) []string {
	ip := net.ParseIP(host)
	switch {
	case host == "" || ip != nil && ip.Equal(net.IPv4zero):
		return []string{"127.0.0.1"}
	case ip != nil && ip.IsUnspecified():
		return []string{"::1", "127.0.0.1"}
	default:
		return []string{host}
	}
}
