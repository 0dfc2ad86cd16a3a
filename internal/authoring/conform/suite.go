package conform

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Setup is a group of cases for services with the same settings.
type Setup struct {
	Name     string
	Settings map[string]string // environment variables of envoyproxy/ratelimit
	Cases    []Case
}

// Plain is the name of the setup that needs no settings.
const Plain = "plain"

// Level is the origin of cases.
type Level string

// The levels.
const (
	Protocol Level = "protocol" // written by hand
	Recorded Level = "recorded" // answers of envoyproxy/ratelimit
	Exact    Level = "exact"    // number of requests that many connections pass together
	Field    Level = "field"    // problems reported by users of rate limit services
)

// Case is some requests under one rule file, and the answers to them.
type Case struct {
	Name   string
	Level  Level
	Why    string // one sentence; empty for recordings
	Report string // where users of some service met it
	Rules  string // a rule file with one domain
	Steps  []Step
}

// Step is a request and its answer, as protobuf's JSON.
type Step struct {
	Request  json.RawMessage
	Response json.RawMessage // nil if an error is expected
	Error    string          // the error of envoyproxy/ratelimit; any other is as good
	Differs  string          // "headers" or "answer": these are not compared, because envoyproxy/ratelimit is wrong there
}

//go:embed suite/protocol.json
var protocol []byte

//go:embed suite/recordings.zip
var recordings []byte

// Setups returns all cases with requests. The first setup is Plain; its protocol cases come first.
func Setups() ([]Setup, error) {
	var byHand []Case
	if err := json.Unmarshal(protocol, &byHand); err != nil {
		return nil, fmt.Errorf("read the cases of the protocol: %w", err)
	}
	for i := range byHand {
		byHand[i].Level = Protocol
	}
	files, err := zip.NewReader(bytes.NewReader(recordings), int64(len(recordings)))
	if err != nil {
		return nil, fmt.Errorf("read the recordings: %w", err)
	}
	all := []Setup{{Name: Plain, Cases: byHand}}
	for _, f := range files.File {
		s, err := readSetup(f)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read the recordings in %s: %w", f.Name, err)
		case s.Name == Plain:
			all[0].Cases = append(all[0].Cases, s.Cases...)
		default:
			all = append(all, s)
		}
	}
	return all, nil
}

func readSetup(f *zip.File) (s Setup, err error) {
	r, err := f.Open()
	if err != nil {
		return s, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, err
	}
	for i := range s.Cases {
		s.Cases[i].Level = Recorded
	}
	return s, nil
}

// domain is the domain of the case's rules.
func (c *Case) domain() string {
	first, _, _ := strings.Cut(c.Rules, "\n")
	return strings.Trim(strings.TrimPrefix(first, "domain: "), `"`)
}

// fresh returns the case under a domain that no earlier run has used.
func (c *Case) fresh(run string) Case {
	old := c.domain()
	replaced := func(text string) string { return strings.ReplaceAll(text, old, old+"-"+run) }
	next := *c
	next.Rules = replaced(c.Rules)
	next.Steps = make([]Step, len(c.Steps))
	for i, s := range c.Steps {
		s.Request, s.Response = json.RawMessage(replaced(string(s.Request))), json.RawMessage(replaced(string(s.Response)))
		next.Steps[i] = s
	}
	return next
}
