package redisconn

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
)

// credentials are what connections log in with.
type credentials struct {
	file    string // read each time, if there is one
	setting string // that names the file
	log     *slog.Logger

	mu             sync.Mutex
	user, password string
	trouble        string // the last one that was logged
}

func (o *Options) credentials(where address) (*credentials, error) {
	c := &credentials{file: o.AuthFile, setting: o.setting("AUTH_FILE"), log: o.Logger, user: where.user, password: where.secret}
	if o.Auth != "" {
		c.user, c.password = split(o.Auth)
	}
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
	c.user, c.password = split(auth)
	return c, nil
}

// split reads "password" or "user:password".
func split(auth string) (user, password string) {
	user, password, ok := strings.Cut(auth, ":")
	if !ok {
		return "", auth
	}
	return user, password
}

// current returns what a new connection logs in with.
func (c *credentials) current(context.Context) (user, password string, err error) {
	if c.file == "" {
		return c.user, c.password, nil
	}
	auth, err := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.trouble != err.Error() {
			c.trouble = err.Error()
			c.log.Warn("a file with credentials cannot be used: new connections to Redis use what it said before", "setting", c.setting, "error", err)
		}
		return c.user, c.password, nil
	}
	c.trouble = ""
	user, password = split(auth)
	if user != c.user || password != c.password {
		c.user, c.password = user, password
		c.log.Info("credentials have changed: new connections to Redis use them", "setting", c.setting)
	}
	return user, password, nil
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
