package redisconn_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Each of these mistakes is tried with real servers. The advice names the setting to correct, and never a password.
func TestAdvice(t *testing.T) {
	t.Parallel()
	const right = "right-" + secret
	open := redistest.Start(t)
	locked := redistest.StartWith(t, redistest.Setup{Password: right, Args: strings.Fields("--user svc on >" + right + " ~* &* +@all --user low on >" + right + " ~* &* +ping +auth +select")})
	noScripts := redistest.Start(t, "--rename-command", "EVAL", "", "--rename-command", "EVALSHA", "")
	ca, other := redistest.NewCA(t), redistest.NewCA(t)
	encrypted := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false)})
	strict := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), true)})
	misnamed := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "redis.example"), false)})
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 1")
	nodes := redistest.StartCluster(t, redistest.Setup{})
	lost := redistest.Start(t, "--cluster-enabled", "yes")
	watched := redistest.StartWatched(t, redistest.Setup{Password: right, SentinelPassword: right})
	sentinels := strings.TrimPrefix(watched.URL(), watched.Name)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { web.Close() })
	go func() {
		for {
			c, err := web.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := c.Read(make([]byte, 100)); err == nil {
					_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
				}
			}()
		}
	}()
	file := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(file, []byte(secret+" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trust := redisconn.TLSOptions{Enabled: true, CACert: ca.File}

	for name, c := range map[string]struct {
		opts redisconn.Options
		want []string
	}{
		"no password":                      {redisconn.Options{URL: locked.Addr}, []string{"asks for a password", "set REDIS_AUTH"}},
		"a wrong one in the variable":      {redisconn.Options{URL: locked.Addr, Auth: secret}, []string{"correct REDIS_AUTH"}},
		"in the file":                      {redisconn.Options{URL: locked.Addr, AuthFile: file}, []string{"correct the file of REDIS_AUTH_FILE", "starts or ends with a space"}},
		"in the URL":                       {redisconn.Options{URL: "redis://:" + secret + "@" + locked.Addr}, []string{"correct the user and password in REDIS_URL"}},
		"in the options of the URL":        {redisconn.Options{URL: "redis://" + locked.Addr + "?password=" + secret}, []string{"correct the user and password in REDIS_URL"}},
		"a colon in the variable":          {redisconn.Options{URL: locked.Addr, Auth: "a:" + secret}, []string{"correct REDIS_AUTH", "before the first colon is the user", ":password"}},
		"a colon in the URL":               {redisconn.Options{URL: "redis://a:" + secret + "@" + locked.Addr}, []string{"REDIS_URL", "redis://:password@host:port"}},
		"a line feed":                      {redisconn.Options{URL: locked.Addr, Auth: right + "\n"}, []string{"correct REDIS_AUTH", "ends in a line feed"}},
		"a user and a line feed":           {redisconn.Options{URL: locked.Addr, Auth: "svc:" + right + "\r\n"}, []string{"correct REDIS_AUTH", "ends in a line feed"}},
		"a line feed in the URL":           {redisconn.Options{URL: "redis://:" + right + "%0A@" + locked.Addr}, []string{"REDIS_URL", "ends in a line feed"}},
		"no colon in the URL":              {redisconn.Options{URL: "redis://" + right + "@" + locked.Addr}, []string{"user without a password", "REDIS_URL", "redis://:password@host:port"}},
		"a user only":                      {redisconn.Options{URL: locked.Addr, Auth: "svc:"}, []string{"user without a password", "REDIS_AUTH"}},
		"a password too much":              {redisconn.Options{URL: open.Addr, Auth: secret}, []string{"asks for no password", "unset REDIS_AUTH"}},
		"one too much in the URL":          {redisconn.Options{URL: "redis://:" + secret + "@" + open.Addr}, []string{"asks for no password", "from REDIS_URL"}},
		"of the second Redis":              {redisconn.Options{Settings: "REDIS_PERSECOND", URL: locked.Addr, Auth: secret}, []string{"correct REDIS_PERSECOND_AUTH"}},
		"a user with few rights":           {redisconn.Options{URL: locked.Addr, Auth: "low:" + right}, []string{"give it the rights in docs/reference/redis-keys.md"}},
		"a database that there is not":     {redisconn.Options{URL: "redis://" + open.Addr + "/99"}, []string{"fewer databases", "REDIS_URL"}},
		"no scripts":                       {redisconn.Options{URL: noScripts.Addr}, []string{"runs no scripts", "EVAL"}},
		"no cluster":                       {redisconn.Options{Type: "CLUSTER", URL: open.Addr}, []string{"REDIS_TYPE=SINGLE"}},
		"a node of a cluster":              {redisconn.Options{URL: nodes.Nodes[0].Addr}, []string{"REDIS_TYPE=CLUSTER"}},
		"a node of a cluster, database 3":  {redisconn.Options{URL: "redis://" + nodes.Nodes[0].Addr + "/3"}, []string{"REDIS_TYPE=CLUSTER"}},
		"a cluster without slots":          {redisconn.Options{URL: lost.Addr}, []string{"have no node: repair the cluster"}},
		"a replica":                        {redisconn.Options{URL: replica.Addr}, []string{"is a replica", "primary"}},
		"no Sentinel":                      {redisconn.Options{Type: "SENTINEL", URL: "m," + open.Addr}, []string{"REDIS_TYPE=SINGLE"}},
		"a Sentinel as Redis":              {redisconn.Options{URL: watched.Sentinels[0].Addr, Auth: right}, []string{"REDIS_TYPE=SENTINEL"}},
		"a Sentinel as node":               {redisconn.Options{Type: "CLUSTER", URL: watched.Sentinels[0].Addr, Auth: right}, []string{"SENTINEL if these are Sentinels"}},
		"another name":                     {redisconn.Options{Type: "SENTINEL", URL: "contours" + sentinels, Auth: right, SentinelAuth: right}, []string{`no primary "contours"`, "first part of REDIS_URL"}},
		"the Sentinels' password is unset": {redisconn.Options{Type: "SENTINEL", URL: watched.URL(), Auth: right}, []string{"Sentinels ask for a password", "set REDIS_SENTINEL_AUTH"}},
		"the Sentinels' password is wrong": {redisconn.Options{Type: "SENTINEL", URL: watched.URL(), Auth: right, SentinelAuth: secret}, []string{"the Sentinels reject", "correct REDIS_SENTINEL_AUTH"}},
		"their password has a line feed":   {redisconn.Options{Type: "SENTINEL", URL: watched.URL(), Auth: right, SentinelAuth: right + "\n"}, []string{"correct REDIS_SENTINEL_AUTH", "line feed"}},
		"their password in the URL":        {redisconn.Options{Type: "SENTINEL", URL: watched.Name + ",redis://:" + secret + "@" + watched.Sentinels[0].Addr, Auth: right}, []string{"the Sentinels reject", "the user and password in REDIS_URL"}},
		"the primary's password is unset":  {redisconn.Options{Type: "SENTINEL", URL: watched.Name + ",redis://:" + right + "@" + watched.Sentinels[0].Addr}, []string{"set REDIS_AUTH", "for the Sentinels"}},
		"the primary's password is wrong":  {redisconn.Options{Type: "SENTINEL", URL: watched.URL(), Auth: secret, SentinelAuth: right}, []string{"Redis rejects", "correct REDIS_AUTH"}},
		"TLS to a plain port":              {redisconn.Options{URL: open.Addr, TLS: trust}, []string{"does not speak TLS", "unset REDIS_TLS"}},
		"plain text to TLS":                {redisconn.Options{URL: encrypted.Addr}, []string{"TLS", "set REDIS_TLS=true"}},
		"plain text to TLS, and a login":   {redisconn.Options{URL: encrypted.Addr, Auth: secret}, []string{"TLS", "set REDIS_TLS=true"}},
		"another authority":                {redisconn.Options{URL: encrypted.Addr, TLS: redisconn.TLSOptions{Enabled: true, CACert: other.File}}, []string{"not trusted", "REDIS_TLS_CACERT"}},
		"another host name":                {redisconn.Options{URL: misnamed.Addr, TLS: trust}, []string{"another name", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"}},
		"no client certificate":            {redisconn.Options{URL: strict.Addr, TLS: trust}, []string{"client certificate", "REDIS_TLS_CLIENT_CERT"}},
		"a web server":                     {redisconn.Options{URL: web.Addr().String()}, []string{"no Redis", "REDIS_URL"}},
		"a web server, and a login":        {redisconn.Options{URL: web.Addr().String(), Auth: secret}, []string{"no Redis", "REDIS_URL"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := c.opts.Settings
			if settings == "" {
				settings = "REDIS"
			}
			client := connect(t, c.opts)
			redistest.Eventually(t, "the advice", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				var err error
				for i := 0; i < 20 && err == nil; i++ { // keys of several slots
					err = counts.Run(ctx, client, []string{fmt.Sprint("k", i)}).Err()
				}
				if err == nil {
					t.Fatal("it works")
				}
				advice := redisconn.Advice(err, settings)
				withoutSecret(t, advice)
				for _, want := range c.want {
					if !strings.Contains(advice, want) {
						return fmt.Errorf("%q for %w: want %q in it", advice, err, want)
					}
				}
				return nil
			})
		})
	}
}

// A server of the cluster may name any address as the place of a slot, and a Sentinel any as the primary. Over TLS, an
// address whose certificate is of another authority gets no password, and no command.
func TestForeignAddressGetsNoPassword(t *testing.T) {
	t.Parallel()
	ca, foreign := redistest.NewCA(t), redistest.NewCA(t)
	pair := foreign.Issue(t, "127.0.0.1")
	certificate, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	heard := make(chan error, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				secure := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate}})
				n, err := secure.Read(make([]byte, 1000))
				if err == nil {
					err = fmt.Errorf("it got %d bytes", n)
				} else {
					err = nil
				}
				heard <- err
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	node := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false), Password: secret, Args: []string{"--cluster-enabled", "yes", "--tls-cluster", "yes"}})
	admin := node.Client(t)
	for _, command := range [][]any{
		{"cluster", "addslotsrange", 0, 16383}, {"config", "set", "cluster-announce-ip", "127.0.0.1"},
		{"config", "set", "cluster-announce-tls-port", port}, {"config", "set", "cluster-announce-port", port},
	} {
		if err := admin.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(command, err)
		}
	}
	client := connect(t, redisconn.Options{Type: "CLUSTER", URL: node.Addr, Auth: secret, TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File}})
	redistest.Eventually(t, "the foreign address to be dialled", func(ctx context.Context) error {
		if err := client.Set(ctx, "k", 1, 0).Err(); err == nil {
			t.Fatal("a command was answered")
		}
		select {
		case err := <-heard:
			if err != nil {
				t.Fatal(err)
			}
			return nil
		default:
			return errors.New("it was not")
		}
	})
}
