package redisconn_test

import (
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// oddPassword has every character that means something in a URL, a list or REDIS_AUTH.
const oddPassword = "p@s:s/w?o#r%d,+ &="

// TestEveryFormOfAddress draws ways to write an address and its credentials. envoyproxy/ratelimit, which reads URLs
// with radix 4.1.4, accepts all of them, except that it logs in to the discovered nodes of a cluster with REDIS_AUTH
// only. Each reaches the server, in the right database, as the right user, and no password is logged.
func TestEveryFormOfAddress(t *testing.T) {
	t.Parallel()
	acl := strings.Fields("--user svc on >s3cret ~* &* +@all --user free on nopass ~* &* +@all")
	one := redistest.StartWith(t, redistest.Setup{Password: oddPassword, Args: acl})
	watched := redistest.StartWatched(t, redistest.Setup{Password: oddPassword, SentinelPassword: oddPassword})
	nodes := redistest.StartCluster(t, redistest.Setup{Password: oddPassword, Args: acl})
	accounts := [][2]string{{"", oddPassword}, {"default", oddPassword}, {"svc", "s3cret"}, {"free", ""}}

	t.Run("single", rapid.MakeCheck(func(t *rapid.T) {
		who := rapid.SampledFrom(accounts).Draw(t, "account")
		auth, write := drawLogin(t, who)
		opts := redisconn.Options{Auth: auth, URL: write(drawHost(t, one.Addr))}
		db := 0
		if strings.Contains(opts.URL, "://") {
			db = rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "db")
			opts.URL = drawDatabase(t, opts.URL, db)
		}
		opts.Network = rapid.SampledFrom([]string{"", "tcp", "tcp4"}).Draw(t, "network")
		client := reach(t, opts)
		if info := client.ClientInfo(t.Context()).Val(); info == nil || info.DB != db || info.User != whoami(who[0]) {
			t.Fatalf("%+v with %+v", info, opts)
		}
	}))
	t.Run("cluster", rapid.MakeCheck(func(t *rapid.T) {
		auth, write := drawLogin(t, rapid.SampledFrom(accounts).Draw(t, "account"))
		list := drawList(t, nodes.Addrs(), write)
		reach(t, redisconn.Options{Type: "cluster", Auth: auth, URL: strings.Join(list, ",")})
	}))
	t.Run("sentinel", rapid.MakeCheck(func(t *rapid.T) {
		auth, write := drawLogin(t, [2]string{rapid.SampledFrom([]string{"", "default"}).Draw(t, "user"), oddPassword})
		var addrs []string
		for _, s := range watched.Sentinels {
			addrs = append(addrs, s.Addr)
		}
		list := drawList(t, addrs, write)
		reach(t, redisconn.Options{Type: "Sentinel", Auth: ":" + oddPassword, SentinelAuth: auth, URL: watched.Name + "," + strings.Join(list, ",")})
	}))
}

func whoami(user string) string {
	if user == "" {
		return "default"
	}
	return user
}

// reach fails unless a Redis answers with these options. No password may be logged.
func reach(t *rapid.T, opts redisconn.Options) goredis.UniversalClient {
	var log servicetest.Log
	opts.Logger, opts.DialTimeout = slog.New(slog.NewTextHandler(&log, nil)), longest
	client, err := redisconn.Dial(opts)
	if err != nil {
		t.Fatalf("%+v: %v", opts, err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Set(t.Context(), "k", 1, 0).Err(); err != nil {
		t.Fatalf("%+v: %v", opts, err)
	}
	if text := log.String() + opts.Where(); strings.Contains(text, "p@s") || strings.Contains(text, "p%40s") || strings.Contains(text, "s3cret") {
		t.Errorf("a password is in %s", text)
	}
	return client
}

// drawLogin puts a user and a password into the variable, before the host of a URL, or after its question mark, with
// others where they do not count. It returns the variable, and a function that writes an address.
func drawLogin(t *rapid.T, who [2]string) (auth string, write func(addr string) string) {
	const variable, userinfo, query = 0, 1, 2
	places := []int{variable, userinfo, query}
	place := [2]int{rapid.SampledFrom(places).Draw(t, "user in"), rapid.SampledFrom(places).Draw(t, "password in")}
	if who[0] == "" {
		place[0] = query // an empty one there has no effect
	}
	var put [3][2]string // user and password at each place
	for i, value := range who {
		put[place[i]][i] = value
		for later := place[i] + 1; later <= query && value != ""; later++ {
			if rapid.Bool().Draw(t, "another") {
				put[later][i] = "other"
			}
		}
	}
	auth = put[variable][0] + ":" + put[variable][1]
	if put[variable][0] == "" && !strings.Contains(put[variable][1], ":") && rapid.Bool().Draw(t, "no colon") {
		auth = put[variable][1]
	}
	if auth == ":" {
		auth = ""
	}
	inURL := put[userinfo] != [2]string{} || put[query] != [2]string{} || rapid.Bool().Draw(t, "scheme")
	return auth, func(addr string) string {
		if !inURL {
			return addr
		}
		text := "redis://"
		if u := put[userinfo]; u[1] != "" {
			text += escape(u[0]) + ":" + escape(u[1]) + "@"
		} else if u[0] != "" {
			text += escape(u[0]) + "@"
		}
		text += addr
		var options []string
		for i, name := range []string{"username", "password"} {
			if v := put[query][i]; v != "" {
				options = append(options, name+"="+escape(v))
			}
		}
		for _, more := range []string{"protocol=3", "pool_size=5", "db=", "a;b=c", "%zz=1"} {
			if rapid.IntRange(0, 4).Draw(t, more) == 0 {
				options = append(options, more)
			}
		}
		if len(options) > 0 {
			text += rapid.SampledFrom([]string{"?", "/?"}).Draw(t, "before options") + strings.Join(rapid.Permutation(options).Draw(t, "options"), "&")
		}
		return text
	}
}

func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// drawHost writes the address of a server of this machine.
func drawHost(t *rapid.T, addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return rapid.SampledFrom([]string{addr, "localhost:" + port, ":" + port, "127.0.0.1:0" + port}).Draw(t, "host")
}

// drawDatabase adds a database to a URL.
func drawDatabase(t *rapid.T, text string, db int) string {
	n := []string{"0", "1", "2", "3"}[db]
	before, options, ok := strings.Cut(text, "?")
	before = strings.TrimSuffix(before, "/")
	inPath := db == 0 && rapid.Bool().Draw(t, "none")
	switch {
	case inPath && !ok:
		return before
	case inPath:
		return before + "?" + options
	case rapid.Bool().Draw(t, "database in the path"):
		return before + "/" + n + map[bool]string{true: "?" + options}[ok]
	case ok:
		return before + "?db=" + n + "&" + options
	default:
		return before + "?db=" + n
	}
}

// drawList writes a list with one to three of the addresses, and with ignored elements: gaps, and texts that are not
// addresses.
func drawList(t *rapid.T, addrs []string, write func(string) string) []string {
	addrs = rapid.Permutation(addrs).Draw(t, "order")[:rapid.IntRange(1, 3).Draw(t, "addresses")]
	var list []string
	for _, addr := range addrs {
		list = append(list, write(addr))
	}
	for _, junk := range []string{"", "localhost", "127.0.0.1:1", "redis://a:b@c:x", "a:b:c", "redis://127.0.0.1:1/x"} {
		if rapid.IntRange(0, 3).Draw(t, "junk") == 0 {
			list = slices.Insert(list, rapid.IntRange(1, len(list)).Draw(t, "place"), junk)
		}
	}
	return list
}
