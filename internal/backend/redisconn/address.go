package redisconn

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// address is where Redis is, as the settings say.
type address struct {
	kind    string   // single, sentinel or cluster
	network string   // tcp, tcp4, tcp6 or unix
	hosts   []string // host:port or a path; of sentinels with sentinel
	primary string   // its name, with sentinel
	db      int
	account account  // within a URL; of the sentinels with sentinel
	tls     bool     // a URL's scheme is rediss
	notes   []string // ignored parts of the URL, for the log
}

const exampleURL = "host:port, the path of a unix socket, or redis://user:password@host:port/db"

// address reads Type, URL and Network. Whatever envoyproxy/ratelimit accepts is accepted here too, and noted where it
// makes no sense. The URL may contain a password, or a part of one that was misplaced, so errors and notes never repeat
// any of it.
func (o *Options) address() (address, error) {
	kind := strings.ToUpper(o.Type)
	if kind == "" {
		kind = single
	}
	switch {
	case kind != single && kind != sentinel && kind != cluster:
		return address{}, o.wrong("TYPE", "is %q: write SINGLE, SENTINEL or CLUSTER", o.Type)
	case o.Network != "" && o.Network != "unix" && !overTCP(o.Network):
		return address{}, o.wrong("SOCKET_TYPE", "is %q: write tcp, tcp4, tcp6 or unix", o.Network)
	case o.URL == "" && kind == sentinel:
		return address{}, o.wrong("URL", "%w: write the primary's name and the sentinels, as in name,host:port,host:port",
			errEmpty)
	case o.URL == "" && kind == cluster:
		return address{}, o.wrong("URL", "%w: write some nodes, as in host:port,host:port", errEmpty)
	case o.URL == "":
		return address{}, o.wrong("URL", "%w: write %s", errEmpty, exampleURL)
	case kind != single:
		return o.several(kind)
	case strings.Contains(o.URL, "://"):
		return o.one()
	case o.Network == "unix" || o.Network == "" && isPath(o.URL):
		if strings.LastIndexByte(o.URL, '@') > 0 && !strings.HasPrefix(o.URL, "/") {
			return address{}, o.wrong("URL", "is not a path: write /path/of/the/socket, and credentials into %s",
				o.setting("AUTH"))
		}
		return address{kind: kind, network: "unix", hosts: []string{o.URL}}, nil
	}
	text := strings.Trim(o.URL, separators)
	if strings.Contains(text, ",") {
		return address{}, o.wrong("URL", "has several addresses: set %s to CLUSTER or SENTINEL, or write one address",
			o.setting("TYPE"))
	}
	host := hostPort(text)
	if host == "" {
		return address{}, o.wrong("URL", "is not an address: write %s", exampleURL)
	}
	a := address{kind: kind, network: "tcp", hosts: []string{host}}
	if o.Network != "" {
		a.network = o.Network
	}
	return a, nil
}

// separators may surround an address without meaning anything: a template leaves a comma, and a file a line feed.
const separators = ", \t\r\n"

// overTCP reports whether a network is TCP, with whichever version of IP.
func overTCP(network string) bool { return network == "tcp" || network == "tcp4" || network == "tcp6" }

// isPath reports whether a text without a scheme can only be a unix socket: its path, or a name that starts with @.
func isPath(s string) bool {
	return strings.HasPrefix(s, "/") || !strings.Contains(s, ":") &&
		(strings.Contains(s, "/") || strings.HasPrefix(s, "@") || strings.HasSuffix(s, ".sock"))
}

// Where returns the addresses in URL without credentials: host:port or a path, or several separated by commas. It is
// empty if Dial would fail.
func (o Options) Where() string {
	a, err := o.address()
	if err != nil {
		return ""
	}
	where := strings.Join(a.hosts, ",")
	if a.kind == sentinel {
		where = a.primary + "," + where
	}
	if a.db != 0 {
		where += "/" + strconv.Itoa(a.db)
	}
	return where
}

// several reads a list of addresses. As in envoyproxy/ratelimit, one that can be used is enough.
func (o *Options) several(kind string) (address, error) {
	a := address{kind: kind, network: "tcp"}
	parts := strings.Split(o.URL, ",")
	if kind == sentinel {
		a.primary, parts = strings.TrimSpace(parts[0]), parts[1:]
		if a.primary == "" || strings.Trim(strings.Join(parts, ""), separators) == "" {
			return address{}, o.wrong("URL",
				"with %s=SENTINEL starts with the primary's name, as the sentinels know it: write name,host:port,host:port",
				o.setting("TYPE"))
		}
		if hostPort(a.primary) != "" {
			a.notes = append(a.notes,
				"it starts with an address instead of the primary's name, as the sentinels know it: write name,host:port,host:port")
		}
	}
	for i, text := range parts {
		text = strings.Trim(text, separators)
		if text == "" {
			continue
		}
		s := server{network: "tcp"}
		var problem string
		if strings.Contains(text, "://") {
			s, problem = o.parse(text)
		} else if s.host = hostPort(text); s.host == "" {
			problem = "no address"
		}
		if problem != "" || !overTCP(s.network) {
			a.notes = append(a.notes, fmt.Sprintf("place %d of its list has no address: write host:port, separated by commas",
				i+1))
			continue
		}
		a.hosts = append(a.hosts, s.host)
		if a.account == (account{}) {
			a.account = s.account
		}
		a.tls = a.tls || s.tls
		if s.db != 0 {
			s.notes = append(s.notes, "the number of a database has no effect: nodes of a cluster and sentinels have none")
		}
		for _, note := range s.notes {
			if !slices.Contains(a.notes, note) {
				a.notes = append(a.notes, note)
			}
		}
	}
	if len(a.hosts) == 0 {
		return address{}, o.wrong("URL", "has no address in its list: write host:port, separated by commas")
	}
	return a, nil
}

// account is who logs in. The password may be empty.
type account struct{ user, password string }

// or fills in missing parts of an account from another one.
func (a account) or(b account) account {
	return account{cmp.Or(a.user, b.user), cmp.Or(a.password, b.password)}
}

// server is one server, as a URL describes it.
type server struct {
	network string // tcp or unix
	host    string // host:port or a path
	account account
	db      int
	tls     bool
	notes   []string
}

// parse reads a URL with a scheme. problem describes a mistake in it. User, password and database may also stand after
// its question mark; those before it win.
func (o *Options) parse(text string) (s server, problem string) {
	u, err := url.Parse(strings.Trim(text, "\t\r\n"))
	if err != nil {
		return s, "cannot be read: write " + exampleURL + ", with %-escapes for special characters in the password"
	}
	query := u.Query()
	password, ok := u.User.Password()
	if !ok {
		password = query.Get("password")
	}
	s = server{network: "tcp", account: account{cmp.Or(u.User.Username(), query.Get("username")), password},
		tls: u.Scheme == "rediss"}
	db := strings.Trim(u.Path, "/")
	switch {
	case u.Scheme == "unix":
		s.network, s.host, db = "unix", u.Path, ""
		if u.Path == "" {
			return s, "has no path: write unix:///path/of/the/socket"
		}
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return s, "has an unknown scheme: write redis, rediss or unix"
	default:
		s.host = hostPort(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379")))
		if s.host == "" {
			return s, "is not an address: write " + exampleURL
		}
	}
	if db = cmp.Or(db, query.Get("db")); db != "" {
		if s.db, err = strconv.Atoi(db); err != nil || s.db < 0 {
			return s,
				"does not end in the number of a database: write redis://host:port/0, with %-escapes for special characters in " +
					"the password"
		}
	}
	for _, known := range []string{"username", "password", "db"} {
		query.Del(known)
	}
	if len(query) > 0 {
		s.notes = append(s.notes,
			fmt.Sprintf("options after its question mark have no effect, except username, password and db: set %s, %s "+
				"and the like",
				o.setting("POOL_SIZE"), o.setting("TIMEOUT")))
	}
	return s, ""
}

// one reads a URL with a scheme.
func (o *Options) one() (address, error) {
	s, problem := o.parse(o.URL)
	if problem != "" {
		return address{}, o.wrong("URL", "%s", problem)
	}
	a := address{kind: single, network: s.network, hosts: []string{s.host}, account: s.account, db: s.db, tls: s.tls,
		notes: s.notes}
	switch {
	case o.Network == "":
	case overTCP(o.Network) && a.network == "tcp":
		a.network = o.Network
	case o.Network != a.network:
		return address{}, o.wrong("SOCKET_TYPE", "is %s, but the scheme of %s means %s: keep one of them", o.Network,
			o.setting("URL"), a.network)
	}
	return a, nil
}

// hostPort returns an address as it can be dialled, or nothing if it cannot be. A host contains no @: that would be the
// end of credentials. No host is this machine, and a port may have the name of a service.
func hostPort(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, "@/ ") {
		return ""
	}
	n, err := net.DefaultResolver.LookupPort(context.Background(), "tcp", port)
	if err != nil || n == 0 {
		return ""
	}
	return net.JoinHostPort(cmp.Or(host, "localhost"), strconv.Itoa(n))
}
