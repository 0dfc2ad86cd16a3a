package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// longest is how long a call of these tests may take, on a busy machine.
const longest = 20 * time.Second

var connect = redisconntest.Connect

func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	t.Cleanup(cancel)
	return ctx
}

// counts adds one to each key and returns the sum.
var counts = goredis.NewScript(`
local sum = 0
for _, key in ipairs(KEYS) do sum = sum + redis.call('INCR', key) end
return sum`)

// secret is a password that must not appear in errors and logs.
const secret = "s3cret-w0rd"

func withoutSecret(t testing.TB, text string) {
	t.Helper()
	for _, piece := range []string{secret, "s3cret", "w0rd"} {
		if strings.Contains(text, piece) {
			t.Errorf("this contains a password: %s", text)
		}
	}
}

func TestDialReaches(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "s3cret:with:colons",
		"--user", "counter", "on", ">pass:word", "~*", "+@all")
	file := filepath.Join(t.TempDir(), "auth")
	redistest.Replace(t, file, []byte("counter:pass:word\n"))
	for name, opts := range map[string]redisconn.Options{
		"host and port, password":  {URL: s.Addr, Auth: ":s3cret:with:colons"},
		"host and port, user":      {URL: s.Addr, Auth: "counter:pass:word"},
		"a file":                   {URL: s.Addr, AuthFile: file},
		"a file beats the URL":     {URL: "redis://counter:wrong@" + s.Addr, AuthFile: file},
		"unix path":                {URL: s.Socket, Auth: "counter:pass:word"},
		"unix path and network":    {URL: s.Socket, Network: "unix", Auth: "counter:pass:word"},
		"URL":                      {URL: "redis://counter:pass%3Aword@" + s.Addr + "/0"},
		"URL, another database":    {URL: "redis://counter:pass%3Aword@" + s.Addr + "/3"},
		"URL, other credentials":   {URL: "redis://counter:wrong@" + s.Addr, Auth: "counter:pass:word"},
		"URL of a unix socket":     {URL: "unix://counter:pass%3Aword@" + s.Socket},
		"everything that is plain": {Type: "single", URL: s.Addr, Network: "tcp", Auth: "counter:pass:word", PoolSize: 1, OnEmpty: "wait", DialTimeout: longest},
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t, opts)
			ctx := bounded(t)
			if err := client.Ping(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			for want := range 2 {
				if n, err := counts.Run(ctx, client, []string{name}).Int(); n != want+1 || err != nil {
					t.Error(n, err)
				}
			}
			db := 0
			if strings.Contains(opts.URL, "/3") {
				db = 3
			}
			if info := s.Client(t).Do(ctx, "auth", "counter", "pass:word"); info.Err() != nil {
				t.Fatal(info.Err())
			}
			if keys := client.Info(ctx, "keyspace").Val(); !strings.Contains(keys, fmt.Sprintf("db%d:", db)) {
				t.Errorf("database %d has nothing: %s", db, keys)
			}
		})
	}
}

func TestDialRejects(t *testing.T) {
	dir := t.TempDir()
	empty, junk := filepath.Join(dir, "empty"), filepath.Join(dir, "junk")
	redistest.Replace(t, empty, []byte("\n"))
	redistest.Replace(t, junk, []byte(secret))
	ca := redistest.NewCA(t)
	one, other := ca.Issue(t, "one"), ca.Issue(t, "other")

	for name, c := range map[string]struct {
		opts redisconn.Options
		want []string
	}{
		"nothing":                    {redisconn.Options{}, []string{"REDIS_URL is empty", "host:port"}},
		"nothing, sentinels":         {redisconn.Options{Type: "SENTINEL"}, []string{"REDIS_URL is empty", "name,host:port"}},
		"nothing, a cluster":         {redisconn.Options{Type: "CLUSTER"}, []string{"REDIS_URL is empty", "host:port,host:port"}},
		"another prefix":             {redisconn.Options{Settings: "REDIS_PERSECOND"}, []string{"REDIS_PERSECOND_URL is empty"}},
		"another type":               {redisconn.Options{Type: "ring", URL: "h:1"}, []string{`REDIS_TYPE is "ring"`, "SINGLE, SENTINEL or CLUSTER"}},
		"another socket type":        {redisconn.Options{URL: "h:1", Network: "udp"}, []string{`REDIS_SOCKET_TYPE is "udp"`, "tcp, tcp4, tcp6 or unix"}},
		"another pool":               {redisconn.Options{URL: "h:1", OnEmpty: "PANIC"}, []string{`REDIS_POOL_ON_EMPTY_BEHAVIOR is "PANIC"`, "WAIT, CREATE or ERROR"}},
		"another scheme":             {redisconn.Options{URL: "http://u:" + secret + "@localhost"}, []string{"REDIS_URL has an unknown scheme", "redis, rediss or unix"}},
		"no port":                    {redisconn.Options{URL: "localhost"}, []string{"REDIS_URL is not an address", "host:port"}},
		"credentials without scheme": {redisconn.Options{URL: "u:" + secret + "@localhost:1"}, []string{"REDIS_URL is not an address", "redis://user:password@host"}},
		"password before host":       {redisconn.Options{URL: secret + "@localhost:1"}, []string{"REDIS_URL is not an address"}},
		"password with a slash":      {redisconn.Options{URL: "redis://u:1/" + secret + "@localhost:1"}, []string{"REDIS_URL", "escape"}},
		"password with a percent":    {redisconn.Options{URL: "redis://u:%" + secret + "@localhost:1"}, []string{"REDIS_URL", "escape"}},
		"password for a port":        {redisconn.Options{URL: "redis://u:" + secret}, []string{"REDIS_URL", "escape"}},
		"a unix URL without path":    {redisconn.Options{URL: "unix://"}, []string{"REDIS_URL has no path"}},
		"scheme against socket":      {redisconn.Options{URL: "redis://h:1", Network: "unix"}, []string{"REDIS_SOCKET_TYPE is unix", "tcp"}},
		"credentials before a path":  {redisconn.Options{URL: "u:" + secret + "@/s", Network: "unix"}, []string{"REDIS_URL is not a path", "REDIS_AUTH"}},
		"several":                    {redisconn.Options{URL: "a:1,b:1"}, []string{"REDIS_URL has several", "REDIS_TYPE"}},
		"a name without sentinels":   {redisconn.Options{Type: "SENTINEL", URL: "name"}, []string{"REDIS_URL", "name,host:port"}},
		"a cluster without nodes":    {redisconn.Options{Type: "CLUSTER", URL: ", ," + secret + ",redis://" + secret + ":x@a:b,unix:///s"}, []string{"REDIS_URL has no address in its list"}},
		"a name and a comma":         {redisconn.Options{Type: "SENTINEL", URL: "name,"}, []string{"REDIS_URL", "name,host:port"}},
		"a sentinel without a port":  {redisconn.Options{Type: "SENTINEL", URL: "name,a"}, []string{"REDIS_URL has no address in its list"}},
		"credentials twice":          {redisconn.Options{URL: "a:1", Auth: secret, AuthFile: junk}, []string{"REDIS_AUTH_FILE and REDIS_AUTH are both set"}},
		"no file of credentials":     {redisconn.Options{URL: "a:1", AuthFile: filepath.Join(dir, "none")}, []string{"REDIS_AUTH_FILE cannot be used", "none"}},
		"empty file of credentials":  {redisconn.Options{URL: "a:1", AuthFile: empty}, []string{"REDIS_AUTH_FILE cannot be used", "empty"}},
		"a certificate without key":  {redisconn.Options{URL: "a:1", TLS: redisconn.TLSOptions{Enabled: true, ClientCert: one.Cert}}, []string{"REDIS_TLS_CLIENT_CERT is set", "REDIS_TLS_CLIENT_KEY"}},
		"a key without certificate":  {redisconn.Options{URL: "a:1", TLS: redisconn.TLSOptions{Enabled: true, ClientKey: one.Key}}, []string{"REDIS_TLS_CLIENT_KEY is set", "REDIS_TLS_CLIENT_CERT"}},
		"another's key":              {redisconn.Options{URL: "a:1", TLS: redisconn.TLSOptions{Enabled: true, ClientCert: one.Cert, ClientKey: other.Key}}, []string{"REDIS_TLS_CLIENT_CERT", "match"}},
		"no authority":               {redisconn.Options{URL: "rediss://a:1", TLS: redisconn.TLSOptions{CACert: junk}}, []string{"REDIS_TLS_CACERT", "no certificate"}},
		"no file of authorities":     {redisconn.Options{URL: "a:1", TLS: redisconn.TLSOptions{Enabled: true, CACert: filepath.Join(dir, "none")}}, []string{"REDIS_TLS_CACERT cannot be used", "none"}},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := redisconn.Dial(c.opts)
			if err == nil || client != nil {
				t.Fatal("accepted")
			}
			if wrong, ok := errors.AsType[*redisconn.SettingError](err); !ok || !strings.HasPrefix(c.want[0], wrong.Setting) {
				t.Errorf("%#v: it should have the setting of %q", err, c.want[0])
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v: want %q in it", err, want)
				}
			}
			withoutSecret(t, err.Error())
		})
	}
}

func TestWhereHasNoCredentials(t *testing.T) {
	for want, opts := range map[string]redisconn.Options{
		"h:1":       {URL: "h:1"},
		"h:2/3":     {URL: "rediss://u:" + secret + "@h:2/3"},
		"/run/s":    {URL: "unix://u:" + secret + "@/run/s"},
		"n,a:1,b:2": {URL: "n, a:1,b:2", Type: "SENTINEL", SentinelAuth: secret},
		"a:1,b:2":   {URL: "a:1,b:2", Type: "cluster"},
		"c:1,d:2":   {URL: "redis://u:" + secret + "@c:1/0," + secret + ",redis://d:2?password=" + secret, Type: "cluster"},
		"":          {URL: secret + "@h:1"},
	} {
		if got := opts.Where(); got != want {
			t.Errorf("%+v: %q, want %q", opts, got, want)
		}
	}
}

// The client's settings that bounded waits rely on.
func TestDialSettings(t *testing.T) {
	o := connect(t, redisconn.Options{URL: "localhost:1", PoolSize: 3, DialTimeout: time.Minute}).(*goredis.Client).Options()
	if o.MaxRetries != 0 || !o.ContextTimeoutEnabled || o.PoolSize != 3 || o.DialTimeout != time.Minute {
		t.Errorf("%+v", o)
	}
	o = connect(t, redisconn.Options{URL: "rediss://localhost"}).(*goredis.Client).Options()
	if o.Addr != "localhost:6379" || o.PoolSize != redisconn.DefaultPoolSize || o.DialTimeout != redisconn.DefaultTimeout {
		t.Errorf("%+v", o)
	}
	o = connect(t, redisconn.Options{Type: "sentinel", URL: "name, localhost:1", PoolSize: 3, DialTimeout: time.Minute}).(*goredis.Client).Options()
	if o.MaxRetries != 0 || !o.ContextTimeoutEnabled || o.PoolSize != 3 {
		t.Errorf("%+v", o)
	}
	c := connect(t, redisconn.Options{Type: "cluster", URL: "localhost:1,localhost:2", PoolSize: 3}).(*goredis.ClusterClient).Options()
	if c.MaxRetries != -1 || !c.ContextTimeoutEnabled || c.PoolSize != 3 || c.MaxRedirects < 2 ||
		c.ReadOnly || c.RouteByLatency || c.RouteRandomly || len(c.Addrs) != 2 {
		t.Errorf("%+v", c)
	}
}

func TestWrongPassword(t *testing.T) {
	s := redistest.Start(t, "--user", "counter", "on", ">right", "~*", "+@all", "--requirepass", "right")
	for _, auth := range []string{secret, "counter:" + secret, secret + ":right"} {
		for _, url := range []string{s.Addr, s.Socket} {
			err := connect(t, redisconn.Options{URL: url, Auth: auth}).Ping(bounded(t)).Err()
			if err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
				t.Errorf("%v", err)
				continue
			}
			withoutSecret(t, err.Error())
		}
	}
	if err := connect(t, redisconn.Options{URL: s.Addr}).Ping(bounded(t)).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without a password: %v", err)
	}
}

// Some servers repeat the arguments of a command that they do not know.
func TestServerRepeatsPassword(t *testing.T) {
	s := redistest.Start(t, "--rename-command", "HELLO", "", "--rename-command", "AUTH", "")
	var log servicetest.Log
	redisconn.LogTo(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer redisconn.LogTo(slog.New(slog.DiscardHandler))
	c := connect(t, redisconn.Options{URL: s.Addr, Auth: "counter:" + secret})
	err := c.Ping(bounded(t)).Err()
	if err == nil || !strings.Contains(err.Error(), "unknown command 'auth'") {
		t.Fatal(err)
	}
	withoutSecret(t, err.Error())
	pipe := c.Pipeline()
	cmd := pipe.Ping(t.Context())
	if _, err = pipe.Exec(bounded(t)); err == nil {
		t.Fatal("it should fail")
	}
	withoutSecret(t, fmt.Sprint(err, cmd.Err()))
	withoutSecret(t, log.String())
}

func TestDialTLS(t *testing.T) {
	ca, otherCA := redistest.NewCA(t), redistest.NewCA(t)
	client, forged := ca.Issue(t, "client"), otherCA.Issue(t, "client")
	open := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false)})
	strict := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1", "localhost"), true)})
	named := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "redis.example"), false)})

	// A server that rejects the client's certificate sends an alert and hangs up; which of the two is seen is a race.
	const rejection = "any error"
	for name, c := range map[string]struct {
		url  string
		tls  redisconn.TLSOptions
		want string // part of the error; empty for success
	}{
		"known authority":              {open.Addr, redisconn.TLSOptions{Enabled: true, CACert: ca.File}, ""},
		"by scheme":                    {"rediss://" + open.Addr, redisconn.TLSOptions{CACert: ca.File}, ""},
		"another authority":            {open.Addr, redisconn.TLSOptions{Enabled: true, CACert: otherCA.File}, "unknown authority"},
		"the system's authorities":     {open.Addr, redisconn.TLSOptions{Enabled: true}, "unknown authority"},
		"another name":                 {named.Addr, redisconn.TLSOptions{Enabled: true, CACert: ca.File}, "127.0.0.1"},
		"any name":                     {named.Addr, redisconn.TLSOptions{Enabled: true, CACert: ca.File, SkipHostnameVerification: true}, ""},
		"any name, another authority":  {named.Addr, redisconn.TLSOptions{Enabled: true, CACert: otherCA.File, SkipHostnameVerification: true}, "unknown authority"},
		"any name, system authorities": {named.Addr, redisconn.TLSOptions{Enabled: true, SkipHostnameVerification: true}, "unknown authority"},
		"no certificate":               {strict.Addr, redisconn.TLSOptions{Enabled: true, CACert: ca.File}, rejection},
		"a certificate":                {strict.Addr, redisconn.TLSOptions{Enabled: true, CACert: ca.File, ClientCert: client.Cert, ClientKey: client.Key}, ""},
		"a forged certificate":         {strict.Addr, redisconn.TLSOptions{Enabled: true, CACert: ca.File, ClientCert: forged.Cert, ClientKey: forged.Key}, rejection},
	} {
		t.Run(name, func(t *testing.T) {
			err := connect(t, redisconn.Options{URL: c.url, TLS: c.tls}).Ping(bounded(t)).Err()
			if (err != nil) != (c.want != "") {
				t.Fatal(err)
			}
			if err != nil && c.want != rejection && !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}

	// A Redis without TLS does not answer a handshake. The log names that as a possible cause.
	var plain servicetest.Log
	unencrypted := redistest.Start(t)
	c := connect(t, redisconn.Options{
		URL: unencrypted.Addr, TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File}, DialTimeout: longest,
		Logger: slog.New(slog.NewTextHandler(&plain, nil)),
	})
	redistest.Eventually(t, "the cause to be logged", func(ctx context.Context) error {
		if err := c.Ping(ctx).Err(); err == nil {
			t.Fatal("a Redis without TLS answered over TLS")
		}
		if !strings.Contains(plain.String(), "does not speak TLS; then unset REDIS_TLS") {
			return errors.New(plain.String())
		}
		return nil
	})

	// Settings that are ignored are logged.
	var log servicetest.Log
	connect(t, redisconn.Options{URL: open.Addr, SentinelAuth: secret, TLS: redisconn.TLSOptions{CACert: ca.File}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(log.String(), "REDIS_TLS is not true") || !strings.Contains(log.String(), "REDIS_SENTINEL_AUTH is not used") {
		t.Errorf("the log is %s", log.String())
	}
	withoutSecret(t, log.String())
}

// TLS works through a unix socket, behind which a program forwards all bytes to a remote Redis.
func TestTLSOverAUnixSocket(t *testing.T) {
	ca := redistest.NewCA(t)
	server := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false)})
	path := filepath.Join(t.TempDir(), "tunnel.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			here, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", server.Addr)
			if err != nil {
				here.Close()
				continue
			}
			for _, ends := range [][2]net.Conn{{here, there}, {there, here}} {
				go func() {
					_, _ = io.Copy(ends[0], ends[1])
					ends[0].Close()
				}()
			}
		}
	}()
	for name, skips := range map[string]bool{"any name": true, "its own name": false} {
		err := connect(t, redisconn.Options{URL: path, TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File, SkipHostnameVerification: skips}}).Ping(bounded(t)).Err()
		if (err == nil) != skips {
			t.Errorf("a certificate with %s: %v", name, err)
		}
	}
}

// hangUp makes a server close all connections but the test's.
func hangUp(t testing.TB, s *redistest.Server) {
	t.Helper()
	if err := s.Client(t).Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err(); err != nil {
		t.Fatal(err)
	}
}

func TestPasswordRotates(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	setUser := func(password string) {
		t.Helper()
		if err := admin.Do(t.Context(), "acl", "setuser", "counter", "reset", "on", ">"+password, "~*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
	}
	setUser(secret + "1")
	file := filepath.Join(t.TempDir(), "auth")
	redistest.Replace(t, file, []byte("counter:"+secret+"1\n"))
	var log servicetest.Log
	c := connect(t, redisconn.Options{URL: s.Addr, AuthFile: file, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx := bounded(t)
	who := func() error { return c.Do(ctx, "acl", "whoami").Err() }
	if err := who(); err != nil {
		t.Fatal(err)
	}

	setUser(secret + "2")
	if err := who(); err != nil {
		t.Errorf("a connection that was there should go on: %v", err)
	}
	hangUp(t, s)
	if err := who(); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("with the old password: %v", err)
	}
	redistest.Replace(t, file, []byte("counter:"+secret+"2"))
	if err := who(); err != nil {
		t.Errorf("with the new password: %v", err)
	}

	// While the file is unusable, its last good content is used.
	redistest.Replace(t, file, []byte("\n"))
	for range 2 {
		hangUp(t, s)
		if err := who(); err != nil {
			t.Errorf("with an empty file: %v", err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	hangUp(t, s)
	if err := who(); err != nil {
		t.Errorf("without a file: %v", err)
	}
	text := log.String()
	if strings.Count(text, "cannot be used") != 2 || strings.Count(text, "have changed") != 1 || !strings.Contains(text, "REDIS_AUTH_FILE") {
		t.Errorf("the log is %s", text)
	}
	withoutSecret(t, text)
}

func TestCertificatesRotate(t *testing.T) {
	old, next := redistest.NewCA(t), redistest.NewCA(t)
	s := redistest.StartWith(t, redistest.Setup{TLS: old.Server(old.Issue(t, "127.0.0.1"), true)})
	dir := t.TempDir()
	authority := filepath.Join(dir, "ca.pem")
	mine := redistest.Pair{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	copyTo := func(from, to string) {
		t.Helper()
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		redistest.Replace(t, to, content)
	}
	copyTo(old.File, authority)
	old.Reissue(t, mine, "client")

	var log servicetest.Log
	c := connect(t, redisconn.Options{URL: s.Addr, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		TLS: redisconn.TLSOptions{Enabled: true, CACert: authority, ClientCert: mine.Cert, ClientKey: mine.Key}})
	ctx := bounded(t)
	ask := func() error { return c.Ping(ctx).Err() }
	if err := ask(); err != nil {
		t.Fatal(err)
	}

	theirs := next.Issue(t, "127.0.0.1")
	if err := s.Client(t).Do(ctx, "config", "set", "tls-cert-file", theirs.Cert, "tls-key-file", theirs.Key, "tls-ca-cert-file", next.File).Err(); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Errorf("a connection that was there should go on: %v", err)
	}
	hangUp(t, s)
	if err := ask(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with the old authority: %v", err)
	}
	copyTo(next.File, authority)
	if ask() == nil {
		t.Error("with the old certificate it should be rejected")
	}

	// One file arrives before the other: neither half of such a pair is used.
	fresh := next.Issue(t, "client")
	copyTo(fresh.Cert, mine.Cert)
	for range 2 {
		if ask() == nil {
			t.Error("with half a pair it should be rejected")
		}
	}
	copyTo(fresh.Key, mine.Key)
	if err := ask(); err != nil {
		t.Errorf("with all that is new: %v", err)
	}
	text := log.String()
	if strings.Count(text, "cannot be used") != 1 || strings.Count(text, "were read again") != 2 || !strings.Contains(text, mine.Key) {
		t.Errorf("the log is %s", text)
	}
}

// A connection that the server has closed is not used, with and without TLS.
func TestRestartIsNoticed(t *testing.T) {
	ca := redistest.NewCA(t)
	secure := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false)})
	plain := redistest.Start(t)
	for name, c := range map[string]struct {
		s    *redistest.Server
		opts redisconn.Options
	}{
		"TCP":  {plain, redisconn.Options{URL: plain.Addr}},
		"unix": {plain, redisconn.Options{URL: plain.Socket}},
		"TLS":  {secure, redisconn.Options{URL: secure.Addr, TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File}}},
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t, c.opts)
			redistest.OpenConnections(t, client, 5)
			c.s.Kill(t)
			c.s.Restart(t)
			for range 10 {
				if err := client.Ping(bounded(t)).Err(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// relay is an address that leads to one server and then to another, as the address of a service does after a failover.
// Open connections keep their server.
type relay struct {
	net.Listener
	to    atomic.Value
	delay atomic.Int64  // delay of the server's answers, in nanoseconds
	first atomic.Int64  // additional delay of the first answer on a connection
	hold  chan struct{} // answers are held back until it is closed; nil if they are not held back
}

func startRelay(t testing.TB, to string) *relay {
	t.Helper()
	return startHeldRelay(t, to, nil)
}

func startHeldRelay(t testing.TB, to string, hold chan struct{}) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, hold: hold}
	r.to.Store(to)
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", r.to.Load().(string))
			if err != nil {
				c.Close()
				continue
			}
			wg.Go(func() { forward(c, s, 0, 0) })
			wg.Go(func() {
				if r.hold != nil {
					<-r.hold
				}
				forward(s, c, time.Duration(r.delay.Load()), time.Duration(r.first.Load()))
			})
		}
	})
	return r
}

// forward copies bytes from one side to the other, each piece after a delay, and the first one after a longer delay.
func forward(from, to net.Conn, delay, first time.Duration) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if delay+first > 0 {
			<-time.After(delay + first)
			first = 0
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// After a failover an address may lead to the new primary while open connections lead to the former one.
func TestReadOnlyIsLeft(t *testing.T) {
	former, next := redistest.Start(t), redistest.Start(t)
	service := startRelay(t, former.Addr)
	c := connect(t, redisconn.Options{URL: service.Addr().String()})
	const connections = 5
	redistest.OpenConnections(t, c, connections)

	host, port, _ := net.SplitHostPort(next.Addr)
	if err := former.Client(t).Do(t.Context(), "replicaof", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	service.to.Store(next.Addr)
	ctx := bounded(t)
	if err := counts.Eval(ctx, c, []string{"k"}).Err(); !goredis.IsReadOnlyError(err) {
		t.Fatalf("on a replica: %v", err)
	}
	for range connections + 1 {
		if err := counts.Run(ctx, c, []string{"k"}).Err(); err != nil {
			t.Errorf("after the first error: %v", err)
		}
	}
	if n, err := next.Client(t).Get(ctx, "k").Int(); n != connections+1 || err != nil {
		t.Error(n, err)
	}
}

func TestPoolOnEmpty(t *testing.T) {
	s := redistest.Start(t)
	ctx := bounded(t)
	// Two calls keep connections until a key appears.
	hold := func(c goredis.UniversalClient) (done chan error) {
		done = make(chan error, 2)
		for range 2 {
			go func() { done <- c.BLPop(ctx, 0, "go").Err() }()
		}
		redistest.Eventually(t, "two blocked clients", func(ctx context.Context) error {
			if info := s.Client(t).Info(ctx, "clients").Val(); !strings.Contains(info, "blocked_clients:2") {
				return errors.New(info)
			}
			return nil
		})
		return done
	}
	release := func(done chan error) {
		t.Helper()
		if err := s.Client(t).RPush(ctx, "go", 1, 2).Err(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}

	c := connect(t, redisconn.Options{URL: s.Addr, PoolSize: 2, OnEmpty: "WAIT"})
	done := hold(c)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(short).Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WAIT, while none is free: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- c.Ping(ctx).Err() }()
	release(done)
	if err := <-waited; err != nil {
		t.Errorf("WAIT, until one is free: %v", err)
	}

	c = connect(t, redisconn.Options{URL: s.Addr, PoolSize: 2, OnEmpty: "ERROR"})
	done = hold(c)
	if err := c.Ping(ctx).Err(); !errors.Is(err, goredis.ErrPoolTimeout) { // one that waits ends with its context
		t.Errorf("ERROR, while none is free: %v", err)
	}
	release(done)
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("ERROR, when one is free: %v", err)
	}

	c = connect(t, redisconn.Options{URL: s.Addr, PoolSize: 2, OnEmpty: "CREATE"})
	done = hold(c)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := c.Ping(ctx).Err(); err != nil {
				t.Errorf("CREATE: %v", err)
			}
		})
	}
	wg.Wait()
	release(done)
	// A connection whose call had given up is closed after its first use.
	redistest.Eventually(t, "no more connections than the pool has", func(ctx context.Context) error {
		if err := c.Ping(ctx).Err(); err != nil {
			return err
		}
		if n := c.PoolStats().TotalConns; n > 2 {
			return fmt.Errorf("%d are kept", n)
		}
		return nil
	})
}

// notSentAgain breaks connections while a call waits for its answer.
func notSentAgain(t *testing.T, c goredis.UniversalClient, s *redistest.Server, key string) {
	t.Helper()
	for name, send := range map[string]func(context.Context) error{
		"command": func(ctx context.Context) error { return c.Incr(ctx, key).Err() },
		"pipeline": func(ctx context.Context) error {
			pipe := c.Pipeline()
			pipe.Incr(ctx, key)
			pipe.Incr(ctx, key)
			_, err := pipe.Exec(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			admin := s.Client(t)
			if err := c.Set(ctx, key, 0, 0).Err(); err != nil { // a connection is there
				t.Fatal(err)
			}
			if err := admin.Do(ctx, "client", "pause", longest.Milliseconds(), "write").Err(); err != nil {
				t.Fatal(err)
			}
			sent := make(chan error, 1)
			go func() { sent <- send(ctx) }()
			redistest.Eventually(t, "the server to hold the call", func(ctx context.Context) error {
				if info := admin.Info(ctx, "clients").Val(); !strings.Contains(info, "blocked_clients:1") {
					return errors.New(info)
				}
				return nil
			})
			hangUp(t, s)
			select {
			case err := <-sent:
				if err == nil {
					t.Error("it was sent again")
				}
			case <-time.After(3 * time.Second): // shorter than the client's wait for an answer without a deadline
				t.Error("it was sent again, and waits")
			}
			if err := admin.Do(ctx, "client", "unpause").Err(); err != nil {
				t.Fatal(err)
			}
			if n, err := admin.Get(ctx, key).Int(); n != 0 || err != nil {
				t.Errorf("counted %d, %v", n, err)
			}
		})
	}
}

func TestNotSentAgain(t *testing.T) {
	s := redistest.Start(t)
	notSentAgain(t, connect(t, redisconn.Options{URL: s.Addr}), s, "k")
}

// A machine that does not answer is dialled again and again, so that the client soon notices that it is back.
func TestUnansweredIsAskedAnew(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--tcp-backlog", "1")
	s.Pause(t)
	var held []net.Conn
	leave := func() {
		for _, c := range held {
			c.Close()
		}
		held = nil
	}
	defer leave()
	for {
		c, err := net.DialTimeout("tcp", s.Addr, 200*time.Millisecond)
		if err != nil {
			break // the backlog is full: the server accepts no connection now
		}
		if held = append(held, c); len(held) > 100 {
			t.Fatal("a server that hangs takes connections without end")
		}
	}
	c := connect(t, redisconn.Options{URL: s.Addr, DialTimeout: longest})
	done := make(chan error, 1)
	go func() { done <- c.Ping(bounded(t)).Err() }()
	// The system itself retries after 7 s, and then after 11 or 15 s.
	select {
	case err := <-done:
		t.Fatalf("no server accepted, but: %v", err)
	case <-time.After(7500 * time.Millisecond):
	}
	leave()
	s.Continue(t)
	start := time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("the server was noticed after %v", took)
	}
}
