package redisconn_test

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A server answers every command with bytes that no Redis sends. Every kind of client fails immediately, keeps no more
// than a few megabytes, and returns a short error text.
func TestHostileAnswers(t *testing.T) {
	ca := redistest.NewCA(t)
	secure := ca.Server(ca.Issue(t, "127.0.0.1"), false)
	cert, err := tls.LoadX509KeyPair(secure.Cert, secure.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{Certificates: []tls.Certificate{cert}}
	quiet := slog.New(slog.DiscardHandler)
	for _, answer := range []struct{ sent, then, want string }{
		{"$2000000000\r\nabc", "", "Redis sent a text of 2000000000 bytes; at most 16777216 are read: check what answers at this address"},
		{"*2000000000\r\n", "", "Redis sent 2000000000 elements; at most 1048576 are read"},
		{"$1400000000\r\n", "0", "a text of 1400000000 bytes"},
		{"%2000000000\r\n", "", "2000000000 elements"},
		{"!1400000000\r\n", "0", "a text of 1400000000 bytes"},
		{"+", "x", "a line of more than 64 KiB"},
		{":", "1", "a line of more than 64 KiB"},
		{"", "*1\r\n", "arrays within arrays, more than 16 deep"},
		{"-" + strings.Repeat("ERR \x1b[31m", 5000) + "\r\n", "", "... ("},
		{"!60000\r\n" + strings.Repeat("E", 60_000) + "\r\n", "", "EEE... (60000 bytes)"},
		{"*4\r\n$16000000\r\n" + strings.Repeat("x", 16_000_000) + "\r\n$16777217\r\n", "", "can't parse"},
		{strings.Repeat("x", 60_000) + "\r\n", "", "can't parse"},
	} {
		for kind, opts := range map[string]redisconn.Options{
			"single":   {URL: redistest.Answering(t, nil, answer.sent, answer.then)},
			"TLS":      {URL: redistest.Answering(t, server, answer.sent, answer.then), TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File}},
			"login":    {URL: redistest.Answering(t, nil, answer.sent, answer.then), Auth: "counter:" + secret},
			"sentinel": {Type: "SENTINEL", URL: "primary," + redistest.Answering(t, nil, answer.sent, answer.then)},
			"cluster":  {Type: "CLUSTER", URL: redistest.Answering(t, nil, answer.sent, answer.then)},
		} {
			opts.Logger = quiet
			client, err := redisconn.Dial(opts)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = client.Get(bounded(t), "k").Result()
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Errorf("%s, %.20q: no error", kind, answer.sent)
				continue
			}
			if kept := after.TotalAlloc - before.TotalAlloc; kept > 200<<20 {
				t.Errorf("%s, %.20q: %d MB were allocated", kind, answer.sent, kept>>20)
			}
			if text := err.Error(); len(text) > 700 || (kind == "single" || kind == "TLS") && !strings.Contains(text, answer.want) {
				t.Errorf("%s, %.20q: %d bytes: %.700s", kind, answer.sent, len(text), text)
			}
			_ = client.Close()
		}
	}
}

// Bytes after the answer to a login make the login fail: otherwise they would be read as the answers of later commands.
func TestLoginIsAnsweredInFull(t *testing.T) {
	for answer, ok := range map[string]bool{"+OK\r\n": true, "+OK\r\n$100\r\n": false, ":1\r\n": false, "$2\r\nOK\r\n": false, "$100\r\n": false, "+" + strings.Repeat("x", 600) + "\r\n": false} {
		client := connect(t, redisconn.Options{URL: redistest.Answering(t, nil, answer, ""), Auth: secret, DialTimeout: time.Minute})
		err := client.Ping(bounded(t)).Err()
		if ok != (err == nil) || !ok && !strings.Contains(err.Error(), "is not one of Redis") {
			t.Errorf("%.20q: %v", answer, err)
		}
	}
}

// The largest answers that a Redis gives to commands of ours pass.
func TestLargeAnswersPass(t *testing.T) {
	s := redistest.Start(t)
	client := redisconntest.Connect(t, redisconn.Options{URL: s.Addr})
	ctx := bounded(t)
	if err := client.Set(ctx, "text", strings.Repeat("x", 16<<20), 0).Err(); err != nil {
		t.Fatal(err)
	}
	if text, err := client.Get(ctx, "text").Result(); err != nil || len(text) != 16<<20 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	var members []any
	for i := range 300_000 {
		members = append(members, fmt.Sprint(i))
	}
	if err := client.SAdd(ctx, "set", members...).Err(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // all on one connection
		if all, err := client.SMembers(ctx, "set").Result(); err != nil || len(all) != len(members) {
			t.Errorf("%d members, %v", len(all), err)
		}
	}
	if err := client.Append(ctx, "text", "x").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Get(ctx, "text").Err(); !redisconn.IsTooLarge(err) {
		t.Errorf("one byte more: %v", err)
	}
	if err := client.Ping(ctx).Err(); err != nil {
		t.Errorf("after that: %v", err)
	}
}
