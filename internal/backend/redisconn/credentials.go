package redisconn

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// credentials are the user and the password of new connections, and their sources.
type credentials struct {
	file    string // read for each connection; may be empty
	setting string // name of the setting with the file's path
	log     *slog.Logger

	given func(context.Context) (account, error) // replaces all sources below; nil if settings are used

	inURL account // used for the parts that the variable or the file leaves out

	// The names of the settings AUTH, which is empty if it is not set, and URL.
	variable, url string

	mu      sync.Mutex
	last    account
	failure string // why the file could not be used, as it was logged
}

func (o *Options) credentials(where address) (*credentials, error) {
	c := &credentials{file: o.AuthFile, setting: o.setting("AUTH_FILE"), log: o.Logger, url: o.setting("URL")}
	if o.Auth != "" {
		c.variable = o.setting("AUTH")
	}
	if where.kind != sentinel { // otherwise the URL has the credentials of the sentinels
		c.inURL = where.account
	}
	c.last = split(o.Auth).or(c.inURL)
	if c.file == "" {
		return c, nil
	}
	if o.Auth != "" {
		return nil, o.wrong("AUTH_FILE", "and %s are both set: keep one", o.setting("AUTH"))
	}
	auth, err := c.read()
	if err != nil {
		return nil, o.wrong("AUTH_FILE", "cannot be used: %w", err)
	}
	c.last = split(auth).or(c.inURL)
	return c, nil
}

// split reads "password" or "user:password".
func split(auth string) account {
	user, password, ok := strings.Cut(auth, ":")
	if !ok {
		return account{password: auth}
	}
	return account{user, password}
}

// current returns the credentials for a new connection. While the file cannot be used, they are its last good
// content.
func (c *credentials) current(ctx context.Context) (account, error) {
	switch {
	case c.given != nil:
		return c.given(ctx)
	case c.file == "":
		return c.last, nil
	}
	return c.ofFile(), nil
}

func (c *credentials) ofFile() account {
	auth, err := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if text := err.Error(); text != c.failure { // logged once
			c.failure = text
			c.log.Warn("a credentials file cannot be used: new connections to Redis log in with its last good content",
				"setting", c.setting, "error", err)
		}
		return c.last
	}
	c.failure = ""
	if now := split(auth).or(c.inURL); now != c.last {
		c.last = now
		c.log.Info("credentials have changed: new connections to Redis use the new ones", "setting", c.setting)
	}
	return c.last
}

// advice returns the advice for a server's answer to a login. It is empty if the settings are not to blame.
func (c *credentials) advice(who account, said string) string {
	if c.given != nil {
		return ""
	}
	from, remove, inURL := c.variable, "unset "+c.variable, false
	switch {
	case c.file != "":
		from, remove = "the file of "+c.setting, "unset "+c.setting
	case c.variable == "":
		from, remove, inURL = "the user and password in "+c.url, "remove the user and password from "+c.url, true
	}
	switch {
	case strings.Contains(said, "without any password configured"), strings.Contains(said, "no password is set"):
		return "this Redis asks for no password: " + remove
	case strings.Contains(said, "wrong number of arguments for 'auth'"):
		return "this Redis is older than 6 and has no users: leave the user out of " + from
	case strings.Contains(said, "WRONGPASS"), strings.Contains(said, "invalid password"):
		return wrongPassword("Redis", from, inURL, who)
	}
	return ""
}

// wrongPassword is the advice about a login that was rejected. from is where the password comes from.
func wrongPassword(whom, from string, inURL bool, who account) string {
	advice := whom + " rejects this user or password: correct " + from
	const urls = ". In a URL, a password without a user is written redis://:password@host:port"
	switch {
	case who.password == "":
		advice = whom + " rejects this user without a password: add it to " + from
		if inURL {
			advice += urls
		}
	case who.user != "" && inURL:
		advice += urls
	case who.user != "":
		advice += ". The text before the first colon is the user: a password that contains a colon is written :password"
	}
	switch {
	case strings.TrimRight(who.password, "\r\n") != who.password:
		advice += ". The password ends in a line feed, as in a Secret that was made from a file"
	case strings.TrimSpace(who.password) != who.password:
		advice += ". The password starts or ends with a space"
	}
	return advice
}

// maxCredentials is the most bytes of a file with credentials.
const maxCredentials = 64 << 10

func (c *credentials) read() (string, error) {
	content, err := files.Read(c.file, maxCredentials)
	if err != nil {
		return "", err
	}
	auth := strings.TrimRight(string(content), "\r\n")
	if auth == "" {
		return "", errors.New("the file is empty")
	}
	return auth, nil
}
