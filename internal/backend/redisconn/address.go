package redisconn

import (
	"net"
	"net/url"
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
	user    string // within a URL, as is the password
	secret  string
	tls     bool // the URL's scheme is rediss
}

// address reads Type, URL and Network. The URL may contain a password, or a part of one that was misplaced, so
// no error here repeats any of it.
func (o *Options) address() (address, error) {
	kind := strings.ToUpper(o.Type)
	if kind == "" {
		kind = single
	}
	const example = "host:port, the path of a unix socket, or redis://user:password@host:port/db"
	switch {
	case kind != single && kind != sentinel && kind != cluster:
		return address{}, o.wrong("TYPE", "is %q: write SINGLE, SENTINEL or CLUSTER", o.Type)
	case o.Network != "" && o.Network != "unix" && !overTCP(o.Network):
		return address{}, o.wrong("SOCKET_TYPE", "is %q: write tcp, tcp4, tcp6 or unix", o.Network)
	case o.URL == "" && kind == sentinel:
		return address{}, o.wrong("URL", "%w: write the primary's name and the sentinels, as in name,host:port,host:port", errEmpty)
	case o.URL == "" && kind == cluster:
		return address{}, o.wrong("URL", "%w: write some nodes, as in host:port,host:port", errEmpty)
	case o.URL == "":
		return address{}, o.wrong("URL", "%w: write %s", errEmpty, example)
	}

	if kind != single {
		return o.several(kind)
	}
	if strings.Contains(o.URL, "://") {
		return o.parse(example)
	}
	network := o.Network
	if network == "" {
		network = "tcp"
		if strings.HasPrefix(o.URL, "/") {
			network = "unix"
		}
	}
	a := address{kind: kind, network: network, hosts: []string{o.URL}}
	if network == "unix" {
		if strings.LastIndexByte(o.URL, '@') > 0 && !strings.HasPrefix(o.URL, "/") {
			return address{}, o.wrong("URL", "is not a path: write /path/of/the/socket, and credentials into %s", o.setting("AUTH"))
		}
		return a, o.unencrypted()
	}
	if strings.Contains(o.URL, ",") {
		return address{}, o.wrong("URL", "has several addresses: set %s to CLUSTER or SENTINEL, or write one address", o.setting("TYPE"))
	}
	if !isHostPort(o.URL) {
		return address{}, o.wrong("URL", "is not an address: write %s", example)
	}
	return a, nil
}

// overTCP reports whether a network is TCP, with whichever version of IP.
func overTCP(network string) bool { return network == "tcp" || network == "tcp4" || network == "tcp6" }

// Where returns the addresses in URL without credentials: host:port or a path, or several separated by commas. It is empty if Dial
// would fail.
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

// several reads a list of addresses.
func (o *Options) several(kind string) (address, error) {
	a := address{kind: kind, network: "tcp"}
	if strings.Contains(o.URL, "://") {
		return address{}, o.wrong("URL", "has a scheme, but with %s=%s it is a list of addresses: write credentials into %s, and %s=true for TLS",
			o.setting("TYPE"), kind, o.setting("AUTH"), o.setting("TLS"))
	}
	parts := strings.Split(o.URL, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	if kind == sentinel {
		a.primary, parts = parts[0], parts[1:]
		if a.primary == "" || len(parts) == 0 || isHostPort(a.primary) {
			return address{}, o.wrong("URL", "with %s=SENTINEL begins with the primary's name, as the sentinels know it: write name,host:port,host:port", o.setting("TYPE"))
		}
	}
	for i, p := range parts {
		if !isHostPort(p) {
			return address{}, o.wrong("URL", "has no address at place %d of its list: write host:port, separated by commas", i+1)
		}
	}
	a.hosts = parts
	return a, nil
}

// parse reads a URL with a scheme.
func (o *Options) parse(example string) (address, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return address{}, o.wrong("URL", "cannot be read: write %s, with %%-escapes for special characters in the password", example)
	}
	a := address{kind: single, network: "tcp", user: u.User.Username()}
	a.secret, _ = u.User.Password()
	a.tls = u.Scheme == "rediss"
	db := strings.Trim(u.Path, "/")
	switch u.Scheme {
	case "redis", "rediss":
		host, port := u.Hostname(), u.Port()
		if host == "" {
			host = "localhost"
		}
		if port == "" {
			port = "6379"
		}
		a.hosts = []string{net.JoinHostPort(host, port)}
	case "unix":
		a.network, a.hosts, db = "unix", []string{u.Path}, ""
		if u.Path == "" {
			return address{}, o.wrong("URL", "has no path: write unix:///path/of/the/socket")
		}
		if err := o.unencrypted(); err != nil {
			return address{}, err
		}
	default:
		return address{}, o.wrong("URL", "has an unknown scheme: write redis, rediss or unix")
	}
	switch {
	case o.Network == "":
	case overTCP(o.Network) && a.network == "tcp":
		a.network = o.Network
	case o.Network != a.network:
		return address{}, o.wrong("SOCKET_TYPE", "is %s, but the scheme of %s means %s: keep one of them", o.Network, o.setting("URL"), a.network)
	}
	query := u.Query()
	if db == "" {
		db = query.Get("db")
	}
	query.Del("db")
	if len(query) > 0 {
		return address{}, o.wrong("URL", "has options after its question mark, which are ignored: set %s, %s and the like", o.setting("POOL_SIZE"), o.setting("TIMEOUT"))
	}
	if db != "" {
		if a.db, err = strconv.Atoi(db); err != nil || a.db < 0 {
			return address{}, o.wrong("URL", "does not end in the number of a database: write redis://host:port/0, with %%-escapes for special characters in the password")
		}
	}
	return a, nil
}

func (o *Options) unencrypted() error {
	if !o.TLS.Enabled {
		return nil
	}
	return o.wrong("TLS", "is true, but %s is a unix socket, which has no TLS: write %s=false", o.setting("URL"), o.setting("TLS"))
}

// isHostPort reports whether a text can be dialled. A host contains no @: that would be the end of credentials.
func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, "@/ ") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
