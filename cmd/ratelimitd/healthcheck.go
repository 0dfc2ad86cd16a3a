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

// healthcheck asks the service that runs beside it whether it wants requests: what a container's health check runs where
// there is no shell and no curl. It reads the same HOST and PORT as serve.
type healthcheck struct {
	Host    string        `env:"HOST" default:"0.0.0.0" help:"Address that the service's HTTP listens on; all addresses means loopback here."`
	Port    int           `env:"PORT" range:"0..65535" default:"8080" help:"Port of the service's HTTP."`
	Path    string        `default:"/healthcheck" help:"Page to ask: /healthcheck, /readyz or /livez."`
	Timeout time.Duration `default:"2s" help:"How long to wait for the answer."`
}

// Run succeeds if the service says that it is healthy.
func (h *healthcheck) Run(ctx context.Context, s streams) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(loopback(h.Host), strconv.Itoa(h.Port)) + "/" + strings.TrimPrefix(h.Path, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
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

// loopback is where a process on the same machine reaches a listener: at its address, or at loopback if it listens on all.
func loopback(host string) string {
	ip := net.ParseIP(host)
	switch {
	case host == "" || ip != nil && ip.Equal(net.IPv4zero):
		return "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		return "::1"
	default:
		return host
	}
}
