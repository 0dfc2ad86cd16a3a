package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// tripsOf returns how many script calls a Redis has answered so far. Each of them was a round trip.
func tripsOf(address string) (float64, error) {
	stats, err := ask(address, "INFO commandstats")
	if err != nil {
		return 0, fmt.Errorf("read the statistics of Redis: %w", err)
	}
	return callsOf(stats, "evalsha") + callsOf(stats, "eval"), nil
}

// callsOf reads the calls of one command from the output of INFO commandstats.
func callsOf(stats, command string) float64 {
	_, rest, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	number, _, _ := strings.Cut(rest, ",")
	n, _ := strconv.ParseFloat(number, 64) // 0 if it was never called
	return n
}

// ask sends a command to a Redis, and returns its answer: a status or a text.
func ask(address, command string) (string, error) {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "%s\r\n", command); err != nil {
		return "", err
	}
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	if status, ok := strings.CutPrefix(line, "+"); ok {
		return strings.TrimSpace(status), nil
	}
	length, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "$")))
	if err != nil || length < 0 {
		return "", fmt.Errorf("it answers %q", line)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(in, text); err != nil {
		return "", err
	}
	return string(text), nil
}
