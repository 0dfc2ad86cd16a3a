package redisconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// login makes a new connection ready for calls: it authenticates and selects the database. The client library would do
// that within the time of the first call that takes the connection. A call has a few milliseconds, so a server that
// takes longer for a login could never be used. As part of dialling the login has the connect timeout, and a call with
// less time does not wait for it.
type login struct {
	auth *credentials
	db   int
}

func (l *login) do(ctx context.Context, c net.Conn) error {
	who, err := l.auth.current(ctx)
	if err != nil {
		return fmt.Errorf("log in to Redis: %w", err)
	}
	var commands [][]string
	switch {
	case who.user != "": // a user may have no password
		commands = append(commands, []string{"auth", who.user, who.password})
	case who.password != "":
		commands = append(commands, []string{"auth", who.password})
	}
	if l.db > 0 {
		commands = append(commands, []string{"select", strconv.Itoa(l.db)})
	}
	if len(commands) == 0 {
		return nil
	}
	if err := exchange(ctx, c, commands); err != nil {
		return advised(fmt.Errorf("log in to Redis: %w", err), l.auth.advice(who, err.Error()))
	}
	return nil
}

// exchange sends commands that are answered by one line each, and reads the answers.
func exchange(ctx context.Context, c net.Conn, commands [][]string) error {
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	var text []byte
	for _, words := range commands {
		text = fmt.Appendf(text, "*%d\r\n", len(words))
		for _, w := range words {
			text = fmt.Appendf(text, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	if _, err := c.Write(text); err != nil {
		return err
	}
	answers := bufio.NewReaderSize(c, 512)
	for range commands {
		line, more, err := answers.ReadLine()
		switch {
		case err != nil:
			return err
		case len(line) > 0 && line[0] == '-':
			text, _ := cutArguments(string(line[1:]))
			return serverError{text}
		case more || len(line) == 0 || line[0] != '+':
			return errNoAnswer
		}
	}
	if answers.Buffered() > 0 { // no other command was sent
		return errNoAnswer
	}
	return c.SetDeadline(time.Time{})
}

var errNoAnswer = errors.New(answerNotRedis)
