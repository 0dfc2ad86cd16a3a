package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// target is a server to measure.
type target struct {
	id     string
	name   string
	binary string
	args   []string
	rules  bool // needs the rule folder
	redis  bool // counts in a Redis of its own
	lease  bool // its limits are leased
	holds  bool // has a rule with reservations too
	env    []string

	address string
	server  *process
	store   *process // nil without Redis
	rounds  []measurement

	redisAt string
	paced   []measurement // in an open loop
}

// baseline is the id of the target with which the others are compared.
const baseline = "a"

var (
	onLean   = []string{"RATELIMITD_GRPC_TRANSPORT=lean"}
	onGRPCGo = []string{"RATELIMITD_GRPC_TRANSPORT=grpc-go"}
)

func allTargets() []*target {
	return []*target{
		{id: "a0", name: "empty gRPC server, grpc-go's defaults", binary: "emptyserver"},
		{id: "a", name: "empty gRPC server, tuned", binary: "emptyserver", args: []string{"-tuned"}},
		{id: "e", name: "empty handler on the lean transport", binary: "emptyserver", args: []string{"-lean"}},
		{id: "b", name: "ratelimitd, memory", binary: "ratelimitd", rules: true, env: onLean},
		{id: "bg", name: "the same on grpc-go", binary: "ratelimitd", rules: true, env: onGRPCGo},
		{id: "c", name: "ratelimitd, Redis", binary: "ratelimitd", rules: true, redis: true, env: onLean},
		{id: "cg", name: "the same on grpc-go", binary: "ratelimitd", rules: true, redis: true, env: onGRPCGo},
		{id: "p", name: "ratelimitd, Redis, one EVALSHA for each request", binary: "ratelimitd", rules: true, redis: true, env: append([]string{"RATELIMITD_REDIS_PLAIN=true"}, onLean...)},
		{id: "l", name: "ratelimitd, Redis, leases", binary: "ratelimitd", rules: true, redis: true, lease: true, env: onLean},
		{id: "lg", name: "the same on grpc-go", binary: "ratelimitd", rules: true, redis: true, lease: true, env: onGRPCGo},
	}
}

// start starts the target's processes and waits until they listen.
func (t *target) start(ctx context.Context, dir string, o *options, cores cores) error {
	args := t.args
	env := append([]string{"LOG_FORMAT=json", "LOG_LEVEL=info", "REDIS_POOL_SIZE=64"}, t.env...)
	if t.rules {
		rules := filepath.Join(dir, "rules-"+t.id)
		if err := writeRules(rules, o.descriptors, t.lease, t.holds); err != nil {
			return err
		}
		args = append(args, "serve", "--rules", rules)
		env = append(env, "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "GRPC_PORT=0", "PORT=0", "DEBUG_PORT=0")
	}
	if t.redis {
		store, address, err := startRedis(ctx, filepath.Join(dir, "redis-"+t.id), cores)
		if err != nil {
			return err
		}
		t.store, t.redisAt = store, address
		// Under a closed loop calls queue. A shorter timeout would make some of them fail, and the rest would look
		// cheaper.
		env = append(env, "REDIS_URL="+address, "REDIS_SOCKET_TYPE=tcp", "REDIS_OP_TIMEOUT=2s")
	}
	server, err := startProcess(filepath.Join(dir, t.binary), args, env, dir, cores.server)
	if err != nil {
		return err
	}
	t.server = server
	t.address, err = server.listening(ctx, 30*time.Second)
	return err
}

func (t *target) stop() error {
	var errs []error
	for _, p := range []*process{t.server, t.store} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	return errors.Join(errs...)
}

// cpuTimes are the CPU seconds of processes so far, user and system.
type cpuTimes struct {
	server, store, self float64
}

func (c cpuTimes) since(before cpuTimes) cpuTimes {
	return cpuTimes{c.server - before.server, c.store - before.store, c.self - before.self}
}

// trips returns how many script calls the target's Redis has answered so far; 0 without one.
func (t *target) trips() (float64, error) {
	if t.store == nil {
		return 0, nil
	}
	return tripsOf(t.redisAt)
}

func (t *target) cpu() (c cpuTimes, err error) {
	if c.server, err = cpuOf(t.server.pid()); err != nil {
		return c, err
	}
	if t.store != nil {
		if c.store, err = cpuOf(t.store.pid()); err != nil {
			return c, err
		}
	}
	c.self, err = cpuOf(os.Getpid())
	return c, err
}

// writeRules writes a folder with one file: a limit for each descriptor that is never reached, and with holds one more with
// reservations.
func writeRules(dir string, descriptors int, lease, holds bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for i := range descriptors {
		fmt.Fprintf(&b, "  - key: %s\n    rate_limit: {unit: hour, requests_per_unit: 4000000000, lease: %v}\n", descriptorKey(i), lease)
	}
	if holds {
		fmt.Fprintf(&b, "  - key: %s\n    reservations: true\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n", reservedKey)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make the rule folder: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write rules: %w", err)
	}
	return nil
}
