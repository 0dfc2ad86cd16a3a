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

// login makes a new connection ready for calls: it says who asks, and which database is meant. The client library would do
// that within the time of the call that takes the connection first. A call has some milliseconds, and where a server
// takes longer over a login no connection would ever become one. As a part of dialling it has the time of dialling, and
// whoever has less does not wait for it.
type login struct {
	auth *credentials
	db   int
}

func (l *login) do(ctx context.Context, c net.Conn) error {
	user, password, err := l.auth.current(ctx)
	if err != nil {
		return err
	}
	var commands [][]string
	if password != "" {
		commands = append(commands, []string{"auth", password})
		if user != "" {
			commands[0] = []string{"auth", user, password}
		}
	}
	if l.db > 0 {
		commands = append(commands, []string{"select", strconv.Itoa(l.db)})
	}
	if len(commands) == 0 {
		return nil
	}
	if err := exchange(ctx, c, commands); err != nil {
		return fmt.Errorf("log in to Redis: %w", err)
	}
	return nil
}

// exchange sends commands that are answered by a line each, and reads these lines.
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
	answers := bufio.NewReaderSize(c, 512) // holds nothing in the end: nobody but us asks
	for range commands {
		line, _, err := answers.ReadLine()
		switch {
		case err != nil:
			return err
		case len(line) == 0:
			return errors.New("the server's answer is no answer of Redis'")
		case line[0] == '-':
			rest, _ := withoutArguments(string(line[1:]))
			return refused{rest}
		}
	}
	return c.SetDeadline(time.Time{})
}
