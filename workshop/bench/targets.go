package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// target is a server to measure.
type target struct {
	id     string
	name   string
	binary string
	args   []string
	rules  bool // needs the rule directory
	redis  bool // counts in a Redis that no other target uses
	lease  bool // its limits are leased
	holds  bool // has a rule with reservations too
	other  bool // not ratelimitd, but a program that reads the same rules and settings
	env    []string
	setup

	peers
	servers []*process
	stores  []store // none without Redis
	rounds  []measurement

	paced []measurement // rounds of the open loop
}

// setup is how a target differs from one replica with one rule, one Redis and no encryption.
type setup struct {
	values    int // this many values have a rule each; 0: one rule for all values
	processes int // replicas on one Redis; 0: one
	nodes     int // nodes of a Redis cluster; 0: a single Redis
	mtls      bool
}

// store is a Redis server.
type store struct {
	*process

	address string
}

// baseline is the id of the target with which the others are compared.
const baseline = "a"

func allTargets() []*target {
	return []*target{
		{id: "a0", name: "empty gRPC server, grpc-go's defaults", binary: "emptyserver"},
		{id: "a", name: "empty gRPC server, tuned", binary: "emptyserver", args: []string{"-tuned"}},
		{id: "e", name: "empty handler on the built-in HTTP/2 server", binary: "emptyserver", args: []string{"-lean"}},
		{id: "b", name: "ratelimitd, memory", binary: "ratelimitd", rules: true},
		{id: "c", name: "ratelimitd, Redis", binary: "ratelimitd", rules: true, redis: true},
		{id: "l", name: "ratelimitd, Redis, leases", binary: "ratelimitd", rules: true, redis: true, lease: true},
	}
}

// start starts the target's processes and waits until they listen.
func (t *target) start(ctx context.Context, dir string, o *options, cores cores) error {
	args := t.args
	env := append([]string{"LOG_FORMAT=json", "LOG_LEVEL=info", "REDIS_POOL_SIZE=64"}, t.env...)
	if t.rules {
		rules := filepath.Join(dir, "rules-"+t.id)
		if err := writeRules(rules, t, o.descriptors); err != nil {
			return err
		}
		args = append(args, "serve", "--rules", rules)
		env = append(env, "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "GRPC_PORT=0", "PORT=0", "DEBUG_PORT=0")
	}
	if t.redis {
		if err := t.startStores(ctx, filepath.Join(dir, "redis-"+t.id), cores); err != nil {
			return err
		}
		// Under a closed loop calls queue. A shorter timeout would make some of them fail, and the rest would look
		// cheaper.
		env = append(env, "REDIS_URL="+t.stores[0].address, "REDIS_SOCKET_TYPE=tcp", "REDIS_OP_TIMEOUT=2s")
		if t.nodes > 0 {
			env = append(env, "REDIS_TYPE=cluster")
		}
	}
	if t.mtls {
		settings, config, err := encryption(filepath.Join(dir, t.id))
		if err != nil {
			return err
		}
		t.encryption = config
		env = append(env, settings...)
	}
	for range max(1, t.processes) {
		if t.other {
			if err := t.startOther(ctx, env, dir, cores); err != nil {
				return err
			}
			continue
		}
		server, err := startProcess(filepath.Join(dir, t.binary), args, env, dir, cores.server)
		if err != nil {
			return err
		}
		t.servers = append(t.servers, server)
		address, err := server.listening(ctx, 30*time.Second)
		if err != nil {
			return err
		}
		t.addresses = append(t.addresses, address)
	}
	return nil
}

// startOther starts the other program on free ports, and waits until it answers on the first. Settings that are given
// twice have the last value.
func (t *target) startOther(ctx context.Context, env []string, dir string, cores cores) error {
	env = append(slices.Clip(env), "RUNTIME_ROOT="+dir, "RUNTIME_APPDIRECTORY=rules-"+t.id, "RUNTIME_WATCH_ROOT=false",
		"USE_STATSD=false", "LOG_LEVEL=error")
	address := ""
	for _, setting := range []string{"DEBUG_PORT", "PORT", "GRPC_PORT"} {
		at, port, err := freePort()
		if err != nil {
			return err
		}
		address, env = at, append(env, setting+"="+port)
	}
	p, err := startProcess(t.binary, nil, env, dir, cores.server)
	if err != nil {
		return err
	}
	t.servers, t.addresses = append(t.servers, p), append(t.addresses, address)
	return p.answers(ctx, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// startStores starts the target's Redis, or its nodes as a cluster.
func (t *target) startStores(ctx context.Context, dir string, cores cores) error {
	for i := range max(1, t.nodes) {
		process, address, err := startRedis(ctx, fmt.Sprint(dir, "-", i), cores, t.nodes > 0)
		if err != nil {
			return err
		}
		t.stores = append(t.stores, store{process, address})
	}
	if t.nodes > 0 {
		return joinCluster(ctx, t.stores)
	}
	return nil
}

func (t *target) stop() error {
	var errs []error
	for _, p := range t.servers {
		errs = append(errs, p.stop())
	}
	for _, s := range t.stores {
		errs = append(errs, s.stop())
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
	sum := 0.0
	for _, s := range t.stores {
		n, err := tripsOf(s.address)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func (t *target) cpu() (c cpuTimes, err error) {
	add := func(to *float64, pid int) {
		if err == nil {
			var seconds float64
			seconds, err = cpuOf(pid)
			*to += seconds
		}
	}
	for _, p := range t.servers {
		add(&c.server, p.pid())
	}
	for _, s := range t.stores {
		add(&c.store, s.pid())
	}
	add(&c.self, os.Getpid())
	return c, err
}

// writeRules writes a directory with one file: a limit for each descriptor, or for each value of it, that is never
// reached. If the target holds reservations, there is one more rule for them.
func writeRules(dir string, t *target, descriptors int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for i := range descriptors {
		for v := range max(1, t.values) {
			fmt.Fprintf(&b, "  - key: %s\n", descriptorKey(i))
			if t.values > 0 {
				fmt.Fprintf(&b, "    value: %s%0*d\n", valuePrefix, len(digits), v)
			}
			fmt.Fprint(&b, "    rate_limit: {unit: hour, requests_per_unit: 4000000000")
			if t.lease {
				fmt.Fprint(&b, ", lease: true")
			}
			fmt.Fprintln(&b, "}")
		}
	}
	if t.holds {
		fmt.Fprintf(&b, "  - key: %s\n    reservations: true\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n",
			reservedKey)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make the rule directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write rules: %w", err)
	}
	return nil
}
