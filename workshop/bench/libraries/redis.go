package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// startRedis starts a redis-server without persistence on a free port, and waits until it answers. end stops it.
func startRedis(ctx context.Context) (address string, end func() error, err error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, fmt.Errorf("find redis-server (workshop/scripts/install-redis installs it): %w", err)
	}
	dir, err := os.MkdirTemp("", "ratelimitd-libraries-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory for Redis: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("find a free port: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	address = l.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	_ = l.Close()

	var written bytes.Buffer
	c := exec.Command(binary, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", dir)
	c.Stdout, c.Stderr = &written, &written
	if err := c.Start(); err != nil {
		return "", nil, fmt.Errorf("start redis-server: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	end = func() error {
		_ = c.Process.Kill() // it has nothing to save
		if err := <-ended; err == nil {
			return errors.Join(errors.New("redis-server had ended on its own"), os.RemoveAll(dir))
		}
		return os.RemoveAll(dir)
	}
	client := newClient(address)
	defer func() { err = errors.Join(err, client.Close()) }()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	longest := time.After(30 * time.Second)
	for client.Ping(ctx).Err() != nil {
		select {
		case err := <-ended:
			ended <- err
			return "", nil, errors.Join(fmt.Errorf("redis-server ended:\n%s", &written), end())
		case <-ctx.Done():
			return "", nil, errors.Join(ctx.Err(), end())
		case <-longest:
			return "", nil, errors.Join(errors.New("redis-server does not answer for 30 s"), end())
		case <-retry.C:
		}
	}
	return address, end, nil
}

// cpuOf reads the CPU time, user and system, from what INFO cpu answers.
func cpuOf(info string) (total time.Duration, err error) {
	found := 0
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_user" && name != "used_cpu_sys" {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of Redis: %w", err)
		}
		total += time.Duration(seconds * float64(time.Second))
		found++
	}
	if found != 2 {
		return 0, errors.New("read the CPU time of Redis: INFO has no used_cpu_user and used_cpu_sys")
	}
	return total, nil
}

// version returns the version of Redis.
func version(ctx context.Context, c *goredis.Client) string {
	text, err := c.Info(ctx, "server").Result()
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return v
		}
	}
	return "unknown"
}
