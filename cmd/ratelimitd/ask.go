package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator/bearer"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// Exit codes of subcommands. All commands also use 0, 1 for a failure and 2 for an invalid command line.
const (
	exitNothing   = 3 // no rule matches
	exitOverLimit = 4 // the request is denied
)

// verdict is an exit code without an error message: the report on standard output explains it.
type verdict int

// Error implements error.
func (verdict) Error() string { return "" }

// ExitCode implements kong.ExitCoder.
func (v verdict) ExitCode() int { return int(v) }

// askOptions are the request of a subcommand.
type askOptions struct {
	Domain      string   `short:"d" required:"" help:"Domain of the rules."`
	Descriptors []string `arg:"" name:"descriptor" help:"key=value,key2=value2. Several make one request. Write a backslash before a comma or backslash in a value."`
	Limit       string   `placeholder:"N/UNIT" help:"Send a limit with the request, such as 10/minute or 10/30s."`
}

// descriptors reads the descriptors and the limit.
func (o *askOptions) descriptors() (all [][]descriptor.Entry, limit *limiter.RequestLimit, err error) {
	for i, d := range o.Descriptors {
		e, err := entries.Parse(d)
		if err != nil {
			return nil, nil, misuse(fmt.Errorf("descriptor %d: %w", i+1, err))
		}
		all = append(all, e)
	}
	if o.Limit != "" {
		if limit, err = parseRequestLimit(o.Limit); err != nil {
			return nil, nil, misuse(fmt.Errorf("--limit %s: %w", o.Limit, err))
		}
	}
	return all, limit, nil
}

var shortUnits = map[string]descriptor.Unit{
	"s": descriptor.Second, "m": descriptor.Minute, "h": descriptor.Hour, "d": descriptor.Day, "w": descriptor.Week,
	"sec": descriptor.Second, "min": descriptor.Minute, "hr": descriptor.Hour,
}

// parseRequestLimit reads a limit such as 10/minute, 10/30s or 10/2weeks.
func parseRequestLimit(s string) (*limiter.RequestLimit, error) {
	number, window, found := strings.Cut(s, "/")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || !found {
		return nil, errors.New("write requests per window, like 10/minute or 10/30s")
	}
	name := strings.TrimLeft(window, "0123456789")
	multiplier := uint64(1)
	if digits := window[:len(window)-len(name)]; digits != "" {
		if multiplier, err = strconv.ParseUint(digits, 10, 32); err != nil || multiplier == 0 {
			return nil, fmt.Errorf("a window of %s units: use a whole number from 1", digits)
		}
	}
	name = strings.TrimSpace(name)
	unit, ok := shortUnits[name]
	if !ok {
		if unit = descriptor.ParseUnit(name); !unit.Valid() {
			unit = descriptor.ParseUnit(strings.TrimSuffix(name, "s"))
		}
	}
	if !unit.OnWire() {
		return nil, fmt.Errorf("%q is not a unit of time: use s, m, h, d, w or %s", name,
			strings.Join(descriptor.WireUnitNames, ", "))
	}
	return &limiter.RequestLimit{Requests: uint32(n), Unit: int32(unit), Multiplier: uint32(multiplier)}, nil
}

// connectOptions configure the connection to a server.
type connectOptions struct {
	TLS        bool          `help:"Use TLS. The next four flags turn it on too."`
	CA         string        `placeholder:"FILE" help:"CA certificates to trust. Unset: the system's."`
	Cert       string        `placeholder:"FILE" help:"Client certificate."`
	Key        string        `placeholder:"FILE" help:"Key of the client certificate."`
	ServerName string        `placeholder:"NAME" help:"Name in the server's certificate. Unset: the host of --server."`
	Timeout    time.Duration `default:"5s" help:"How long to wait for an answer."`
}

// dial connects to a server. The example in an error has defaultPort.
func (o *connectOptions) dial(server, token, defaultPort string) (*serviceclient.Client, error) {
	if server == "" {
		return nil, misuse(fmt.Errorf("--server is empty: write host:port, such as localhost:%s, or unix:PATH", defaultPort))
	}
	if _, port, err := net.SplitHostPort(server); (err != nil || port == "") && !strings.HasPrefix(server, "unix:") {
		return nil, misuse(fmt.Errorf("--server %s: write host:port, such as localhost:%s, or unix:PATH", server,
			defaultPort))
	}
	if o.Timeout <= 0 {
		return nil, misuse(fmt.Errorf("--timeout %s: use a time above 0", o.Timeout))
	}
	client, err := serviceclient.Dial(serviceclient.Options{
		Server: server, TLS: o.TLS, CA: o.CA, Cert: o.Cert, Key: o.Key, ServerName: o.ServerName, Token: token,
		NoToken: defaultPort == "8081",
		Timeout: o.Timeout,
	})
	if err != nil { // nothing has been sent yet: a file or a name is wrong
		return nil, misuse(err)
	}
	return client, nil
}

// tokenOptions select the token to send.
type tokenOptions struct {
	Token     string `env:"RATELIMITD_ADMIN_TOKEN" help:"Token to send. Other users can see command lines, so prefer the variable or --token-file."`
	TokenFile string `env:"RATELIMITD_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"File of tokens. The first one is sent."`
}

// admin connects to the admin port of a server.
func (o *tokenOptions) admin(connect *connectOptions, server string, warn io.Writer) (*serviceclient.Client, error) {
	token := o.Token
	if token == "" && o.TokenFile != "" {
		var err error
		if token, err = bearer.First(o.TokenFile); err != nil {
			return nil, misuse(err)
		}
	}
	encrypted := serviceclient.Options{TLS: connect.TLS, CA: connect.CA, Cert: connect.Cert,
		ServerName: connect.ServerName}
	if host, _, err := net.SplitHostPort(server); err == nil && token != "" && !encrypted.Encrypted() &&
		!isLoopback(host) {
		fmt.Fprintf(warn, "ratelimitd: warning: the token is sent to %s in plain text; --tls encrypts it\n", server)
	}
	return connect.dial(server, token, "6070")
}

// portOptions select the admin port that a command calls, and configure the connection.
type portOptions struct {
	Server  string         `short:"s" default:"localhost:6070" placeholder:"ADDRESS" help:"Address of the server's admin port."`
	Token   tokenOptions   `embed:"" group:"Connection"`
	Connect connectOptions `embed:"" group:"Connection"`
}

func (o *portOptions) client(warn io.Writer) (*serviceclient.Client, error) {
	return o.Token.admin(&o.Connect, o.Server, warn)
}

// on reports whether text for this stream has colours.
func (o *colorOption) on(to io.Writer) bool {
	return o.Color == "always" || o.Color == "auto" && os.Getenv("NO_COLOR") == "" && isTerminal(to)
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
