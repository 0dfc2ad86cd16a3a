package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// scenario is one attack.
type scenario struct {
	name    string
	long    bool // takes a minute unless the run is short
	does    func(short bool) string
	args    func(short bool) []string // arguments of the server
	rules   string                    // rule file; empty: one without expressions
	victims []*victim
	attack  func(ctx context.Context, at string, short bool) error // runs in a separate process

	http bool // attacks the HTTP port
}

func (s *scenario) what(short bool) string { return s.does(short) }

// few returns the smaller number if the run is short.
func few(short bool, small, large int) int {
	if short {
		return small
	}
	return large
}

func fixed(text string) func(bool) string { return func(bool) string { return text } }

func none(bool) []string { return nil }

func scenarios() []*scenario {
	steady := func() []*victim {
		return []*victim{{name: "old counters", rate: 200, value: func(n int) string { return fmt.Sprint("old", n%100) }}}
	}
	return []*scenario{
		{
			name: "full-store", long: true, args: func(short bool) []string {
				return []string{fmt.Sprint("--memory-max-counters=", few(short, 20_000, 200_000))}
			},
			does: func(short bool) string {
				return fmt.Sprintf("new keys at full speed; the server keeps %d counters", few(short, 20_000, 200_000))
			},
			victims: append(steady(), &victim{name: "new counters", rate: 50,
				value: func(n int) string { return fmt.Sprint("new", n) }}),
			attack: newKeys,
		},
		{
			name: "streams", args: none, victims: steady(),
			does: func(short bool) string {
				return fmt.Sprintf("10 connections x %d calls that never send a message", few(short, 20_000, 100_000))
			},
			attack: func(ctx context.Context, at string, short bool) error {
				return openStreams(ctx, at, 10, few(short, 20_000, 100_000))
			},
		},
		{
			name: "streams-one", args: none, victims: steady(),
			does:   fixed("one connection with 100,000 calls that never send a message"),
			attack: func(ctx context.Context, at string, _ bool) error { return openStreams(ctx, at, 1, 100_000) },
		},
		{name: "never-reads", args: none, victims: steady(),
			does: fixed("one connection, calls at full speed, no answer is read"), attack: neverRead},
		{name: "flood", args: none, victims: steady(), does: fixed("8 connections, calls at full speed"), attack: flood},
		{
			name: "idle-connections", args: func(short bool) []string {
				return []string{fmt.Sprint("--max-connections=", few(short, 1_000, 10_000))}
			},
			does: func(short bool) string {
				return fmt.Sprintf("%d connections without a call, all that the server takes; the victim connects anew "+
					"for every call", few(short, 1_000, 10_000))
			},
			victims: []*victim{{name: "new connections", rate: 20, anew: true,
				value: func(n int) string { return fmt.Sprint("old", n%100) }}},
			attack: func(ctx context.Context, at string, short bool) error {
				return idle(ctx, at, few(short, 1_000, 10_000))
			},
		},
		{
			name: "idle-and-endless", args: none, victims: steady(),
			does: func(short bool) string {
				return fmt.Sprintf("%d connections without a call, and on %d more messages of 4 MiB whose end never comes",
					few(short, 1_000, 10_000), few(short, 20, 100))
			},
			attack: func(ctx context.Context, at string, short bool) error {
				var both sync.WaitGroup
				both.Go(func() { _ = idle(ctx, at, few(short, 1_000, 10_000)) })
				defer both.Wait()
				return endless(ctx, at, short)
			},
		},
		{
			name: "idle-http", http: true, args: none, attack: idleHTTP,
			does: func(short bool) string {
				return fmt.Sprintf("%d connections over HTTP that make one request", few(short, 1_000, 10_000))
			},
			victims: []*victim{{name: "json", json: true, rate: 50,
				value: func(n int) string { return fmt.Sprint("old", n%100) }}},
		},
		{name: "rapid-reset", args: none, victims: steady(),
			does: fixed("8 connections, calls at full speed that are reset at once"), attack: rapidReset},
		{name: "settings", args: none, victims: steady(),
			does:   fixed("8 connections with 1,000 open calls each, whose windows change 2,000 times in each SETTINGS frame"),
			attack: settingsFlood},
		{name: "ping", args: none, victims: steady(), does: fixed("8 connections, PING frames at full speed"),
			attack: pingFlood},
		{name: "windows", args: none, victims: steady(),
			does:   fixed("8 connections with 1,000 answers each that wait, and WINDOW_UPDATE frames of one byte at full speed"),
			attack: windowFlood},
		{name: "headers", args: none, victims: steady(),
			does: fixed("8 connections, calls with 240 KiB of header fields that never send a message"), attack: headerBomb},
		{name: "hpack", args: none, victims: steady(),
			does: fixed("8 connections, header blocks of 200 bytes that stand for 240 or 480 KiB"), attack: hpackBomb},
		{
			name: "zero-window", args: none, victims: steady(), attack: zeroWindow,
			does: func(short bool) string {
				return fmt.Sprintf("%d connections, calls of 60 KB; the windows for the answers stay closed", few(short, 20, 100))
			},
		},
		{
			name: "never-reads-many", args: none, victims: steady(), attack: neverReadMany,
			does: func(short bool) string {
				return fmt.Sprintf("%d connections, calls at full speed, no answer is read", few(short, 100, 500))
			},
		},
		{
			name: "endless-messages", args: none, victims: steady(), attack: endless,
			does: func(short bool) string {
				return fmt.Sprintf("%d connections, messages of 4 MiB whose end never comes", few(short, 20, 100))
			},
		},
		{name: "gzip", args: none, victims: steady(),
			does: fixed("8 connections, messages of 4 KB that are 4 MB when they are decompressed"), attack: zipBomb},
		{name: "continuation", args: none, victims: steady(),
			does: fixed("8 connections with a header block in endless CONTINUATION frames"), attack: continuation},
		{
			name: "json", http: true, args: none, attack: jsonFlood,
			does: func(short bool) string {
				return fmt.Sprintf("/json: 8 connections with small bodies at full speed, 16 with bodies of 4 MB, and %d with "+
					"bodies of 60 KB whose end never comes", few(short, 500, 2_000))
			},
			victims: append(steady(), &victim{name: "json", json: true, rate: 50,
				value: func(n int) string { return fmt.Sprint("old", n%100) }}),
		},
		{name: "watches", args: none, victims: steady(), attack: watches,
			does: fixed("12 connections x 1,000 watches of health that stay open")},
		{
			name: "reflection", args: func(bool) []string { return []string{"--grpc-reflection"} }, victims: steady(),
			attack: reflections,
			does:   fixed("4 connections x 1,000 streams of reflection; the windows for the answers stay closed"),
		},
		{
			name: "batches", args: none, victims: steady(), attack: batches,
			does: func(short bool) string {
				return fmt.Sprintf("%d connections, batches of 25,600 descriptors that are a few KB of gzip; the windows for the "+
					"answers stay closed", few(short, 20, 100))
			},
		},
		{
			name: "reservations", args: none, victims: steady(), attack: reservations,
			does: func(short bool) string {
				return fmt.Sprintf("%d connections, requests for reservations at full speed, no answer is read",
					few(short, 20, 100))
			},
		},
		{name: "other-headers", args: none, victims: steady(), attack: otherHeaders,
			does: fixed("8 connections, calls of a method that does not exist, with 7,000 header fields and no message")},
		{name: "quota-ids", args: none, victims: steady(), attack: quotaIDs,
			does: fixed("one quota stream that reports buckets with ids of 60 KB")},
		{name: "quota-unread", args: none, victims: steady(), attack: quotaUnread,
			does: fixed("20 connections x 20 quota streams x 1,000 buckets; no answer is read")},
		{
			name: "quota-zero", args: none, victims: steady(), attack: quotaZero,
			does: func(short bool) string {
				return fmt.Sprintf("%d connections, quota streams of 1,000 buckets again and again; the windows for the answers "+
					"stay closed", few(short, 4, 20))
			},
		},
		{name: "regex", args: none, rules: expressions(50), victims: steady(),
			does: fixed("50 expressions; calls of 3.8 MB with values of 8 KB, one after another"), attack: regex},
	}
}

// expressions returns a rule file with n value_regex rules for one key. Each rule has to read a value to its end.
func expressions(n int) string {
	var b strings.Builder
	b.WriteString("domain: attack\ndescriptors:\n  - {key: key, rate_limit: {unit: day, requests_per_unit: 1000000000}}\n")
	for i := range n {
		fmt.Fprintf(&b,
			"  - {key: path, value_regex: \"(/[a-z0-9]+)*/(x|y|z)?%d(/[a-z]*)+end\", rate_limit: {unit: second, "+
				"requests_per_unit: 50}}\n", i)
	}
	return b.String()
}

// outcome is the result of an attack: the server's memory, and the answers that each victim got.
type outcome struct {
	scenario         *scenario
	idle, peak, left int64 // RSS in bytes: before, at its highest, at the end
	own, kept        kept  // before, and at the end of the attack
	victims          []victimOutcome
	ended            error // why the server ended
}

type victimOutcome struct {
	name                  string
	before, during, after noticed
	recovery              time.Duration
	recovered             bool
}

// run starts a server and runs the attack against it.
func (s *scenario) run(ctx context.Context, o *options, dir string) (_ *outcome, err error) {
	rules := s.rules
	if rules == "" {
		rules = expressions(0)
	}
	server, err := start(ctx, o.binary, dir, rules, s.args(o.short))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()

	p := o.phases(s)
	calling, stop := context.WithCancel(ctx)
	defer stop()
	seen := make([]calls, len(s.victims))
	failed := make([]error, len(s.victims))
	var running sync.WaitGroup
	for i, v := range s.victims {
		running.Go(func() { failed[i] = v.run(calling, server, &seen[i]) })
	}
	warm := 300 * time.Millisecond
	wait(ctx, warm)
	began := time.Now()
	wait(ctx, p.before)
	r := &outcome{scenario: s, idle: server.rss()}
	own, err := server.measure(ctx, nil)
	if err != nil {
		return nil, err
	}
	r.own = *own

	at := server.grpc
	if s.http {
		at = server.http
	}
	attacker := exec.CommandContext(ctx, os.Args[0], "-attack", s.name, "-at", at, "-for", (p.during + stopped).String(),
		fmt.Sprintf("-short=%v", o.short))
	attacker.Stderr = os.Stderr
	attacked := time.Now()
	if err := attacker.Start(); err != nil {
		return nil, fmt.Errorf("start the attacker: %w", err)
	}
	wait(ctx, p.during)
	over := time.Now()
	most, ended := s.stop(ctx, o, attacker, server)
	released := time.Now()
	wait(ctx, p.after)
	end := time.Now()
	stop()
	running.Wait()
	if err := errors.Join(append(failed, ended, ctx.Err())...); err != nil {
		return nil, err
	}
	if !server.alive() {
		r.ended = errors.New("the server ended")
	}
	r.peak, r.left = server.peak.Load(), server.rss()
	if most != nil {
		r.kept = *most
	}
	for i, v := range s.victims {
		c := &seen[i]
		one := victimOutcome{name: v.name, before: c.between(began, attacked), during: c.between(attacked, over),
			after: c.between(released, end)}
		one.recovery, one.recovered = c.recovered(released, end, one.before.p99)
		r.victims = append(r.victims, one)
	}
	return r, nil
}

// stopped is the longest time that a stopped attacker stays alive.
const stopped = 30 * time.Second

// stop ends an attack. It stops the attacker first, with its connections open, so that the heap and the gauges of the
// server show the same moment.
func (s *scenario) stop(ctx context.Context, o *options, attacker *exec.Cmd, server *server) (_ *kept, err error) {
	defer func() {
		_ = attacker.Process.Kill()
		if ended := attacker.Wait(); attacker.ProcessState.Exited() { // it exited before Kill
			err = errors.Join(err, ended)
		}
	}()
	if err := attacker.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, nil // it has exited, so the server holds nothing for it
	}
	server.settle(ctx)
	if !server.alive() {
		return nil, nil
	}
	if o.profiles == "" {
		return server.measure(ctx, nil)
	}
	var profile bytes.Buffer
	k, err := server.measure(ctx, &profile)
	return k, errors.Join(err, os.WriteFile(filepath.Join(o.profiles, s.name+".heap"), profile.Bytes(), 0o600))
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// attack runs in the attacking process. It runs at low priority, because a real attacker has its own machines.
func attack(ctx context.Context, o *options) error {
	s := find(scenarios(), o.attack)
	if s == nil || o.lasts <= 0 || o.lasts > 2*time.Minute || !strings.HasPrefix(o.at, "127.0.0.1:") {
		return errors.New("-attack, -at and -for belong together, and are for loopback")
	}
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10)
	ctx, cancel := context.WithTimeout(ctx, o.lasts)
	defer cancel()
	return s.attack(ctx, o.at, o.short)
}
