package redisconn

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
)

// credentials are what new connections log in with.
type credentials struct {
	file    string // read for each connection; empty: there is none
	setting string // that names the file
	log     *slog.Logger

	inURL account // fills in what the file leaves out

	mu      sync.Mutex
	last    account
	failure string // why the file could not be used, as it was logged
}

func (o *Options) credentials(where address) (*credentials, error) {
	c := &credentials{file: o.AuthFile, setting: o.setting("AUTH_FILE"), log: o.Logger}
	if where.kind != sentinel { // else they are for the sentinels
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
func (c *credentials) current() account {
	if c.file == "" {
		return c.last
	}
	auth, err := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if text := err.Error(); text != c.failure { // logged once
			c.failure = text
			c.log.Warn("a credentials file cannot be used: new connections to Redis log in with its last good content", "setting", c.setting, "error", err)
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

func (c *credentials) read() (string, error) {
	content, err := os.ReadFile(c.file)
	if err != nil {
		return "", err
	}
	auth := strings.TrimRight(string(content), "\r\n")
	if auth == "" {
		return "", errors.New("the file is empty")
	}
	return auth, nil
}
